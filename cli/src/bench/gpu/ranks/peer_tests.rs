//! A made-up program in the peer's place, which hangs, ends or talks nonsense where a test says so.
//!
//! Each of its processes ignores signals, and starts another that keeps the pipes open; at the end of every test
//! none of them is left.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::Instant;

use super::*;

/// For waits that should end by themselves.
const LONG: Duration = Duration::from_secs(60);

const PATIENT: Limits = Limits { start: LONG, answer: LONG, end: LONG };

/// For what hangs; what does not hang is far quicker.
const SHORT: Duration = Duration::from_secs(4);

/// Has the contenders a, b and c, of which c is wrong. `$FAULT` says where and how it fails: "hang run b 1" on rank 1 alone.
const PROGRAM: &str = r#"
trap '' HUP INT TERM
sh -c 'trap "" HUP INT TERM; sleep 1000' &
echo $$ $! >> "$FOLDER/pids"
fault() {
    case "$FAULT" in
        "hang $1 $RANK" | "hang $1 all") sleep 1000; sleep 1000 ;;
        "end $1 $RANK") exit 7 ;;
        "garble $1 $RANK") echo '{"nonsense"' ; sleep 1000 ;;
        "flood $1 $RANK") yes | tr -d '\n' ;;
    esac
}
fault start
echo 'a library prints this'
echo '{"ready": true}'
while read -r order; do
    name=${order#*'"name":"'}
    name=${name%%'"'*}
    case $order in
        *'"do":"prepare"'*)
            fault prepare
            echo '{"contenders": [{"name": "a", "kind": "gemm"}, {"name": "b", "kind": "all-gather-gemm"},
                {"name": "c", "kind": "all-gather-gemm"}]}' | tr -d '\n'; echo ;;
        *'"do":"try"'*)
            fault "try $name"
            case $name in
                c) echo '{"graph": true, "failed": "off by 2"}' ;;
                *) echo '{"graph": true, "failed": null}' ;;
            esac ;;
        *'"do":"run"'*) fault "run $name"; echo "{\"us\": 1$RANK.5}" ;;
        *) fault quit; exit ;;
    esac
done
"#;

/// A folder for what the program writes.
struct Scene {
    folder: PathBuf,
    command: String,
}

impl Scene {
    fn new(fault: &str) -> Scene {
        static SCENES: AtomicU32 = AtomicU32::new(0);
        // Relaxed: a counter.
        let nth = SCENES.fetch_add(1, Ordering::Relaxed);
        let name = format!("overlap-gemm-peer-{}-{nth}", std::process::id());
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        let command = format!("FOLDER={} FAULT='{fault}'\n{PROGRAM}", folder.display());
        Scene { folder, command }
    }

    fn pids(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("pids")).unwrap_or_default();
        text.split_whitespace().map(str::to_owned).collect()
    }

    /// Runs two ranks, and checks that nothing is left of the program.
    fn on_ranks<T: Send>(
        &self,
        limits: Limits,
        run: impl Fn(&Group, Result<Peer>) -> T + Sync,
    ) -> [T; 2] {
        let begin = Instant::now();
        let both = thread::scope(|scope| {
            let run = &run;
            let rank = |group: Group| {
                scope.spawn(move || {
                    let place = Launch::at(group.rank(), 2, "127.0.0.1", 1);
                    run(&group, Peer::start(&self.command, &place, &group, limits))
                })
            };
            let threads: Vec<_> = Group::local(2).unwrap().into_iter().map(rank).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        assert!(begin.elapsed() < LONG, "{:?}", begin.elapsed());
        let pids = self.pids();
        assert!(!pids.is_empty());
        all_end(&pids);
        both.try_into().unwrap_or_else(|_| unreachable!("two ranks"))
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.folder);
    }
}

/// Whether a process has not ended, waited for or not.
fn runs(pid: &str) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(") ").is_some_and(|(_, state)| !state.starts_with(['Z', 'X']))
}

/// Waits until they have ended: what was killed may take a moment.
fn all_end(pids: &[String]) {
    let begin = Instant::now();
    while pids.iter().any(|pid| runs(pid)) {
        assert!(begin.elapsed() < LONG, "{pids:?}");
        thread::sleep(Duration::from_millis(5));
    }
}

fn problem(m: u64) -> Problem {
    Problem::builder(m, 64, 64).ranks(2).build().unwrap()
}

/// Who failed and how; what ran is given as its time.
fn rounds(peer: &mut Peer, group: &Group, m: u64) -> Vec<(String, Result<f64, String>)> {
    let told = peer.prepare(group, Operation::AllGatherGemm, &problem(m), 20).unwrap();
    // As in the bench: every contender that the peer names, in graphs, in two rounds.
    assert!(told.iter().all(|one| one.graph));
    let mut all: Vec<_> =
        told.into_iter().map(|one| (one.name, one.failed.map_or(Ok(0.0), Err))).collect();
    for round in 0..2 {
        for (name, outcome) in all.iter_mut().filter(|(_, outcome)| outcome.is_ok()) {
            let expected = (round > 0).then_some(1.0);
            *outcome = peer.run(group, name, true, 20, expected).unwrap();
        }
    }
    all
}

/// Wherever the program fails, and however: all ranks say the same of it, in this case and in the next.
#[test]
fn a_program_that_fails_is_killed_and_left_out() {
    let faults = [
        ("hang prepare all", "hung: preparing 64x64x64 bf16, rank 0: no answer within 4s"),
        ("hang try b 1", "hung: trying 'b' in 64x64x64 bf16, rank 1: no answer within 4s"),
        ("end try a 0", "failed: trying 'a' in 64x64x64 bf16, rank 0: it ended (exit status: 7)"),
        ("hang run b 0", "hung: a loop of 'b' (graph) in 64x64x64 bf16, rank 0: no answer"),
        ("flood run b 1", "hung: a loop of 'b' (graph) in 64x64x64 bf16, rank 1: no answer"),
        ("garble run a 1", "rank 1: it said '{\\\"nonsense\\\"' (EOF"),
        ("end run b 1", "rank 1: it ended (exit status: 7)"),
    ];
    let fails = |fault: &str, why: &str| {
        let [one, other] =
            Scene::new(fault).on_ranks(Limits { answer: SHORT, ..PATIENT }, |group, peer| {
                let mut peer = peer.unwrap();
                [64, 128].map(|m| rounds(&mut peer, group, m))
            });
        assert_eq!(one, other, "{fault}");
        let [this, next] = one;
        let failed = |(_, outcome): &(_, Result<f64, String>)| {
            outcome.as_ref().is_err_and(|told| told.contains(why))
        };
        assert!(this.iter().any(failed) && next.iter().all(failed), "{fault}: {this:?} {next:?}");
        let names: &[&str] = if fault.contains("prepare") { &["peer"] } else { &["a", "b", "c"] };
        assert!(next.iter().map(|(name, _)| name).eq(names), "{fault}: {next:?}");
    };
    thread::scope(|scope| {
        for (fault, why) in faults {
            scope.spawn(move || fails(fault, why));
        }
    });
}

/// The time is the slowest rank's, and a wrong result has none.
#[test]
fn a_program_that_does_not_fail_is_timed() {
    let both =
        Scene::new("none").on_ranks(PATIENT, |group, peer| rounds(&mut peer.unwrap(), group, 64));
    let wrong = Err("rank 0: off by 2".into());
    let expected =
        [("a", Ok(11.5)), ("b", Ok(11.5)), ("c", wrong)].map(|(name, us)| (name.into(), us));
    assert_eq!(both, [expected.to_vec(), expected.to_vec()]);
}

/// Its command is wrong, perhaps: nothing was measured, and so the bench ends on all ranks.
#[test]
fn a_program_that_does_not_start_is_an_error() {
    for fault in ["end start 0", "garble start 1", "hang start 1"] {
        let limits = Limits { start: SHORT, ..PATIENT };
        for error in Scene::new(fault).on_ranks(limits, |_, peer| peer.err()) {
            let text = error.expect("an error").to_string();
            assert!(text.contains("the start of the peer, rank"), "{fault}: {text}");
        }
    }
}

/// Asked to end, it does not.
#[test]
fn a_program_that_does_not_quit_is_killed() {
    let scene = Scene::new("hang quit 0");
    scene.on_ranks(PATIENT, |group, peer| drop(rounds(&mut peer.unwrap(), group, 64)));
}

#[test]
fn what_one_rank_cannot_do_nobody_does() {
    let tried = |graph, failed: Option<&str>| Tried { graph, failed: failed.map(str::to_owned) };
    let all = [tried(true, None), tried(false, Some("off by 2")), tried(true, Some("off by 3"))];
    assert_eq!(together(all.to_vec()), tried(false, Some("rank 1: off by 2")));
    assert_eq!(together(vec![tried(true, None); 2]), tried(true, None));
    let names = |all: &[&str]| -> Vec<Told> {
        let told = |name: &&str| Told {
            name: (*name).into(),
            kind: "gemm".into(),
            graph: false,
            failed: None,
        };
        all.iter().map(told).collect()
    };
    assert_eq!(same_names(&[names(&["a", "b"]), names(&["a", "b"])]), Ok(names(&["a", "b"])));
    let why = same_names(&[names(&["a", "b"]), names(&[])]).unwrap_err();
    assert_eq!(why, "it has '' on rank 1, and 'a, b' on rank 0");
}

const FOLDER: &str = "OVERLAP_GEMM_TEST_PEER";

/// Run by the test below, which kills it; by itself there is nothing to do.
#[test]
fn a_bench_that_is_killed() {
    let Ok(command) = std::env::var(FOLDER) else { return };
    let mut process = Process::start(&command, &[("RANK", "0".into())]).unwrap();
    let _: Value = process.hear(LONG).unwrap();
    println!("it has started");
    thread::sleep(LONG);
}

#[test]
fn nothing_of_the_program_outlives_a_bench_that_is_killed() {
    let scene = Scene::new("hang prepare 0");
    let module = module_path!().split_once("::").unwrap().1;
    let mut bench = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", &format!("{module}::a_bench_that_is_killed"), "--nocapture"])
        .env(FOLDER, &scene.command)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let stdout = std::io::BufReader::new(bench.stdout.take().unwrap());
    let mut lines = std::io::BufRead::lines(stdout).map_while(std::io::Result::ok);
    assert!(lines.any(|line| line.contains("it has started")));
    let pids = scene.pids();
    assert!(pids.len() == 2 && pids.iter().all(|pid| runs(pid)), "{pids:?}");
    bench.kill().unwrap();
    bench.wait().unwrap();
    all_end(&pids);
}
