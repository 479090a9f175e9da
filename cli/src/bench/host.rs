//! `overlap-gemm bench all-gather-gemm --host`: the same on threads of this machine, in one process.
//!
//! What belongs here: the contenders on threads, and their measurement. Invariant: as between GPUs, each contender runs one
//! loop in each round, all loops have the same length, and a wrong result has no time.

use indicatif::ProgressBar;
use overlap_gemm::host::Stream;
use overlap_gemm::plan::{MAX_TILE_EXTENT, Plan, PlanOptions, Problem, TileShape, Tiling};

use super::cases::{Case, spread};
use super::lineup::Lineup;
use super::machine::Machine;
use super::report::{CaseReport, Kind, Row, Run, Shown};
use super::turns::turn;
use super::wanted::{Gatherer, OnThreads};
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads::{Steps, check_link, cores, default_options, time_together};
use crate::progress;

/// The least number of tiles for each thread where tiles are as high as A, and their least number of columns.
const TILES_A_WORKER: u32 = 4;
const LEAST_COLUMNS: u32 = 16;

/// Rounds that are not counted.
const WARM_UP_ROUNDS: usize = 1;

/// A contender in one case.
struct Entrant {
    who: Gatherer,
    what: String,
    options: PlanOptions,
    /// One for all ranks, or one for each where ranks are independent.
    groups: Vec<Steps>,
    times: Vec<f64>,
    failed: Option<String>,
}

/// One problem and its contenders.
struct Field<'a> {
    case: &'a Case,
    problem: Problem,
    lineup: Lineup<Entrant>,
}

/// Runs all cases and shows the results.
pub fn run(wanted: &OnThreads, mut shown: Shown, interrupt: Interrupt) -> Result<(), Failure> {
    // A contender that cannot be planned is refused before anything is measured.
    let enter = |case| Field::enter(case, wanted);
    let fields = wanted.cases.iter().map(enter).collect::<Result<Vec<_>, _>>()?;
    let running: usize = fields.iter().map(|field| field.lineup.entrants.len()).sum();
    let loops = running * (WARM_UP_ROUNDS + wanted.rounds);
    let bar = progress::bar(loops as u64, "loops", &shown.output);
    bar.tick();
    let machine = Machine::of_threads(wanted.link);
    let mut run = Run::begin(machine, wanted.ranks, wanted.steps, wanted.rounds);
    let outcome = fields.into_iter().try_for_each(|field| {
        run.cases.push(field.measure(wanted, &bar, interrupt)?);
        shown.keep(&run)
    });
    bar.finish_and_clear();
    shown.end(run, outcome)
}

impl<'a> Field<'a> {
    fn enter(case: &'a Case, wanted: &OnThreads) -> Result<Field<'a>, Failure> {
        let problem = spread(&case.problem, wanted.ranks)?;
        let mut lineup: Lineup<Entrant> = Lineup::new();
        for &who in &wanted.contenders {
            let new = Entrant::new(who, &problem, wanted)?;
            let is_same =
                |one: &Entrant| one.options == new.options && one.groups.len() == new.groups.len();
            if !lineup.add_twin(who.name(), &new.what, is_same) {
                lineup.entrants.push(new);
            }
        }
        Ok(Field { case, problem, lineup })
    }

    fn measure(
        self,
        wanted: &OnThreads,
        bar: &ProgressBar,
        interrupt: Interrupt,
    ) -> Result<CaseReport, Failure> {
        let Field { case, problem, mut lineup } = self;
        for round in 0..WARM_UP_ROUNDS + wanted.rounds {
            for nth in turn(round, lineup.entrants.len()) {
                let entrant = &mut lineup.entrants[nth];
                bar.inc(1);
                if entrant.failed.is_some() {
                    continue;
                }
                match time_together(&entrant.groups, wanted.link, interrupt)? {
                    Ok(us) if round >= WARM_UP_ROUNDS => entrant.times.push(us),
                    Ok(_) => {}
                    Err(why) => (entrant.failed, entrant.times) = (Some(why), Vec::new()),
                }
            }
        }
        let rows = lineup.into_rows(Entrant::into_row);
        Ok(CaseReport { name: case.to_string(), rows, problem })
    }
}

impl Entrant {
    fn into_row(self) -> Row {
        let Entrant { who, what, times, failed, .. } = self;
        let kind = if who == Gatherer::Own { Kind::Gemm } else { Kind::AllGatherGemm };
        Row { failed, rounds_us: times, ..Row::new(who.name(), kind, false, what) }
    }

    fn new(who: Gatherer, problem: &Problem, wanted: &OnThreads) -> Result<Entrant, Failure> {
        if who == Gatherer::Own {
            return Entrant::alone(problem, wanted);
        }
        let usual = default_options(problem)?;
        let options = match who {
            Gatherer::Sequential => after_all_rows(problem, usual, cores())?,
            _ => PlanOptions { pieces: wanted.chunks.or(usual.pieces), ..usual },
        };
        let options = Plan::new(problem, options)?.options();
        check_link(problem, options, wanted.link)?;
        let steps = Steps::new(problem, options, 1 + wanted.steps, wanted.seed).in_place();
        Ok(Entrant::of(who, steps.describe(), options, vec![steps]))
    }

    /// The plain GEMM, all ranks at once, each on as many threads as in a step.
    fn alone(problem: &Problem, wanted: &OnThreads) -> Result<Entrant, Failure> {
        let alone = spread(problem, 1)?;
        let options = default_options(&alone)?;
        let workers = Stream::for_ranks(wanted.ranks).workers();
        let of_rank = |rank: u64| {
            let seed = wanted.seed.wrapping_add(rank);
            let steps = Steps::new(&alone, options, 1 + wanted.steps, seed);
            steps.in_place().with_workers(workers)
        };
        let groups: Vec<Steps> = (0..u64::from(wanted.ranks)).map(of_rank).collect();
        let what = groups.first().map(Steps::describe).unwrap_or_default();
        Ok(Entrant::of(Gatherer::Own, what, options, groups))
    }

    fn of(who: Gatherer, what: String, options: PlanOptions, groups: Vec<Steps>) -> Entrant {
        Entrant { who, what, options, groups, times: Vec::new(), failed: None }
    }
}

/// The plan of `sequential`, whose GEMM waits for all rows: each tile is as high as A, and so needs the last row. Tiles are
/// narrow, so that each thread of a rank has some.
fn after_all_rows(
    problem: &Problem,
    usual: PlanOptions,
    cores: u32,
) -> Result<PlanOptions, Failure> {
    let (m, most) = (problem.m(), MAX_TILE_EXTENT);
    if m > most {
        return Err(Failure::Usage(format!(
            "m is {m}, but on threads nothing waits for more than {most} rows: leave out 'sequential', or give fewer rows"
        )));
    }
    let workers = (cores / problem.ranks()).max(1);
    let narrow = problem.n() / workers.saturating_mul(TILES_A_WORKER);
    let tile = TileShape { m, n: usual.tiling.tile.n.min(narrow.max(LEAST_COLUMNS)) };
    let tiling = Tiling { tile, ..usual.tiling };
    Ok(PlanOptions::new().with_pieces(1).with_tiling(tiling))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(contenders: &[Gatherer]) -> OnThreads {
        let shapes = ["40x24x32".parse().unwrap()];
        let types = ["bf16".parse().unwrap()];
        let layout = overlap_gemm::plan::BLayout::Nk;
        OnThreads {
            cases: Case::of_shapes(&shapes, &types, layout, None).unwrap(),
            ranks: 3,
            contenders: contenders.to_vec(),
            steps: 2,
            rounds: 3,
            chunks: None,
            link: None,
            seed: 1,
        }
    }

    #[test]
    fn every_contender_has_a_time_a_round() {
        let wanted = wanted(&Gatherer::ON_THREADS);
        let interrupt = Interrupt::none();
        let field = Field::enter(&wanted.cases[0], &wanted).unwrap();
        let report = field.measure(&wanted, &ProgressBar::hidden(), interrupt).unwrap();
        let names: Vec<&str> = report.rows.iter().map(|row| row.who.as_str()).collect();
        assert_eq!(names, ["own", "sequential", "fused"]);
        assert_eq!(report.problem.ranks(), 3);
        for row in &report.rows {
            assert_eq!((row.rounds_us.len(), &row.failed), (3, &None), "{row:?}");
            assert!(row.rounds_us.iter().all(|us| *us > 0.0), "{row:?}");
        }
        assert!(report.rows[1].what.contains("1 chunk a rank, tiles of 40 × "), "{report}");
    }

    #[test]
    fn all_rows_come_first_where_every_tile_needs_all() {
        let problem = Problem::builder(1000, 512, 256).ranks(2).build().unwrap();
        let usual = PlanOptions { tiling: Tiling::of_tile(256, 128), ..PlanOptions::default() };
        let of = |cores| after_all_rows(&problem, usual, cores).unwrap().tiling.tile;
        assert_eq!(of(2), TileShape { m: 1000, n: 128 });
        assert_eq!(of(8), TileShape { m: 1000, n: 32 }, "four threads a rank");
        assert_eq!(of(1 << 20), TileShape { m: 1000, n: 16 });
        assert_eq!(of(1), of(2), "fewer cores than ranks");
    }

    #[test]
    fn what_no_tile_is_high_enough_for_is_refused() {
        let problem = Problem::builder(20_000, 8, 8).ranks(2).build().unwrap();
        let refused = after_all_rows(&problem, PlanOptions::default(), 2).unwrap_err();
        assert!(refused.to_string().contains("m is 20000"), "{refused}");
    }
}
