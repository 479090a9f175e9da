//! The identity of a rank, and the rules that the ranks of a group have to meet.
//!
//! What belongs here: facts about a process that the others have to know, and those rules.
//! Pure, except for reading the facts of this process. Invariant: every refusal names the
//! ranks and both values, so that its reader on any rank knows where to look.

use std::collections::HashMap;

use serde::{Deserialize, Serialize};

/// What a rank tells the others about itself.
///
/// ```
/// use overlap_gemm::group::{Group, Member};
///
/// let groups = Group::local(2)?;
/// let describe = |member: &Member| format!("rank {} on {}", member.rank, member.host);
/// println!("{}", describe(&groups[0].members()[1]));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Member {
    /// Its number.
    pub rank: u32,
    /// The machine: its name, and what changes when it starts anew.
    pub host: String,
    /// The process, as the machine numbers it.
    pub process: u32,
    /// The user that the process runs as.
    pub user: u32,
    /// The version of this crate.
    pub version: String,
    /// The GPU's PCI bus id; empty without a GPU.
    pub device: String,
}

impl Member {
    /// This process as `rank`, without a GPU.
    pub fn this_process(rank: u32) -> Member {
        Member {
            rank,
            host: this_host(),
            process: std::process::id(),
            user: this_user(),
            version: env!("CARGO_PKG_VERSION").into(),
            device: String::new(),
        }
    }
}

/// The machine's name and the id of its boot: two containers of one machine share the second, two machines
/// of one image do not.
fn this_host() -> String {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default().trim().to_owned();
    let name = read("/proc/sys/kernel/hostname");
    let boot = read("/proc/sys/kernel/random/boot_id");
    if boot.is_empty() { name } else { format!("{name} (boot {boot})") }
}

pub(super) fn this_user() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// What a set of ranks has to have in common.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Rules {
    /// Several ranks may use one GPU.
    pub shared_devices: bool,
    /// Ranks may be on several machines.
    pub several_hosts: bool,
}

/// Why these ranks are no group, if they are none; `members` are all of them, by rank.
pub(super) fn misfit(members: &[Member], rules: Rules) -> Option<String> {
    let first = members.first()?;
    let differs = |what: &str, of: fn(&Member) -> &str| {
        let odd = members.iter().find(|member| of(member) != of(first))?;
        Some(format!(
            "{what} of rank {} is '{}', that of rank {} is '{}'",
            first.rank,
            of(first),
            odd.rank,
            of(odd)
        ))
    };
    if let Some(text) = differs("the version of overlap-gemm", |member| &member.version) {
        return Some(format!("{text}: run the same program on all ranks"));
    }
    if let Some(odd) = members.iter().find(|member| member.user != first.user) {
        return Some(format!(
            "rank {} runs as user {}, rank {} as user {}: run all ranks as one user",
            first.rank, first.user, odd.rank, odd.user
        ));
    }
    if !rules.several_hosts
        && let Some(text) = differs("the host", |member| &member.host)
    {
        return Some(format!("{text}: ranks that share memory have to be on one machine"));
    }
    if rules.shared_devices {
        return None;
    }
    let devices = members.iter().map(|member| member.device.as_bytes());
    let (first, second) = on_one_gpu(members, devices)?;
    Some(format!(
        "ranks {} and {} both use the GPU {}: give each a GPU of its own, or allow shared devices",
        first.rank, second.rank, second.device
    ))
}

/// The first two that have one GPU, if two have; `gpus` says what each one's is called on its machine, nothing if nobody knows.
pub(crate) fn on_one_gpu<'a>(
    members: &'a [Member],
    gpus: impl Iterator<Item = &'a [u8]>,
) -> Option<(&'a Member, &'a Member)> {
    let mut owners = HashMap::new();
    let mut named = members.iter().zip(gpus).filter(|(_, gpu)| !gpu.is_empty());
    named.find_map(|(member, gpu)| Some((owners.insert((&member.host, gpu), member)?, member)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn members(count: u32) -> Vec<Member> {
        let member =
            |rank| Member { device: format!("0000:{rank:02x}:00.0"), ..Member::this_process(rank) };
        (0..count).map(member).collect()
    }

    #[test]
    fn ranks_that_fit_are_a_group() {
        assert_eq!(misfit(&[], Rules::default()), None);
        assert_eq!(misfit(&members(8), Rules::default()), None);
        // Without GPUs there is nothing to share.
        let without: Vec<_> = (0..3).map(Member::this_process).collect();
        assert_eq!(misfit(&without, Rules::default()), None);
    }

    #[test]
    fn a_misfit_is_named_with_both_ranks_and_both_values() {
        let refused = |change: fn(&mut Member), rules| {
            let mut all = members(4);
            change(&mut all[2]);
            misfit(&all, rules)
        };
        let strict = Rules::default();
        let text = refused(|member| member.version = "9.9.9".into(), strict).unwrap();
        assert!(text.contains("rank 0 is '0.") && text.contains("rank 2 is '9.9.9'"), "{text}");
        let text = refused(|member| member.user += 1, strict).unwrap();
        assert!(text.contains("rank 0 runs as user") && text.contains("rank 2 as user"), "{text}");
        let text = refused(|member| member.host = "elsewhere".into(), strict).unwrap();
        assert!(text.contains("rank 2 is 'elsewhere'"), "{text}");
        let apart = Rules { several_hosts: true, ..strict };
        assert_eq!(refused(|member| member.host = "elsewhere".into(), apart), None);
        let text = refused(|member| member.device = "0000:01:00.0".into(), strict).unwrap();
        assert!(text.contains("ranks 1 and 2 both use the GPU 0000:01:00.0"), "{text}");
        let shared = Rules { shared_devices: true, ..strict };
        assert_eq!(refused(|member| member.device = "0000:01:00.0".into(), shared), None);
    }
}
