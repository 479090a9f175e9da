//! The cost model's prediction of the measured step, beside it: drawn, and in numbers.
//!
//! What belongs here: the comparison; the caller passes the measured step and its plan. Invariant: a number comes
//! from both timelines in the same way ([`RankSummary`]), except its zero. A prediction begins at the end of the previous
//! step. A measurement begins with the first event of any rank, as in the picture, since nothing older is recorded: the
//! first look for rows, or the first push.

use std::fmt;
use std::time::Duration;

use overlap_gemm::Result;
use overlap_gemm::plan::{Engine, Plan, Strategy, Way};
use overlap_gemm::predict::{Machine, Setup, timeline};
use overlap_gemm::trace::{RankSummary, SideBySide, Timeline};
use serde::Serialize;

/// What the zeros are, for below the legend.
const ZEROS: &str = "0 is the first event of the measured step, and the end of the previous step in the prediction, on NVIDIA H200s";

/// A prediction, and how far off it is.
#[derive(Serialize)]
pub struct Prediction {
    /// The GPU that the figures are of.
    machine: Machine,
    strategy: Strategy,
    engine: Engine,
    pieces: u32,
    kernel: String,
    swizzle: u32,
    splits: u32,
    ranks: Vec<Compared>,
    timeline: Timeline,
}

/// One rank's numbers, from the zero of the step on.
#[derive(Serialize)]
struct Compared {
    rank: u32,
    /// Until its last tile was written.
    total: Figure,
    /// Until its first tile could be computed.
    first_tile: Figure,
    /// What a worker waited for rows after that, in the mean.
    waited: Figure,
    /// From the end of the worker that was through first to that of the last.
    tail: Figure,
}

/// One number, twice.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
struct Figure {
    measured_us: f64,
    predicted_us: f64,
    /// Above zero: predicted too slow. Nothing where nothing was measured.
    error_percent: Option<f64>,
}

impl Prediction {
    /// Predicts a step of `plan` under `setup`, and compares it with `measured`.
    pub fn new(
        machine: Machine,
        plan: &Plan,
        setup: &Setup,
        measured: &Timeline,
    ) -> Result<Prediction> {
        let predicted = timeline(&machine, plan, setup, 0..plan.problem().ranks())?;
        let Setup { way, kernel, swizzle, splits, .. } = setup.clone();
        let Way { strategy, engine, pieces } = way;
        let ranks = compare(measured, &predicted);
        let (kernel, timeline) = (kernel.name, predicted);
        Ok(Prediction {
            machine,
            strategy,
            engine,
            pieces,
            kernel,
            swizzle,
            splits,
            ranks,
            timeline,
        })
    }

    /// Both, to be drawn.
    pub fn beside<'a>(&'a self, measured: &'a Timeline) -> SideBySide<'a> {
        SideBySide::default()
            .with("measured", measured)
            .with_zero("predicted", &self.timeline, Duration::ZERO)
            .noting(ZEROS)
    }
}

/// The ranks that are in both.
fn compare(measured: &Timeline, predicted: &Timeline) -> Vec<Compared> {
    let summaries = predicted.summaries_since(Duration::ZERO);
    let of_rank = |rank: u32| summaries.iter().find(|summary| summary.rank == rank);
    let both = measured.summaries().into_iter().filter_map(|summary| {
        let other = of_rank(summary.rank)?;
        let [one, other] = [figures(&summary), figures(other)];
        let [total, first_tile, waited, tail] =
            std::array::from_fn(|nth| Figure::new(one[nth], other[nth]));
        Some(Compared { rank: summary.rank, total, first_tile, waited, tail })
    });
    both.collect()
}

/// Total, first tile, waited and tail of a rank, in µs.
fn figures(summary: &RankSummary) -> [f64; 4] {
    let waited = summary.waited_after_first / summary.workers.max(1);
    [summary.span, summary.first_tile, waited, summary.tail].map(|time| time.as_secs_f64() * 1e6)
}

impl Figure {
    fn new(measured_us: f64, predicted_us: f64) -> Figure {
        let error = 100.0 * (predicted_us / measured_us - 1.0);
        Figure { measured_us, predicted_us, error_percent: error.is_finite().then_some(error) }
    }
}

impl fmt::Display for Prediction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Prediction { strategy, engine, pieces, kernel, swizzle, splits, .. } = self;
        let s = if *pieces == 1 { "" } else { "s" };
        writeln!(
            f,
            "predicted by figures of NVIDIA H200: {strategy}, {engine} in {pieces} piece{s} a rank, {kernel}, swizzle \
             {swizzle}, K in {splits} slices"
        )?;
        writeln!(f, "  {:<20} {:>12} {:>12} {:>9}", "", "measured µs", "predicted µs", "error")?;
        for it in &self.ranks {
            let all = [
                ("total", it.total),
                ("first tile", it.first_tile),
                ("waited, per worker", it.waited),
                ("tail", it.tail),
            ];
            writeln!(f, "rank {}", it.rank)?;
            for (name, Figure { measured_us, predicted_us, error_percent }) in all {
                write!(f, "  {name:<20} {measured_us:>12.1} {predicted_us:>12.1}")?;
                match error_percent {
                    Some(error) => writeln!(f, " {error:>+8.1}%")?,
                    None => writeln!(f, " {:>9}", "–")?,
                }
            }
        }
        writeln!(
            f,
            "times from the step's first event on, predicted ones from the end of the step before; waited: for rows, after \
             the first tile, in the mean; error: predicted ÷ measured − 1"
        )
    }
}

#[cfg(test)]
mod tests {
    use overlap_gemm::plan::Problem;
    use overlap_gemm::predict::estimate;

    use super::*;

    fn setup(machine: &Machine, strategy: Strategy) -> (Setup, Plan) {
        let problem = Problem::builder(4096, 1792, 4096).ranks(2).build().unwrap();
        let setup = Setup::usual(machine, &problem, strategy).unwrap();
        let plan = setup.plan(&problem).unwrap();
        (setup, plan)
    }

    /// What one machine would take stands for what was measured, `late` µs after the clock began.
    fn beside(measured: &Machine, late: u64, strategy: Strategy) -> (Prediction, Timeline) {
        let (setup, plan) = setup(measured, strategy);
        let mut step = timeline(measured, &plan, &setup, 0..2).unwrap();
        let shift = |time: &mut Duration| *time += Duration::from_micros(late);
        for tile in &mut step.tiles {
            [&mut tile.wait_begin, &mut tile.ready, &mut tile.done].into_iter().for_each(shift);
        }
        for sent in &mut step.transfers {
            [&mut sent.begin, &mut sent.signalled].into_iter().for_each(shift);
        }
        (Prediction::new(Machine::h200(), &plan, &setup, &step).unwrap(), step)
    }

    #[test]
    fn predicted_numbers_are_those_of_the_estimate() {
        for strategy in [Strategy::Fused, Strategy::Sequential] {
            let machine = Machine::h200();
            let (setup, plan) = setup(&machine, strategy);
            let estimate = estimate(&machine, &plan, &setup).unwrap();
            let (prediction, _) = beside(&machine.with_link(100.0), 0, strategy);
            let first = &prediction.ranks[0];
            let near = |figure: Figure, time: Duration| {
                (figure.predicted_us - 1e6 * time.as_secs_f64()).abs() < 0.01
            };
            assert_eq!(prediction.ranks.len(), 2);
            assert!(near(first.total, estimate.total), "{:?} {estimate:?}", first.total);
            assert!(near(first.first_tile, estimate.first_tile), "{:?}", first.first_tile);
            assert!(near(first.tail, estimate.tail), "{:?}", first.tail);
            if strategy == Strategy::Fused {
                assert!(near(first.waited, estimate.waited), "{:?} {estimate:?}", first.waited);
            }
        }
    }

    #[test]
    fn what_is_measured_counts_from_its_first_event_on() {
        // The same machine: all that differs is what lies before the first event.
        let (now, _) = beside(&Machine::h200(), 0, Strategy::Fused);
        let (late, _) = beside(&Machine::h200(), 7_000, Strategy::Fused);
        // The first event is a copy, or a block that begins to wait for its rows.
        let Machine { own_us, launch_us, begin_us, .. } = Machine::h200();
        let begin = begin_us.min(own_us + launch_us);
        for (one, other) in now.ranks.iter().zip(&late.ranks) {
            assert_eq!(one.total, other.total, "whenever the clock began");
            assert!((one.total.predicted_us - one.total.measured_us - begin).abs() < 0.01);
            assert_eq!(one.tail.error_percent.unwrap_or_default(), 0.0);
            assert_eq!(one.waited.measured_us, one.waited.predicted_us);
        }
    }

    #[test]
    fn errors_are_told_in_text_and_json() {
        let (prediction, step) = beside(&Machine::h200().with_link(100.0), 20, Strategy::Fused);
        let total = prediction.ranks[1].total;
        let error = total.error_percent.unwrap();
        assert!(error < -20.0, "a slower link takes longer: {total:?}");
        let json = serde_json::to_value(&prediction).unwrap();
        assert_eq!(json["ranks"][1]["total"]["error_percent"].as_f64(), Some(error));
        assert_eq!((&json["strategy"], &json["pieces"]), (&"fused".into(), &2.into()));
        let text = prediction.to_string();
        assert!(text.contains(&format!("{error:+.1}%")), "{text}");
        assert!(text.contains("rank 1\n  total "), "{text}");

        let both = prediction.beside(&step);
        let picture = both.to_svg("a step");
        let heads: Vec<_> = picture.match_indices("\">rank ").map(|(at, _)| at + 2).collect();
        let heads = heads.iter().map(|&at| picture[at..].split('<').next().unwrap());
        let expected =
            ["rank 0: measured", "rank 0: predicted", "rank 1: measured", "rank 1: predicted"];
        // The legend has names of ranks as well.
        let heads: Vec<_> = heads.filter(|head| head.contains(':')).collect();
        assert_eq!(heads, expected);
        assert!(picture.contains(ZEROS), "{picture}");
    }

    #[test]
    fn nothing_measured_is_no_error_of_infinity() {
        assert_eq!(Figure::new(0.0, 3.0).error_percent, None);
        assert_eq!(Figure::new(4.0, 3.0).error_percent, Some(-25.0));
    }
}
