//! Broken schedules on the model: each mutant is caught by `check_order` or by a run, as predicted.
//!
//! Invariant: a mutant differs from a correct schedule, which passes, by one change.

mod common;

use common::mutants::{
    KERNEL_MUTANTS, MUTANTS, Mutant, ONE_SHOT_MUTANTS, REDUCE_MUTANTS, TWO_SHOT_MUTANTS,
    two_shot_mutants_of_a_kernel,
};
use common::{WIDE, plan_of, reducing};
use overlap_gemm::plan::model::{Schedules, Violation, run};
use overlap_gemm::plan::{Engine, Operation, Plan, PlanOptions, Step, Strategy as Order};

/// Runs in many pseudo-random orders, in half of them with the last ranks far behind; a correct schedule survives all.
fn run_many(schedules: &Schedules) -> Result<(), Violation> {
    (0..400u64).try_for_each(|seed| {
        let mut state = seed;
        let mut random = |enabled: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % enabled
        };
        run(schedules, 5, |enabled| match seed % 2 {
            0 => random(enabled),
            _ => [random(enabled), random(enabled), random(enabled), random(enabled)]
                .into_iter()
                .min()
                .unwrap_or(0),
        })
    })
}

/// Each mutant, planned in each way; only some, with `lacking` names, find no step to change in ways other than threads.
fn each_is_caught_as_predicted<'a>(
    mutants: impl IntoIterator<Item = &'a Mutant>,
    ways: &[PlanOptions],
    lacking: &[&str],
) {
    for (mutant, options) in
        mutants.into_iter().flat_map(|one| ways.iter().map(move |way| (one, way)))
    {
        let name = format!("{}, {}", mutant.name, options.engine);
        let plan = plan_of(mutant.rows, *options);
        let plan = match options.engine {
            // With few columns a kernel has one shot.
            Engine::Kernel { .. } if options.operation == Operation::GemmAllReduce => {
                Plan::new(&plan.problem().with_n(WIDE).unwrap(), *options).unwrap()
            }
            _ => plan,
        };
        let mut schedules = Schedules::new(&plan);
        assert_eq!(schedules.check_order(), Ok(()));
        assert_eq!(run_many(&schedules), Ok(()));
        if !mutant.change(&mut schedules.of_ranks[mutant.rank]) {
            let is_lacking = options.engine != Engine::Thread && lacking.contains(&mutant.name);
            assert!(is_lacking, "{name} finds no step to change");
            continue;
        }
        for (found, expected) in
            [(schedules.check_order(), mutant.by_order), (run_many(&schedules), mutant.by_run)]
        {
            let said = found.err().map(|violation| format!("{violation:?}")).unwrap_or_default();
            let is_expected = said.starts_with(expected) && said.is_empty() == expected.is_empty();
            assert!(is_expected, "{name}: '{said}', not '{expected}'");
        }
    }
}

/// The decisive test, on the model: whoever breaks one step of the value breaks what runs by it, as predicted.
#[test]
fn every_mutant_of_a_schedule_is_caught_as_predicted() {
    let engines =
        [Engine::Thread, Engine::CopyEngines { streams: 1 }, Engine::Kernel { blocks: 16 }];
    let ways =
        engines.map(|engine| PlanOptions { engine, pieces: Some(1), ..PlanOptions::default() });
    each_is_caught_as_predicted(MUTANTS, &ways, &["drops the wait for its own sends"]);
}

#[test]
fn every_mutant_of_a_reduce_scatter_is_caught_as_predicted() {
    let copies = reducing(Order::Pipelined, 1).with_engine(Engine::CopyEngines { streams: 1 });
    let lacking = ["drops the wait for its own sends", "multiplies its own rows first"];
    let ways = [reducing(Order::Fused, 1), copies];
    each_is_caught_as_predicted(REDUCE_MUTANTS, &ways, &lacking);
    let kernel = reducing(Order::Sequential, 1).with_engine(Engine::PUSHING);
    each_is_caught_as_predicted(KERNEL_MUTANTS, &[kernel], &[]);
}

#[test]
fn every_mutant_of_an_all_reduce_is_caught_as_predicted() {
    let way = |order| PlanOptions { operation: Operation::GemmAllReduce, ..reducing(order, 1) };
    each_is_caught_as_predicted(ONE_SHOT_MUTANTS, &[way(Order::Sequential)], &[]);
    let in_two_shots = [way(Order::Fused), way(Order::Pipelined)];
    each_is_caught_as_predicted(TWO_SHOT_MUTANTS, &in_two_shots, &[]);
    let copies = way(Order::Fused).with_engine(Engine::CopyEngines { streams: 1 });
    let on_gpus = TWO_SHOT_MUTANTS.iter().filter(|mutant| mutant.on_gpus);
    each_is_caught_as_predicted(on_gpus, &[copies], &[]);
    let kernel = way(Order::Sequential).with_engine(Engine::PUSHING);
    each_is_caught_as_predicted(two_shot_mutants_of_a_kernel(), &[kernel], &[]);
}

#[test]
fn a_lost_row_of_the_product_is_caught() {
    let mut schedules = Schedules::new(&plan_of(&[2, 2], PlanOptions::default()));
    for (_, step) in &mut schedules.of_ranks[1].steps {
        if let Step::Multiply { rows, .. } = step {
            rows.end -= 1;
        }
    }
    let caught = schedules.check_order();
    assert_eq!(caught, Err(Violation::NotAllRows { rank: 1, multiplied: 3, rows: 4 }));
}
