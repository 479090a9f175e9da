//! The environment variables of launchers: torchrun's, mpirun's and srun's.
//!
//! What belongs here: reading variables, nothing else; a function of a lookup, so that tests need no
//! environment. Invariant: an error names an invalid number or a missing variable; nothing
//! is guessed beyond the documentation of [`Launch::read`].

use std::ffi::OsString;
use std::time::Duration;

use crate::error::{Error, Result};
use crate::plan::MAX_RANKS;

/// The environment variable with the port that rank 0's store listens on.
pub const PORT_VARIABLE: &str = "OVERLAP_GEMM_PORT";

/// A rank as its launcher made it.
///
/// ```
/// use overlap_gemm::group::Launch;
///
/// // Where no launcher has set the environment: rank 1 of 4, which meet at a port of this machine.
/// let place = Launch::at(1, 4, "127.0.0.1", 29_500);
/// assert_eq!((place.rank, place.ranks), (1, 4));
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Launch {
    /// This process's rank.
    pub rank: u32,
    /// How many ranks there are.
    pub ranks: u32,
    /// Its place among the ranks of this machine: which GPU it should take.
    pub local_rank: u32,
    /// The host on which rank 0's store listens: a name or an address.
    pub host: String,
    /// The port there.
    pub port: u16,
    /// The job, as its launcher names it; empty if it does not. Ranks of different jobs form no group, even
    /// if they meet at one port with one secret.
    pub job: String,
}

/// A launcher's names for what it tells.
struct Names {
    launcher: &'static str,
    rank: &'static str,
    ranks: &'static str,
    local_rank: &'static str,
    /// Ranks on this machine, or machines: for launchers that do not say where rank 0 is.
    local_ranks: &'static str,
    machines: &'static str,
    /// What differs from job to job.
    job: &'static [&'static str],
}

/// In the order in which they are looked for: a launcher that runs under another is meant first.
const LAUNCHERS: [Names; 3] = [
    Names {
        launcher: "torchrun",
        rank: "RANK",
        ranks: "WORLD_SIZE",
        local_rank: "LOCAL_RANK",
        local_ranks: "LOCAL_WORLD_SIZE",
        machines: "",
        job: &["TORCHELASTIC_RUN_ID"],
    },
    Names {
        launcher: "mpirun",
        rank: "OMPI_COMM_WORLD_RANK",
        ranks: "OMPI_COMM_WORLD_SIZE",
        local_rank: "OMPI_COMM_WORLD_LOCAL_RANK",
        local_ranks: "OMPI_COMM_WORLD_LOCAL_SIZE",
        machines: "",
        job: &["PMIX_NAMESPACE", "OMPI_MCA_ess_base_jobid"],
    },
    Names {
        launcher: "srun",
        rank: "SLURM_PROCID",
        ranks: "SLURM_NTASKS",
        local_rank: "SLURM_LOCALID",
        local_ranks: "",
        machines: "SLURM_NNODES",
        job: &["SLURM_JOB_ID", "SLURM_STEP_ID"],
    },
];

impl Launch {
    /// One of `ranks` ranks of one machine, whose store is at `host` and `port`; of a job without a name.
    pub fn at(rank: u32, ranks: u32, host: &str, port: u16) -> Launch {
        Launch { rank, ranks, local_rank: rank, host: host.into(), port, job: String::new() }
    }

    /// Where rank 0's store listens, for people.
    pub(super) fn store(&self) -> String {
        let Launch { host, port, .. } = self;
        if host.contains(':') { format!("[{host}]:{port}") } else { format!("{host}:{port}") }
    }

    /// What this process's environment says.
    pub fn from_env() -> Result<Launch> {
        Launch::read(|name| std::env::var_os(name))
    }

    /// Reads `RANK`, `WORLD_SIZE` and `LOCAL_RANK` as torchrun and `overlap-gemm launch` set them, else
    /// Open MPI's, else Slurm's.
    ///
    /// The store's host is `MASTER_ADDR`; without it, this machine, if all ranks are on it. Its port is
    /// `OVERLAP_GEMM_PORT`; else `MASTER_PORT + 1`, for torchrun itself listens on `MASTER_PORT`; else one
    /// that follows from the job's number.
    ///
    /// The job's name is what the launcher calls it (`TORCHELASTIC_RUN_ID`, `PMIX_NAMESPACE`,
    /// `OMPI_MCA_ess_base_jobid`, `SLURM_JOB_ID` and `SLURM_STEP_ID`), with `MASTER_PORT`. A launcher that sets
    /// none of them starts jobs without a name: only port and secret keep those apart.
    ///
    /// `look_up` finds a variable, as [`std::env::var_os`] does; one that is not UTF-8 is refused.
    pub fn read(look_up: impl Fn(&str) -> Option<OsString>) -> Result<Launch> {
        let variable = |name: &str| {
            let text = look_up(name).map(OsString::into_string).transpose();
            text.map_err(|value| Error::NoGroup {
                reason: format!("{name} is {value:?}, which is not UTF-8"),
                remedy: "start the ranks with a launcher, or set its variables as it would",
            })
        };
        let found = LAUNCHERS.iter().find(|names| look_up(names.rank).is_some());
        let Some(names) = found else {
            let name = |names: &Names| format!("{} ({})", names.rank, names.launcher);
            let all: Vec<_> = LAUNCHERS.iter().map(name).collect();
            return Err(Error::NoGroup {
                reason: format!(
                    "no launcher has said which rank this is: none of {} is set",
                    all.join(", ")
                ),
                remedy: "start the ranks with 'overlap-gemm launch', torchrun, mpirun or srun",
            });
        };
        let number = |name: &'static str, least: u64, most: u64| -> Result<Option<u32>> {
            let Some(text) = variable(name)? else { return Ok(None) };
            match text.trim().parse::<u64>() {
                Ok(value) if (least..=most).contains(&value) => Ok(Some(value as u32)),
                _ => Err(Error::NoGroup {
                    reason: format!(
                        "{name} is '{text}', must be a number between {least} and {most}"
                    ),
                    remedy: "start the ranks with a launcher, or set its variables as it would",
                }),
            }
        };
        let needed = |name: &'static str, least, most| {
            let launcher = names.launcher;
            number(name, least, most)?.ok_or_else(|| Error::NoGroup {
                reason: format!("{} is set, as by {launcher}, but {name} is not", names.rank),
                remedy: "start the ranks with a launcher, or set all of its variables",
            })
        };
        let ranks = needed(names.ranks, 1, MAX_RANKS.into())?;
        let rank = needed(names.rank, 0, u64::from(ranks) - 1)?;
        let local_rank = needed(names.local_rank, 0, u64::from(ranks) - 1)?;

        let one_machine = match (names.local_ranks, names.machines) {
            (_, machines) if !machines.is_empty() => {
                number(machines, 1, u32::MAX.into())? == Some(1)
            }
            (local, _) => number(local, 1, ranks.into())? == Some(ranks),
        };
        let host = match variable("MASTER_ADDR")?.filter(|host| !host.is_empty()) {
            Some(host) => host,
            None if one_machine => "127.0.0.1".into(),
            None => {
                return Err(Error::NoGroup {
                    reason: format!(
                        "MASTER_ADDR is not set, and {} has not put all ranks on one machine",
                        names.launcher
                    ),
                    remedy: "set MASTER_ADDR to the host of rank 0, the same on all ranks",
                });
            }
        };
        let port = match number(PORT_VARIABLE, 1, 65535)? {
            Some(port) => Some(port),
            None => number("MASTER_PORT", 1, 65534)?.map(|port| port + 1),
        };
        let jobs = |names: &[&'static str]| -> Result<Vec<(&'static str, String)>> {
            let named = |name| Ok(variable(name)?.map(|value| (name, value)));
            names.iter().filter_map(|&name| named(name).transpose()).collect()
        };
        let ids = jobs(names.job)?;
        let port = match port {
            Some(port) => port as u16,
            None if ids.is_empty() => {
                return Err(Error::NoGroup {
                    reason: "neither OVERLAP_GEMM_PORT nor MASTER_PORT is set".into(),
                    remedy: "set OVERLAP_GEMM_PORT to a free port of rank 0's host, the same on all ranks",
                });
            }
            None => port_of(&ids.iter().map(|(_, id)| id.as_str()).collect::<Vec<_>>().join(".")),
        };
        // Many torchruns have the id 'none'; those of one machine differ in MASTER_PORT.
        let job = ids.into_iter().chain(jobs(&["MASTER_PORT"])?);
        let job: Vec<_> = job.map(|(name, value)| format!("{name}={value}")).collect();
        Ok(Launch { rank, ranks, local_rank, host, port, job: job.join(" ") })
    }
}

/// The default limit for ranks to join.
pub(super) const FIRST_LIMIT: Duration = Duration::from_secs(60);

/// A port below those that systems hand out on their own: the same on all ranks of a job.
fn port_of(job: &str) -> u16 {
    20_000 + (fnv1a(job) % 10_000) as u16
}

/// A number that is another one for any other text, up to one chance in 10¹⁹: FNV-1a.
pub(crate) fn fnv1a(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(set: &[(&str, &str)]) -> Result<Launch> {
        Launch::read(|name| {
            let found = set.iter().find(|(known, _)| *known == name);
            found.map(|(_, value)| OsString::from(value))
        })
    }

    const TORCHRUN: [(&str, &str); 5] = [
        ("RANK", "5"),
        ("WORLD_SIZE", "8"),
        ("LOCAL_RANK", "1"),
        ("MASTER_ADDR", "node-7"),
        ("MASTER_PORT", "29500"),
    ];

    #[test]
    fn torchrun_s_variables_are_enough() {
        let launch = read(&TORCHRUN).unwrap();
        let (host, job) = ("node-7".into(), "MASTER_PORT=29500".into());
        assert_eq!(launch, Launch { rank: 5, ranks: 8, local_rank: 1, host, port: 29501, job });
        let mut with_id = TORCHRUN.to_vec();
        with_id.push(("TORCHELASTIC_RUN_ID", "none"));
        assert_eq!(read(&with_id).unwrap().job, "TORCHELASTIC_RUN_ID=none MASTER_PORT=29500");
        let mut with_port = TORCHRUN.to_vec();
        with_port.push((PORT_VARIABLE, "4000"));
        assert_eq!(read(&with_port).unwrap().port, 4000);
        // torchrun under srun: the inner launcher counts.
        with_port.extend([("SLURM_PROCID", "0"), ("SLURM_NTASKS", "2"), ("SLURM_LOCALID", "0")]);
        assert_eq!(read(&with_port).unwrap().rank, 5);
    }

    #[test]
    fn mpirun_and_srun_need_no_address_on_one_machine() {
        let mpi = [
            ("OMPI_COMM_WORLD_RANK", "3"),
            ("OMPI_COMM_WORLD_SIZE", "4"),
            ("OMPI_COMM_WORLD_LOCAL_RANK", "3"),
            ("OMPI_COMM_WORLD_LOCAL_SIZE", "4"),
            ("PMIX_NAMESPACE", "prterun-host-123@1"),
        ];
        let launch = read(&mpi).unwrap();
        assert_eq!((launch.rank, launch.ranks, launch.local_rank), (3, 4, 3));
        assert_eq!(launch.host, "127.0.0.1");
        assert!((20_000..30_000).contains(&launch.port));
        assert_eq!(launch.job, "PMIX_NAMESPACE=prterun-host-123@1");
        let apart: Vec<_> =
            mpi.iter().filter(|(name, _)| !name.ends_with("LOCAL_SIZE")).copied().collect();
        assert!(read(&apart).unwrap_err().to_string().contains("MASTER_ADDR"));

        let slurm = [
            ("SLURM_PROCID", "0"),
            ("SLURM_NTASKS", "2"),
            ("SLURM_LOCALID", "0"),
            ("SLURM_NNODES", "1"),
            ("SLURM_JOB_ID", "77"),
            ("SLURM_STEP_ID", "0"),
        ];
        let launch = read(&slurm).unwrap();
        assert_eq!((launch.ranks, launch.host.as_str()), (2, "127.0.0.1"));
        let mut other = slurm;
        other[5].1 = "1";
        let step = read(&other).unwrap();
        assert_ne!(step.port, launch.port, "steps of a job do not meet");
        assert_ne!(step.job, launch.job);
        other[3].1 = "2";
        assert!(read(&other).unwrap_err().to_string().contains("MASTER_ADDR"));
    }

    #[test]
    fn what_is_missing_or_makes_no_sense_is_named() {
        let text = read(&[]).unwrap_err().to_string();
        assert!(text.contains("RANK (torchrun)") && text.contains("overlap-gemm launch"), "{text}");
        for missing in ["WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT"] {
            let rest: Vec<_> =
                TORCHRUN.iter().filter(|(name, _)| *name != missing).copied().collect();
            let text = read(&rest).unwrap_err().to_string();
            assert!(text.contains(missing), "{missing}: {text}");
        }
        for (name, value) in [
            ("RANK", "8"),
            ("RANK", "-1"),
            ("WORLD_SIZE", "0"),
            ("WORLD_SIZE", "9999999999999999999999"),
            ("LOCAL_RANK", "eight"),
            ("MASTER_PORT", "65535"),
            ("MASTER_PORT", ""),
        ] {
            let mut set = TORCHRUN.to_vec();
            set.iter_mut().filter(|(known, _)| *known == name).for_each(|pair| pair.1 = value);
            let text = read(&set).unwrap_err().to_string();
            assert!(text.contains(&format!("{name} is '{value}', must be a number")), "{text}");
        }
    }
}
