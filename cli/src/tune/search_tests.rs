//! The search, over made-up hardware.

use std::collections::BTreeSet;

use overlap_gemm::plan::{ClusterShape, Problem, TileShape};
use overlap_gemm::tune::ways;
use proptest::prelude::*;

use super::{Strategy, *};

fn multiplying(kernel: &str, swizzle: u32) -> Multiplying {
    Multiplying {
        kernel: kernel.into(),
        tile: TileShape { m: 128, n: 128 },
        cluster: ClusterShape { m: 1, n: 1 },
        swizzle,
        splits: 1,
    }
}

/// A problem whose shards have `kib` KiB.
fn known(kib: u64, ranks: u32) -> Known {
    let kernels: Vec<_> = (0..12).map(|nth| multiplying(&format!("kernel {nth}"), 2)).collect();
    let rows = (kib / 16).max(1);
    // 16 KiB a row.
    let problem = Problem::builder(rows * u64::from(ranks), 3584, 8192).ranks(ranks.into());
    let ways = ways(&problem.build().unwrap());
    Known {
        untuned: Candidate {
            way: ways[0],
            multiplying: kernels[0].clone(),
            by_model: true,
            untuned: true,
        },
        ways,
        most_rows: rows as u32,
        of_rank: kernels[3..].to_vec(),
        whole: kernels,
        m: rows as u32 * ranks,
    }
}

/// A track where `time` is the time of a candidate.
struct MadeUp<F> {
    time: F,
    /// The candidates that ran, heat by heat.
    heats: Vec<(Heat, Vec<Candidate>)>,
    /// After how many heats it is time to stop.
    stop_after: usize,
}

impl<F: Fn(&Candidate, usize) -> Outcome> Track<()> for MadeUp<F> {
    fn run(&mut self, candidates: &[Candidate], heat: Heat) -> Result<Option<Vec<Outcome>>, ()> {
        if self.heats.len() == self.stop_after {
            return Ok(None);
        }
        let nth = self.heats.len();
        self.heats.push((heat, candidates.to_vec()));
        Ok(Some(candidates.iter().map(|candidate| (self.time)(candidate, nth)).collect()))
    }
}

fn run<F: Fn(&Candidate, usize) -> Outcome>(known: &Known, time: F) -> (Found, MadeUp<F>) {
    let mut track = MadeUp { time, heats: Vec::new(), stop_after: usize::MAX };
    let found = search(known, &mut track).unwrap().unwrap();
    (found, track)
}

fn timed(us: f64) -> Outcome {
    Outcome::Timed([vec![us; 3], vec![us + 1.0; 3]])
}

/// The best has two pieces, kernel 4 and a swizzle of 8.
fn truth(candidate: &Candidate) -> f64 {
    let Candidate { way, multiplying, .. } = candidate;
    let way = match way.strategy {
        Strategy::Fused => 100.0 + 5.0 * f64::from(way.pieces.abs_diff(2)),
        Strategy::Pipelined => 108.0,
        _ => 140.0,
    };
    let kernel: i32 = multiplying.kernel["kernel ".len()..].parse().unwrap();
    let sweep = f64::from(multiplying.swizzle.abs_diff(8)) / 4.0;
    way + f64::from((kernel - 4).abs()) + sweep
}

#[test]
fn the_best_is_found_though_clocks_drift_and_few_are_tried() {
    // Every heat is slower than the one before.
    let drifting =
        |candidate: &Candidate, nth: usize| timed(truth(candidate) * (1.0 + 0.2 * nth as f64));
    let (found, track) = run(&known(32 << 10, 2), drifting);
    let best = &found.measured[0];
    assert_eq!((best.way.pieces, best.way.strategy), (2, Strategy::Fused));
    assert_eq!((&*best.multiplying.kernel, best.multiplying.swizzle), ("kernel 4", 8));
    assert!(found.failed.is_empty());
    let names: Vec<_> = track.heats.iter().map(|(heat, _)| heat.name).collect();
    assert_eq!(names, ["ways", "kernels", "sweeps", "finals"]);
    assert_eq!(names.len() as u64, HEATS);
    let (last, finalists) = &track.heats[3];
    assert!(finalists.iter().any(|one| one.untuned) && finalists.len() <= FINALISTS + 1);
    assert_eq!(last.give_up, f64::INFINITY);
    // All times are those of the last heat's clocks.
    let scale = best.graph.unwrap().us / truth(&candidate_of(best));
    for one in &found.measured {
        let ratio = one.graph.unwrap().us / truth(&candidate_of(one)) / scale;
        assert!((ratio - 1.0).abs() < 0.01, "{one:?}");
    }
    assert!(found.measured.len() <= 24, "{}", found.measured.len());
}

#[test]
fn who_is_wrong_is_told_of_and_never_chosen() {
    let wrong = |candidate: &Candidate, _| match candidate.multiplying.kernel.as_str() {
        "kernel 4" => Outcome::Failed("D[0, 0] is NaN".into()),
        _ => timed(truth(candidate)),
    };
    let (found, track) = run(&known(32 << 10, 2), wrong);
    assert!(found.measured.iter().all(|one| one.multiplying.kernel != "kernel 4"));
    assert!(found.failed.iter().all(|(_, why)| why.contains("NaN")) && !found.failed.is_empty());
    let ran = |kernel: &str| {
        let all = track.heats.iter().flat_map(|(_, all)| all);
        all.filter(|one| one.multiplying.kernel == kernel)
            .map(|one| format!("{one:?}"))
            .collect::<Vec<_>>()
    };
    let once: BTreeSet<_> = ran("kernel 4").into_iter().collect();
    assert_eq!(once.len(), ran("kernel 4").len(), "nobody who was wrong runs again");

    // Right in every heat but the last.
    let late = |candidate: &Candidate, nth| match (nth, truth(candidate) < 101.0) {
        (3, true) => Outcome::Failed("late".into()),
        _ => timed(truth(candidate)),
    };
    let (found, _) = run(&known(32 << 10, 2), late);
    assert!(found.measured.iter().all(|one| truth(&candidate_of(one)) >= 101.0));

    let (found, track) = run(&known(32 << 10, 2), |_, _| Outcome::Failed("all".into()));
    assert!(found.measured.is_empty() && track.heats.len() == 1, "{}", track.heats.len());
}

#[test]
fn a_search_stops_when_it_is_time() {
    for stop_after in 0..4 {
        let time = |candidate: &Candidate, _| timed(truth(candidate));
        let mut track = MadeUp { time, heats: Vec::new(), stop_after };
        assert!(search(&known(1 << 10, 2), &mut track).unwrap().is_none());
    }
}

proptest! {
    #[test]
    fn what_is_chosen_was_in_the_finals_and_nobody_is_tried_twice(
        seed in any::<u64>(), kib in 1u64..100_000, ranks in 2u32..9,
    ) {
        let noise = |candidate: &Candidate| {
            use std::hash::{DefaultHasher, Hash, Hasher};
            let mut hasher = DefaultHasher::new();
            (seed, format!("{:?}", (&candidate.way, &candidate.multiplying))).hash(&mut hasher);
            50.0 + (hasher.finish() % 1000) as f64 / 10.0
        };
        let known = known(kib, ranks);
        let (found, track) = run(&known, |candidate, _| timed(noise(candidate)));
        let finals = &track.heats.last().unwrap().1;
        prop_assert!(finals.contains(&candidate_of(&found.measured[0])));
        let least = found.measured.iter().map(|one| noise(&candidate_of(one))).fold(f64::MAX, f64::min);
        prop_assert!((noise(&candidate_of(&found.measured[0])) - least).abs() < 1e-9);
        for (nth, (_, candidates)) in track.heats.iter().enumerate() {
            // But for the best so far, which runs along.
            for new in candidates.iter().skip(usize::from(nth > 0)) {
                let before = track.heats[..nth].iter().flat_map(|(_, all)| all);
                prop_assert!(nth + 1 == track.heats.len() || before.clone().all(|old| old != new));
            }
        }
    }
}
