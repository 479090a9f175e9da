//! Ranks that are told who they are by their environment, as a launcher leaves it or a user spoils it.
//!
//! What belongs here: [`Group::from_env`](overlap_gemm::group::Group::from_env) in processes: this test's own
//! binary, started again as `a_rank`. Invariant: what cannot be used is refused with its name; nothing is
//! ignored in silence; and no process outlives its test.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStringExt;
use std::process::Child;
use std::time::Duration;

use overlap_gemm::group::{Group, GroupOptions};

use crate::LONG;
use crate::processes::{ended, free_port, start_rank, variable};

/// For ranks whose others do not come.
const SHORT: Duration = Duration::from_secs(5);

/// A rank that says what became of it. Run by the tests below; by itself there is nothing to do.
#[test]
fn a_rank() {
    let Some(limit) = variable("OVERLAP_GEMM_TEST_LIMIT") else { return };
    let limit = Duration::from_secs(limit.into());
    let met = Group::from_env(&GroupOptions::default().limit(limit));
    println!(
        "result: {:?}",
        met.and_then(|group| group.barrier("here", LONG)).map_err(|error| error.to_string())
    );
}

/// Starts this process as rank `rank` of `ranks`, with other variables besides.
fn start(rank: u32, ranks: u32, limit: Duration, others: &[(&str, &OsStr)]) -> Child {
    let limit = limit.as_secs().to_string();
    let variables = [&[("OVERLAP_GEMM_TEST_LIMIT", limit.as_ref())], others].concat();
    start_rank("environment::a_rank", rank, ranks, &variables)
}

/// What became of it.
fn result(child: Child) -> String {
    let text = ended(child).1;
    let found = text.lines().find_map(|line| line.split_once("result: "));
    found.unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

fn bytes(bytes: &[u8]) -> OsString {
    OsString::from_vec(bytes.to_vec())
}

#[test]
fn secrets_that_are_not_utf8_count() {
    let (one, other) = (bytes(b"0123456789abcde\xfe"), bytes(b"0123456789abcde\xff"));
    let ranks = |secrets: [&OsString; 2], limit| {
        let port = OsString::from(free_port().to_string());
        let start = |(rank, secret): (u32, &OsString)| {
            start(rank, 2, limit, &[("OVERLAP_GEMM_SECRET", secret), ("OVERLAP_GEMM_PORT", &port)])
        };
        let children: Vec<_> = (0..).zip(secrets).map(start).collect();
        children.into_iter().map(result).collect::<Vec<_>>()
    };
    assert_eq!(ranks([&one, &one], LONG), ["Ok(())", "Ok(())"]);
    let texts = ranks([&one, &other], SHORT);
    assert!(texts[0].contains("rank 1 did not come to the group"), "{texts:?}");
    assert!(texts[1].contains("does not know this rank's secret"), "{texts:?}");
}

#[test]
fn variables_that_are_not_utf8_are_named() {
    let odd = bytes(b"0\xff");
    for name in
        ["RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR", "MASTER_PORT", "OVERLAP_GEMM_PORT"]
    {
        let port = OsString::from(free_port().to_string());
        let text = result(start(0, 1, SHORT, &[("OVERLAP_GEMM_PORT", &port), (name, &odd)]));
        assert!(text.contains(name) && text.contains("is not UTF-8"), "{name}: {text}");
    }
}

/// Two jobs whose ports collide: rank 1 of the second comes to rank 0 of the first.
#[test]
fn jobs_with_one_secret_on_one_port_do_not_mix() {
    for (variable, other) in [("TORCHELASTIC_RUN_ID", "b"), ("MASTER_PORT", "102")] {
        let port = OsString::from(free_port().to_string());
        let job = |rank, change: bool, limit| {
            let mut variables = [
                ("TORCHELASTIC_RUN_ID", OsStr::new("a")),
                ("MASTER_PORT", OsStr::new("101")),
                ("OVERLAP_GEMM_PORT", &port),
            ];
            if change {
                variables
                    .iter_mut()
                    .filter(|(name, _)| *name == variable)
                    .for_each(|set| set.1 = OsStr::new(other));
            }
            start(rank, 2, limit, &variables)
        };
        let first = job(0, false, LONG);
        let text = result(job(1, true, LONG));
        let (theirs, own) =
            (format!("{variable}={other}"), "'TORCHELASTIC_RUN_ID=a MASTER_PORT=101'");
        assert!(text.contains("rank 1 is of a job 'TORCHELASTIC_RUN_ID="), "{text}");
        assert!(
            text.contains(&theirs) && text.contains(own) && text.contains("OVERLAP_GEMM_PORT"),
            "{text}"
        );
        // The seat is still free for the rank of this job.
        assert_eq!([job(1, false, LONG), first].map(result), ["Ok(())", "Ok(())"]);
    }
}
