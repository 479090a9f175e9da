//! Handles where a rank is stopped, strangers are silent, or files are few.
//!
//! Some ranks here are made up: they tell of a door, and then do less than a rank does.

use std::fs::File;
use std::process::Command;
use std::sync::mpsc::channel;

use rustix::net::listen;
use rustix::process::setrlimit;

use super::*;

/// For waits that should end by themselves.
const LONG: Duration = Duration::from_secs(60);

/// Runs `run` on a thread a rank, and gives what each gave; a rank that is still at it after a while fails the test.
fn on_ranks<T: Send + 'static>(
    groups: Vec<Group>,
    run: impl Fn(&Group) -> T + Clone + Send + 'static,
) -> Vec<T> {
    let (tell, told) = channel();
    let count = groups.len();
    for group in groups {
        let (tell, run) = (tell.clone(), run.clone());
        thread::spawn(move || drop(tell.send((group.rank(), run(&group)))));
    }
    let mut all: Vec<_> =
        (0..count).map(|_| told.recv_timeout(LONG).expect("a rank waits for ever")).collect();
    all.sort_by_key(|(rank, _)| *rank);
    all.into_iter().map(|(_, one)| one).collect()
}

fn made_up_door() -> (Door, UnixListener) {
    let name = random_bytes().unwrap();
    let door = Door { name, key: random_bytes().unwrap(), handles: 0 };
    let listener = door.listen().unwrap();
    (door, listener)
}

fn knock(door: &Door) -> rustix::io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    connect(&socket, &SocketAddrUnix::new_abstract_name(&door.name())?)?;
    Ok(socket)
}

fn some_files(count: usize) -> Vec<File> {
    (0..count).map(|_| File::open("/dev/null").unwrap()).collect()
}

/// As of a rank that was stopped while others came to its door: nobody else is blamed for it.
#[test]
fn a_door_without_room_is_waited_for_until_the_limit() {
    const LIMIT: Duration = Duration::from_secs(3);
    let begin = Instant::now();
    let errors = on_ranks(Group::local(4).unwrap(), |group| {
        if group.rank() == 1 {
            let (door, listener) = made_up_door();
            listen(&listener, 0).unwrap();
            let mut waiting = Vec::new();
            let full = loop {
                match knock(&door) {
                    Ok(socket) => waiting.push(socket),
                    Err(error) => break error,
                }
            };
            assert_eq!(full, Errno::AGAIN);
            group.all_gather("memory", &serde_json::to_vec(&door).unwrap(), LONG).unwrap();
            while group.check().is_ok() {
                thread::sleep(LOOK);
            }
            return None;
        }
        let files = some_files(2);
        let handles: Vec<_> = files.iter().map(AsFd::as_fd).collect();
        Some(group.exchange_handles("memory", &handles, LIMIT).unwrap_err())
    });
    assert!((LIMIT..LONG / 2).contains(&begin.elapsed()), "{:?}: {errors:?}", begin.elapsed());
    for error in errors.into_iter().flatten() {
        let text = error.to_string();
        assert!(text.contains("rank 1 did not come to the exchange 'memory' within 3s"), "{text}");
    }
}

/// More of them than there is time to wait for one after the other.
#[test]
fn silent_strangers_hold_nobody_up() {
    const LIMIT: Duration = Duration::from_secs(20);
    on_ranks(Group::local(3).unwrap(), |group| {
        if group.rank() < 2 {
            let files = some_files(1);
            let all = group.exchange_handles("memory", &[files[0].as_fd()], LIMIT).unwrap();
            assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 0]);
            return;
        }
        let (door, _listener) = made_up_door();
        let parts = group.all_gather("memory", &serde_json::to_vec(&door).unwrap(), LIMIT).unwrap();
        let doors = parts[..2].iter().map(|part| serde_json::from_slice::<Door>(part).unwrap());
        // Some are there before the rank comes, more come than a door has room for, and all stay.
        let mut strangers = Vec::new();
        for door in doors {
            for _ in 0..3 * STRANGERS {
                strangers.push(UnixStream::from(knock(&door).unwrap()));
            }
            let until = after(LIMIT);
            while let Err(error) = door.send(2, &[]) {
                assert!(Instant::now() < until, "{error}");
            }
        }
        group.barrier("memory", LONG).unwrap();
    });
}

/// Leaves room for `spare` more open files: that many numbers below the limit are free.
fn leave(spare: u64) {
    let open = std::fs::read_dir("/proc/self/fd").unwrap();
    let names = open.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let used: Vec<u64> = names.map(|name| name.parse().unwrap()).collect();
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = (0..).filter(|number| !used.contains(number)).nth(spare as usize);
    setrlimit(Resource::Nofile, limit).unwrap();
}

const VARIABLE: &str = "OVERLAP_GEMM_TEST_FILES";

/// Run by the test below, in a process with few files; by itself there is nothing to do.
#[test]
fn ranks_with_few_files() {
    if std::env::var(VARIABLE).is_err() {
        return;
    }
    let all = getrlimit(Resource::Nofile);
    let (mut refused, mut through) = (0, 0);
    // A rank needs a listener, eight files, their duplicates, and the same of three others.
    for first in (0..200).step_by(8) {
        let spare = first + u64::from(random_bytes().unwrap()[0]) % 8;
        let (begin, files) = (Instant::now(), some_files(8));
        let groups = Group::local(4).unwrap();
        leave(spare);
        let errors = thread::scope(|scope| {
            let threads: Vec<_> = groups
                .iter()
                .map(|group| {
                    let files = &files;
                    scope.spawn(move || {
                        let handles: Vec<_> = files.iter().map(AsFd::as_fd).collect();
                        group.exchange_handles("memory", &handles, LONG).map(drop)
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
        });
        setrlimit(Resource::Nofile, all).unwrap();
        assert!(begin.elapsed() < LONG / 2, "{spare}: {errors:?}");
        if errors.iter().all(Result::is_ok) {
            through += 1;
            continue;
        }
        refused += 1;
        for error in errors {
            let text = error.expect_err("a rank goes on without the others").to_string();
            assert!(text.contains("open files") && text.contains("ulimit -n"), "{spare}: {text}");
        }
    }
    assert!(refused > 10 && through > 0, "{refused} refused, {through} not");
    println!("all were told");
}

#[test]
fn few_files_are_named_at_once_on_every_rank() {
    for _ in 0..2 {
        let output = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "group::handles::tests::ranks_with_few_files", "--nocapture"])
            .env(VARIABLE, "1")
            .output()
            .unwrap();
        let said = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let text = said(&output.stdout) + &said(&output.stderr);
        assert!(output.status.success() && text.contains("all were told"), "{text}");
    }
}
