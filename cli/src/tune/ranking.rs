//! The times of the candidates of one problem, and their order: the first is the one to take.
//!
//! What belongs here: arithmetic over times. Invariant: a candidate that was dropped early is never the first, however short
//! its few times were.

use overlap_gemm::plan::Way;
use overlap_gemm::tune::{Multiplying, Times};
use serde::Serialize;

/// The time of a step, launched in one way.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct Time {
    /// Microseconds a step of the slowest rank: the median over the rounds.
    pub us: f64,
    /// How far the quartiles of the rounds are apart, as a fraction of the median.
    pub spread: f64,
    /// The number of rounds; fewer for a candidate that was dropped early.
    pub rounds: u32,
}

impl Time {
    /// To the nanosecond, and the spread to a hundredth of a per cent: what is written is what is read.
    pub fn new(us: f64, spread: f64, rounds: u32) -> Time {
        Time { us: (us * 1e3).round() / 1e3, spread: (spread * 1e4).round() / 1e4, rounds }
    }
}

/// One candidate and its times.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Measured {
    pub way: Way,
    pub multiplying: Multiplying,
    /// The kernel and its options are the cost model's choice for this order.
    pub by_model: bool,
    /// This is the plan without a table.
    pub untuned: bool,
    /// In CUDA graphs.
    pub graph: Option<Time>,
    /// Launched one by one.
    pub plain: Option<Time>,
}

impl Measured {
    /// As tables have it.
    pub fn us(&self) -> Times {
        let [graph, plain] = self.times().map(|time| Some(time?.us));
        Times { graph, plain }
    }

    /// In graphs, and launched one by one.
    fn times(&self) -> [Option<Time>; 2] {
        [self.graph, self.plain]
    }

    /// The rounds of each way that was measured, the fewest of them.
    fn rounds(&self) -> u32 {
        self.times().iter().flatten().map(|time| time.rounds).min().unwrap_or(0)
    }

    /// How long it takes as a multiple of the fastest finalist of `all`, launched in the way that suits it less.
    /// Infinity if it was not launched in every way that others were.
    pub fn ratio(&self, all: &[Measured]) -> f64 {
        Field::of(all).ratio(self)
    }

    /// The one to take first, then the others in order; those that were dropped early come last.
    pub fn in_order(mut all: Vec<Measured>) -> Vec<Measured> {
        let field = Field::of(&all);
        let key = |one: &Measured| (!field.has_finalist(one), field.ratio(one));
        // Stable: among equals the order in which they were tried.
        all.sort_by(|one, other| {
            let ((one_early, one), (other_early, other)) = (key(one), key(other));
            one_early.cmp(&other_early).then(one.total_cmp(&other))
        });
        all
    }
}

/// The times that candidates are compared with.
struct Field {
    /// The most rounds of any candidate.
    rounds: u32,
    /// The least time of the candidates with these rounds, by launch mode; infinity if there is none.
    least: [f64; 2],
}

impl Field {
    fn of(all: &[Measured]) -> Field {
        let rounds = all.iter().map(Measured::rounds).max().unwrap_or(0);
        let mut field = Field { rounds, least: [f64::INFINITY; 2] };
        for one in all.iter().filter(|one| one.rounds() == rounds) {
            for (least, time) in field.least.iter_mut().zip(one.times()) {
                *least = time.map_or(*least, |time| least.min(time.us));
            }
        }
        field
    }

    fn has_finalist(&self, one: &Measured) -> bool {
        one.rounds() >= self.rounds
    }

    fn ratio(&self, one: &Measured) -> f64 {
        let mut worst = 0.0f64;
        for (time, least) in one.times().into_iter().zip(self.least) {
            match time {
                Some(time) if least.is_finite() => worst = worst.max(time.us / least),
                None if least.is_finite() => return f64::INFINITY,
                _ => {}
            }
        }
        if worst > 0.0 { worst } else { f64::INFINITY }
    }
}

#[cfg(test)]
pub mod made_up {
    use overlap_gemm::plan::{ClusterShape, TileShape};
    use overlap_gemm::plan::{Engine, Strategy};

    use super::*;

    /// Fused, copies on one stream, a kernel of that name.
    pub fn measured(
        kernel: &str,
        pieces: u32,
        graph: Option<Time>,
        plain: Option<Time>,
    ) -> Measured {
        let engine = Engine::CopyEngines { streams: 1 };
        Measured {
            way: Way { strategy: Strategy::Fused, engine, pieces },
            multiplying: Multiplying {
                kernel: kernel.into(),
                tile: TileShape { m: 128, n: 128 },
                cluster: ClusterShape { m: 1, n: 1 },
                swizzle: 2,
                splits: 1,
            },
            by_model: true,
            untuned: pieces == 1,
            graph,
            plain,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::made_up::measured;
    use super::*;

    #[test]
    fn the_first_is_the_least_behind_in_whichever_way_suits_it_less() {
        let times = |name: &str, graph: f64, plain: f64, rounds| {
            let [graph, plain] = [graph, plain].map(|us| Some(Time::new(us, 0.01, rounds)));
            measured(name, 1, graph, plain)
        };
        let all = Measured::in_order(vec![
            times("good in graphs", 100.0, 130.0, 7),
            times("good everywhere", 103.0, 102.0, 7),
            times("good one by one", 120.0, 100.0, 7),
            times("dropped early", 90.0, 90.0, 2),
        ]);
        let names: Vec<_> = all.iter().map(|one| &*one.multiplying.kernel).collect();
        assert_eq!(
            names,
            ["good everywhere", "good one by one", "good in graphs", "dropped early"]
        );
        assert!((all[0].ratio(&all) - 1.03).abs() < 1e-9);
        assert!((all[3].ratio(&all) - 0.9).abs() < 1e-9, "told, but not taken");
        assert_eq!(all[0].us(), Times { graph: Some(103.0), plain: Some(102.0) });
        let one_way = Measured { plain: None, ..all[0].clone() };
        assert_eq!(one_way.ratio(&all), f64::INFINITY);
    }
}
