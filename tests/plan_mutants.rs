//! Broken schedules on the model: each mutant is caught by `check_order` or by a run, as predicted.
//!
//! Invariant: a mutant differs from a correct schedule, which passes, by one change.

mod common;

use common::mutants::{Caught, MUTANTS, REDUCE_MUTANTS};
use common::{plan_of, reducing};
use overlap_gemm::plan::model::{Schedules, Violation, run};
use overlap_gemm::plan::{Engine, Lane, Operation, PlanOptions, Step, Strategy as Order, Word};

type Change = fn(&mut Vec<(Lane, Step)>);

/// Mutants of rank 1 of three in an all-reduce, and the beginnings of the violations that `check_order` or a run finds.
const ALL_REDUCE_MUTANTS: [(&str, Change, &str); 7] = [
    (
        "drops a move",
        |steps| drop_first(steps, |step| matches!(step, Step::Move { .. })),
        "NotOnce { what: \"rank 2 gets chunk 2 from rank 1\", times: 0 }",
    ),
    (
        "sends to itself",
        |steps| {
            for (_, step) in steps {
                if let Step::Move { to, .. } = step {
                    *to = 1;
                }
            }
        },
        "NoSuchStep { rank: 1",
    ),
    (
        "signals before it sends",
        |steps| {
            // The last one: what is sent later makes up for others.
            let at = steps.iter().rposition(|(_, step)| matches!(step, Step::Move { .. })).unwrap();
            steps.swap(at, at + 1);
        },
        "ReadTooEarly { reader: 0, chunk: 1, from: 1",
    ),
    (
        "drops the wait for its own sums",
        |steps| drop_first(steps, |step| is_wait(step, |word| matches!(word, Word::Summed { .. }))),
        "ReadTooEarly { reader: 1, chunk: 2, from: 1",
    ),
    (
        "waits for no sums of rank 0",
        |steps| {
            let of_0 = |word: &Word| matches!(word, Word::Partial { from: 0, .. });
            steps.retain(|(_, step)| !is_wait(step, of_0));
        },
        "ReadTooEarly { reader: 1, chunk: 0, from: 0",
    ),
    (
        "drops a reduction",
        |steps| drop_first(steps, |step| matches!(step, Step::Reduce { .. })),
        "NotOnce { what: \"rank 1 adds up chunk 0\", times: 0 }",
    ),
    (
        "multiplies too few rows",
        |steps| drop_first(steps, |step| matches!(step, Step::Multiply { .. })),
        "NotAllRows { rank: 1",
    ),
];

fn is_wait(step: &Step, is_word: fn(&Word) -> bool) -> bool {
    matches!(step, Step::Await { word, .. } if is_word(word))
}

fn drop_first(steps: &mut Vec<(Lane, Step)>, is_it: fn(&Step) -> bool) {
    let at = steps.iter().position(|(_, step)| is_it(step)).unwrap();
    steps.remove(at);
}

#[test]
fn every_mutant_of_an_all_reduce_is_caught_as_predicted() {
    for (name, change, expected) in ALL_REDUCE_MUTANTS {
        let options =
            PlanOptions { operation: Operation::GemmAllReduce, ..reducing(Order::Fused, 1) };
        let mut schedules = Schedules::new(&plan_of(&[1; 3], options));
        change(&mut schedules.of_ranks[1].steps);
        let violation = schedules.check_order().and_then(|()| run_many(&schedules)).err();
        let said = violation.map(|violation| format!("{violation:?}")).unwrap_or_default();
        assert!(said.starts_with(expected), "{name}: {said}");
    }
}

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

/// The decisive test, on the model: whoever breaks one step of the value breaks what runs by it, as predicted.
#[test]
fn every_mutant_of_a_schedule_is_caught_as_predicted() {
    for engine in
        [Engine::Thread, Engine::CopyEngines { streams: 1 }, Engine::Kernel { blocks: 16 }]
    {
        for mutant in MUTANTS {
            let options = PlanOptions { engine, pieces: Some(1), ..PlanOptions::default() };
            let plan = plan_of(mutant.rows, options);
            let mut schedules = Schedules::new(&plan);
            assert_eq!(schedules.check_order(), Ok(()));
            assert_eq!(run_many(&schedules), Ok(()));
            if !mutant.change(&mut schedules.of_ranks) {
                assert_ne!(engine, Engine::Thread, "{} finds no step to change", mutant.name);
                continue;
            }
            let ordered = schedules.check_order();
            assert_eq!(
                ordered.is_err(),
                mutant.is_out_of_order,
                "{engine}, {}: {ordered:?}",
                mutant.name
            );
            let ran = run_many(&schedules);
            let as_predicted = match mutant.run {
                Caught::WrongRows => matches!(
                    ran,
                    Err(Violation::ReadTooEarly { .. } | Violation::Overwritten { .. })
                ),
                Caught::Hang => matches!(ran, Err(Violation::Deadlock { .. })),
                Caught::Nothing => ran.is_ok(),
            };
            assert!(as_predicted, "{engine}, {}: {ran:?}", mutant.name);
        }
    }
}

/// What `check_order` and runs say of each mutant of a reduce-scatter: the beginnings of violations.
const REDUCE_VIOLATIONS: [(&str, &str, &str); 16] = [
    (
        "drops a move",
        "NotOnce { what: \"rank 0 gets chunk 0 from rank 2\", times: 0 }",
        "ReadTooEarly { reader: 0, chunk: 0, from: 2",
    ),
    ("drops the wait for a consumer", "", "Overwritten { owner: 1, chunk: 0, from: 0"),
    ("drops the wait for its own sends", "", "Overwritten { owner: 0, chunk: 0, from: 0"),
    ("drops the wait for its own sums", "", "ReadTooEarly { reader: 2, chunk: 0, from: 2"),
    ("drops the wait for another rank's sums", "", "ReadTooEarly { reader: 1, chunk: 1, from: 0"),
    ("signals before it moves", "", "ReadTooEarly { reader: 0, chunk: 0, from: 2"),
    ("signals before it multiplies", "", "ReadTooEarly { reader: 2, chunk: 0, from: 2"),
    (
        "multiplies again what it sends",
        "NotAllRows { rank: 2, multiplied: ",
        "ReadTooEarly { reader: 2, chunk: ",
    ),
    ("sends to the wrong rank", "NoSuchStep { rank: 2, step: \"move 0 → 1\" }", "Deadlock"),
    ("sends in another order", "OutOfOrder { rank: 2, step: \"move 0 → 0\" }", ""),
    ("multiplies its own rows first", "OutOfOrder { rank: 2, step: \"multiply rows 0..1\" }", ""),
    ("drops an acknowledgement", "", "Deadlock"),
    ("acknowledges before it reads", "", "Overwritten { owner: 1, chunk: 0, from: 0"),
    ("reduces twice", "NotOnce { what: \"rank 1 adds up chunk 1\", times: 2 }", ""),
    ("drops a reduction", "NotOnce { what: \"rank 1 adds up chunk 1\", times: 0 }", ""),
    (
        "reduces the wrong rows",
        "NoSuchStep { rank: 1, step: \"reduce 0\" }",
        "ReadTooEarly { reader: 1, chunk: 0, from: 0",
    ),
];

#[test]
fn every_mutant_of_a_reduce_scatter_is_caught_as_predicted() {
    assert_eq!(REDUCE_MUTANTS.len(), REDUCE_VIOLATIONS.len());
    let copies = reducing(Order::Pipelined, 1).with_engine(Engine::CopyEngines { streams: 1 });
    let kernel = reducing(Order::Sequential, 1).with_engine(Engine::PUSHING);
    let ways = [reducing(Order::Fused, 1), copies, kernel];
    let mutants = REDUCE_MUTANTS.iter().zip(REDUCE_VIOLATIONS);
    for (options, (mutant, (name, by_order, by_run))) in
        ways.into_iter().flat_map(|way| mutants.clone().map(move |mutant| (way, mutant)))
    {
        assert_eq!(mutant.name, name);
        let plan = plan_of(mutant.rows, options);
        let mut schedules = Schedules::new(&plan);
        assert_eq!(schedules.check_order(), Ok(()));
        assert_eq!(run_many(&schedules), Ok(()));
        if !mutant.change(&mut schedules.of_ranks) {
            assert_ne!(options.engine, Engine::Thread, "{name} finds no step to change");
            let own_first = "multiplies its own rows first";
            assert!(["drops the wait for its own sends", own_first].contains(&name), "{name}");
            continue;
        }
        let said = |found: Result<(), Violation>| {
            found.err().map(|violation| format!("{violation:?}")).unwrap_or_default()
        };
        let (ordered, ran) = (said(schedules.check_order()), said(run_many(&schedules)));
        for (said, expected) in [(&ordered, by_order), (&ran, by_run)] {
            let is_expected =
                if expected.is_empty() { said.is_empty() } else { said.starts_with(expected) };
            assert!(is_expected, "{name}: '{said}', not '{expected}'");
        }
        assert_eq!(mutant.is_out_of_order, !by_order.is_empty(), "{name}");
        let caught = match by_run {
            "" => Caught::Nothing,
            "Deadlock" => Caught::Hang,
            _ => Caught::WrongRows,
        };
        assert_eq!(mutant.run, caught, "{name}");
    }
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
