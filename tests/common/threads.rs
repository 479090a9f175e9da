//! Ranks, or whatever else a test has several of, each on a thread of its own.

/// Runs `run` with each, and returns what it returns, in order; panics if any did.
pub fn on_threads<Each: Send, T: Send>(
    all: impl IntoIterator<Item = Each>,
    run: impl Fn(Each) -> T + Sync,
) -> Vec<T> {
    let run = &run;
    std::thread::scope(|scope| {
        let threads: Vec<_> = all.into_iter().map(|each| scope.spawn(move || run(each))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}
