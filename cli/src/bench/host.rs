//! `overlap-gemm bench all-gather-gemm --host`: the same on threads of this machine, in one process.
//!
//! What belongs here: the contenders on threads, and their measurement. Invariant: as between GPUs, each contender runs one
//! loop in each round, all loops have the same length, and a wrong result has no time.

use indicatif::ProgressBar;
use overlap_gemm::host::{Link, Stream};
use overlap_gemm::plan::{Plan, PlanOptions, Problem, Strategy};

use super::cases::{Case, spread};
use super::machine::Machine;
use super::report::{CaseReport, Kind, Row, Run};
use super::turns::turn;
use super::wanted::Contender;
use crate::exit::Failure;
use crate::interrupt::Interrupt;
use crate::on_threads::{Steps, check_link, default_options, time_together};
use crate::output::Output;
use crate::progress;

/// Rounds that are not counted.
const WARM_UP_ROUNDS: usize = 1;

/// All-gather + GEMM on threads.
pub struct OnThreads {
    pub cases: Vec<Case>,
    pub ranks: u32,
    pub contenders: Vec<Contender>,
    /// Steps in one loop; one more runs before them.
    pub steps: usize,
    pub rounds: usize,
    /// Chunks a shard.
    pub chunks: Option<u32>,
    pub link: Option<Link>,
    pub seed: u64,
}

/// A contender in one case.
struct Entrant {
    /// What is shown of it.
    row: Row,
    /// One for all ranks, or one for each where ranks are independent.
    groups: Vec<Steps>,
}

/// One problem and its contenders.
struct Field<'a> {
    case: &'a Case,
    problem: Problem,
    entrants: Vec<Entrant>,
}

/// Runs all cases and shows the results.
pub fn run(wanted: &OnThreads, mut output: Output, interrupt: Interrupt) -> Result<(), Failure> {
    // A contender that cannot be planned is refused before anything is measured.
    let enter = |case| Field::enter(case, wanted);
    let fields = wanted.cases.iter().map(enter).collect::<Result<Vec<_>, _>>()?;
    let running: usize = fields.iter().map(|field| field.entrants.len()).sum();
    let loops = running * (WARM_UP_ROUNDS + wanted.rounds);
    let bar = progress::bar(loops as u64, "loops", &output);
    bar.tick();
    let machine = Machine::of_threads(wanted.link);
    let mut run = Run::begin(machine, wanted.ranks, wanted.steps, wanted.rounds);
    let outcome = fields.into_iter().try_for_each(|field| {
        run.cases.push(field.measure(wanted, &bar, interrupt)?);
        run.keep(&mut output)
    });
    bar.finish_and_clear();
    run.end(output, outcome)
}

impl<'a> Field<'a> {
    fn enter(case: &'a Case, wanted: &OnThreads) -> Result<Field<'a>, Failure> {
        let problem = spread(&case.problem, wanted.ranks)?;
        let enter = |who: &Contender| Entrant::new(*who, &problem, wanted);
        let entrants = wanted.contenders.iter().map(enter).collect::<Result<Vec<_>, _>>()?;
        Ok(Field { case, problem, entrants })
    }

    fn measure(
        self,
        wanted: &OnThreads,
        bar: &ProgressBar,
        interrupt: Interrupt,
    ) -> Result<CaseReport, Failure> {
        let Field { case, problem, mut entrants } = self;
        for round in 0..WARM_UP_ROUNDS + wanted.rounds {
            for nth in turn(&problem, round, entrants.len()) {
                let entrant = &mut entrants[nth];
                bar.inc(1);
                let row = &mut entrant.row;
                if row.failed.is_some() {
                    continue;
                }
                match time_together(&entrant.groups, wanted.link, interrupt)? {
                    Ok(us) if round >= WARM_UP_ROUNDS => row.rounds_us.push(us),
                    Ok(_) => {}
                    Err(why) => (row.failed, row.rounds_us) = (Some(why), Vec::new()),
                }
            }
        }
        let rows = entrants.into_iter().map(|one| one.row).collect();
        Ok(CaseReport { name: case.to_string(), rows, problem, before: None })
    }
}

impl Entrant {
    fn new(who: Contender, problem: &Problem, wanted: &OnThreads) -> Result<Entrant, Failure> {
        if who == Contender::Own {
            return Entrant::alone(problem, wanted);
        }
        let usual = default_options(problem)?;
        let options = match who {
            Contender::Sequential => {
                PlanOptions { strategy: Strategy::Sequential, pieces: Some(1), ..usual }
            }
            _ => PlanOptions { pieces: wanted.chunks.or(usual.pieces), ..usual },
        };
        check_link(&Plan::new(problem, options)?, wanted.link)?;
        let steps = Steps::new(problem, options, 1 + wanted.steps, wanted.seed).in_place();
        Ok(Entrant::of(who, vec![steps]))
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
        let groups = (0..u64::from(wanted.ranks)).map(of_rank).collect();
        Ok(Entrant::of(Contender::Own, groups))
    }

    fn of(who: Contender, groups: Vec<Steps>) -> Entrant {
        let kind = if who == Contender::Own { Kind::Gemm } else { Kind::AllGatherGemm };
        let what = groups.first().map(Steps::describe).unwrap_or_default();
        Entrant { row: Row::new(&who.name(), kind, false, what), groups }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wanted(contenders: &[Contender]) -> OnThreads {
        let shapes = ["40x24x32".parse().unwrap()];
        let types = [overlap_gemm::plan::ElementTypes::all(overlap_gemm::ElementType::Bf16)];
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
        let wanted = wanted(&Contender::ON_THREADS);
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
        assert!(report.rows[1].what.contains("1 chunk a rank, "), "{report}");
    }
}
