//! Mutants of the schedule: one step of one rank changed, and what becomes of it wherever the schedule is carried out.
//!
//! Invariant: each applies to any engine whose schedules have such a step; what is predicted holds for all of them.
//! `MUTANTS` are of an all-gather + GEMM, `REDUCE_MUTANTS` of a GEMM + reduce-scatter.

#![allow(dead_code)] // each test file uses its share

use overlap_gemm::plan::{Lane, Schedule, Step, Word};

/// What becomes of a mutant when it is carried out, in some order at least.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Caught {
    /// A rank reads rows of another step, or rows that are not there.
    WrongRows,
    /// A rank waits for a word that nobody posts.
    Hang,
    /// Every result is right: only the order is worse, or work is done twice.
    Nothing,
}

impl Caught {
    /// What becomes of a mutant whose ranks end like this.
    pub fn by_ranks(seen: &[Caught]) -> Caught {
        // If one rank waits in vain, the others hear of it, and no rank's result counts.
        let worst = [Caught::Hang, Caught::WrongRows];
        worst.into_iter().find(|what| seen.contains(what)).unwrap_or(Caught::Nothing)
    }
}

/// A change of one step.
pub struct Mutant {
    pub name: &'static str,
    /// The rows of each rank in a world where it can be seen.
    pub rows: &'static [u32],
    change: fn(&mut Vec<(Lane, Step)>) -> bool,
    /// Whose schedule is changed.
    pub rank: usize,
    /// Whether a look at the schedules, without a run, tells.
    pub is_out_of_order: bool,
    /// What a run tells.
    pub run: Caught,
    /// Whether GPUs that copy rows can carry it out.
    pub on_gpus: bool,
}

impl Mutant {
    /// Changes the schedules; `false` where they have no such step.
    pub fn change(&self, of_ranks: &mut [Schedule]) -> bool {
        self.change_one(&mut of_ranks[self.rank])
    }

    /// Changes the schedule of the mutant's rank.
    pub fn change_one(&self, schedule: &mut Schedule) -> bool {
        (self.change)(&mut schedule.steps)
    }
}

// Ranks that wait for each other's chunks cannot drift apart by two steps. A rank without rows, from which nobody needs
// anything, can fall behind: it is the one that acknowledgements protect.
const EQUAL: &[u32] = &[1, 1, 1];
const ONE_SENDS: &[u32] = &[1, 0];
// So is, in a reduce-scatter, the owner of all rows: it waits for the others, and they for nothing of its.
const ONE_OWNS: &[u32] = &[0, 1];

/// What is changed, where, and what becomes of it.
pub const MUTANTS: &[Mutant] = &[
    Mutant {
        name: "drops a move",
        rows: EQUAL,
        change: |steps| remove(steps, |step| moves_to(step, 0)),
        rank: 2,
        is_out_of_order: true,
        run: Caught::WrongRows,
        on_gpus: true,
    },
    Mutant {
        name: "signals before it moves",
        rows: EQUAL,
        change: |steps| put_before(steps, |step| moves_to(step, 0), |step| signals(step, 0)),
        rank: 2,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: true,
    },
    Mutant {
        name: "drops the wait of a tile",
        rows: EQUAL,
        change: |steps| {
            each(steps, |_, step| match step {
                Step::Multiply { awaits, .. } => awaits.pop().is_some(),
                _ => false,
            })
        },
        rank: 1,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: true,
    },
    Mutant {
        name: "drops the wait for a consumer",
        rows: ONE_SENDS,
        change: |steps| {
            remove(steps, |step| matches!(step, Step::Await { word: Word::Consumed { by: 1 }, .. }))
        },
        rank: 0,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: false,
    },
    Mutant {
        name: "drops the wait for its own sends",
        rows: ONE_SENDS,
        change: |steps| {
            remove(steps, |step| matches!(step, Step::Await { word: Word::Sent { .. }, .. }))
        },
        rank: 0,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: false,
    },
    Mutant {
        name: "drops an acknowledgement",
        rows: EQUAL,
        change: drop_an_acknowledgement,
        rank: 1,
        is_out_of_order: false,
        run: Caught::Hang,
        on_gpus: true,
    },
    Mutant {
        name: "acknowledges before it reads",
        rows: ONE_SENDS,
        change: |steps| acknowledge_too_early(steps),
        rank: 1,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: false,
    },
    Mutant {
        name: "sends to the wrong peer",
        rows: EQUAL,
        change: |steps| {
            each(steps, |_, step| match step {
                Step::Move { to, .. } | Step::Post { word: Word::Landed { .. }, to, .. }
                    if *to == 0 =>
                {
                    set(to, 1)
                }
                _ => false,
            })
        },
        rank: 2,
        is_out_of_order: true,
        run: Caught::Hang,
        on_gpus: true,
    },
    Mutant {
        name: "sends the wrong rows",
        rows: EQUAL,
        change: |steps| {
            each(steps, |_, step| match step {
                Step::Move { chunk, to: 0 } => set(chunk, 1),
                _ => false,
            })
        },
        rank: 2,
        is_out_of_order: true,
        run: Caught::WrongRows,
        on_gpus: true,
    },
    Mutant {
        name: "sends twice",
        rows: EQUAL,
        change: |steps| {
            let Some(at) = steps.iter().position(|(_, step)| moves_to(step, 0)) else {
                return false;
            };
            steps.insert(at, steps[at].clone());
            true
        },
        rank: 2,
        is_out_of_order: true,
        run: Caught::Nothing,
        on_gpus: true,
    },
    Mutant {
        name: "sends in another order",
        rows: EQUAL,
        change: |steps| {
            each(steps, |lane, step| match (lane, step) {
                (
                    Lane::Push(_),
                    Step::Move { to, .. } | Step::Post { word: Word::Landed { .. }, to, .. },
                ) => set(to, 1 - *to),
                // A thread waits for each peer before its round.
                (Lane::Push(_), Step::Await { word: Word::Consumed { by }, .. }) if *by < 2 => {
                    set(by, 1 - *by)
                }
                _ => false,
            })
        },
        rank: 2,
        is_out_of_order: true,
        run: Caught::Nothing,
        on_gpus: true,
    },
];

/// Those of a reduce-scatter. On the model a result that is never stored is nothing: `check_order` alone sees that.
pub const REDUCE_MUTANTS: &[Mutant] = &[
    Mutant {
        name: "drops a move",
        rows: EQUAL,
        change: |steps| remove(steps, |step| moves_to(step, 0)),
        rank: 2,
        is_out_of_order: true,
        run: Caught::WrongRows,
        on_gpus: true,
    },
    Mutant {
        name: "drops the wait for a consumer",
        rows: ONE_OWNS,
        change: |steps| remove(steps, |step| awaits(step, Word::Consumed { by: 1 })),
        rank: 0,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: false,
    },
    Mutant {
        name: "drops the wait for its own sends",
        rows: ONE_OWNS,
        change: |steps| remove(steps, |step| awaits(step, Word::Sent { push: 0 })),
        rank: 0,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: false,
    },
    Mutant {
        name: "drops the wait for its own sums",
        rows: EQUAL,
        change: |steps| remove(steps, |step| awaits(step, Word::Summed { chunk: 0 })),
        rank: 2,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: true,
    },
    Mutant {
        name: "drops the wait for another rank's sums",
        rows: EQUAL,
        change: |steps| remove(steps, |step| awaits(step, Word::Partial { chunk: 1, from: 0 })),
        rank: 1,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: true,
    },
    Mutant {
        name: "signals before it moves",
        rows: EQUAL,
        change: |steps| put_before(steps, |step| moves_to(step, 0), |step| sends_sums(step, 0)),
        rank: 2,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: false,
    },
    Mutant {
        name: "signals before it multiplies",
        rows: EQUAL,
        change: |steps| {
            put_before(
                steps,
                |step| matches!(step, Step::Multiply { .. }),
                |step| matches!(step, Step::Post { word: Word::Summed { .. }, .. }),
            )
        },
        rank: 2,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: true,
    },
    Mutant {
        name: "multiplies again what it sends",
        rows: EQUAL,
        change: |steps| {
            let is_product = |(_, step): &(Lane, Step)| matches!(step, Step::Multiply { .. });
            let Some(at) = steps.iter().position(is_product) else { return false };
            steps.insert(at + 2, steps[at].clone());
            true
        },
        rank: 2,
        is_out_of_order: true,
        run: Caught::WrongRows,
        on_gpus: false,
    },
    Mutant {
        name: "sends to the wrong rank",
        rows: EQUAL,
        change: |steps| {
            each(steps, |_, step| match step {
                Step::Move { to, .. } | Step::Post { word: Word::Partial { .. }, to, .. }
                    if *to == 0 =>
                {
                    set(to, 1)
                }
                _ => false,
            })
        },
        rank: 2,
        is_out_of_order: true,
        run: Caught::Hang,
        on_gpus: true,
    },
    Mutant {
        name: "sends in another order",
        rows: EQUAL,
        change: |steps| {
            // Rank 2 sends chunk 0 to rank 0, then chunk 1 to rank 1. A kernel waits once for all chunks, and for all ranks.
            let awaits_summed = |of| steps.iter().any(|(_, step)| awaits(step, of));
            let one_by_one = awaits_summed(Word::Summed { chunk: 1 });
            each(steps, |lane, step| match (lane, step) {
                (Lane::Push(_), Step::Move { chunk, to }) => {
                    set(chunk, 1 - *chunk) && set(to, 1 - *to)
                }
                (Lane::Push(_), Step::Post { word: Word::Partial { chunk, .. }, to, .. }) => {
                    set(chunk, 1 - *chunk) && set(to, 1 - *to)
                }
                (Lane::Push(_), Step::Await { word: Word::Summed { chunk }, .. }) if one_by_one => {
                    set(chunk, 1 - *chunk)
                }
                (Lane::Push(_), Step::Await { word: Word::Consumed { by }, .. }) if one_by_one => {
                    set(by, 1 - *by)
                }
                _ => false,
            })
        },
        rank: 2,
        is_out_of_order: true,
        run: Caught::Nothing,
        on_gpus: false,
    },
    Mutant {
        name: "multiplies its own rows first",
        rows: EQUAL,
        change: |steps| {
            let is_product = |(_, step): &(Lane, Step)| matches!(step, Step::Multiply { .. });
            let first = steps.iter().position(is_product);
            let Some((first, own)) = first.zip(steps.iter().rposition(is_product)) else {
                return false;
            };
            steps[first..=own].rotate_right(1);
            first < own
        },
        rank: 2,
        is_out_of_order: true,
        run: Caught::Nothing,
        on_gpus: true,
    },
    Mutant {
        name: "drops an acknowledgement",
        rows: EQUAL,
        change: drop_an_acknowledgement,
        rank: 1,
        is_out_of_order: false,
        run: Caught::Hang,
        on_gpus: true,
    },
    Mutant {
        name: "acknowledges before it reads",
        rows: ONE_OWNS,
        change: |steps| acknowledge_too_early(steps),
        rank: 1,
        is_out_of_order: false,
        run: Caught::WrongRows,
        on_gpus: false,
    },
    Mutant {
        name: "reduces twice",
        rows: EQUAL,
        change: |steps| {
            let is_reduction = |(_, step): &(Lane, Step)| matches!(step, Step::Reduce { .. });
            let Some(at) = steps.iter().position(is_reduction) else { return false };
            steps.insert(at, steps[at].clone());
            true
        },
        rank: 1,
        is_out_of_order: true,
        run: Caught::Nothing,
        on_gpus: true,
    },
    Mutant {
        name: "drops a reduction",
        rows: EQUAL,
        change: |steps| remove(steps, |step| matches!(step, Step::Reduce { .. })),
        rank: 1,
        is_out_of_order: true,
        run: Caught::Nothing,
        on_gpus: false,
    },
    Mutant {
        name: "reduces the wrong rows",
        rows: EQUAL,
        change: |steps| {
            each(steps, |_, step| match step {
                Step::Reduce { chunk } => set(chunk, 0),
                _ => false,
            })
        },
        rank: 1,
        is_out_of_order: true,
        run: Caught::WrongRows,
        on_gpus: false,
    },
];

fn drop_an_acknowledgement(steps: &mut Vec<(Lane, Step)>) -> bool {
    remove(steps, |step| matches!(step, Step::Post { word: Word::Consumed { .. }, to: 0, .. }))
}

fn acknowledge_too_early(steps: &mut [(Lane, Step)]) -> bool {
    each(steps, |_, step| match step {
        Step::Post { word: Word::Consumed { .. }, age, .. } => set(age, 0),
        _ => false,
    })
}

/// Changes each step that `change` knows; whether there was any.
fn each(steps: &mut [(Lane, Step)], mut change: impl FnMut(Lane, &mut Step) -> bool) -> bool {
    steps.iter_mut().fold(false, |changed, (lane, step)| change(*lane, step) | changed)
}

fn set(number: &mut u32, to: u32) -> bool {
    *number = to;
    true
}

fn remove(steps: &mut Vec<(Lane, Step)>, is: impl Fn(&Step) -> bool) -> bool {
    let before = steps.len();
    steps.retain(|(_, step)| !is(step));
    steps.len() < before
}

/// Swaps the first step of either kind.
/// Puts the first step that is `second` in front of the first that is `first`.
fn put_before(
    steps: &mut [(Lane, Step)],
    first: fn(&Step) -> bool,
    second: fn(&Step) -> bool,
) -> bool {
    let at = |is: fn(&Step) -> bool| steps.iter().position(|(_, step)| is(step));
    let (Some(first), Some(second)) = (at(first), at(second)) else { return false };
    steps[first..=second].rotate_right(1);
    true
}

fn awaits(step: &Step, awaited: Word) -> bool {
    matches!(step, Step::Await { word, .. } if *word == awaited)
}

fn moves_to(step: &Step, rank: u32) -> bool {
    matches!(step, Step::Move { to, .. } if *to == rank)
}

fn signals(step: &Step, rank: u32) -> bool {
    matches!(step, Step::Post { word: Word::Landed { .. }, to, .. } if *to == rank)
}

fn sends_sums(step: &Step, rank: u32) -> bool {
    matches!(step, Step::Post { word: Word::Partial { .. }, to, .. } if *to == rank)
}
