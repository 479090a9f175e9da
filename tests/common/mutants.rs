//! Mutants of the schedule: one step of one rank changed, and what becomes of it wherever the schedule is carried out.
//!
//! Invariant: each applies to any engine whose schedules have such a step; what is predicted holds for all of them.

#![allow(dead_code)] // each test file uses its share

use overlap_gemm::plan::{Lane, Schedule, Step, Word};

type Steps = Vec<(Lane, Step)>;

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
    /// Whose schedule is changed.
    pub rank: usize,
    change: fn(&mut Steps) -> bool,
    /// How the model's violation begins that a look at the schedules finds, and that of a run; empty where none is found.
    pub by_order: &'static str,
    pub by_run: &'static str,
    /// Whether GPUs that copy rows can carry it out.
    pub on_gpus: bool,
}

const fn mutant(
    (rows, rank): (&'static [u32], usize),
    name: &'static str,
    change: fn(&mut Steps) -> bool,
) -> Mutant {
    Mutant { name, rows, rank, change, by_order: "", by_run: "", on_gpus: true }
}

impl Mutant {
    const fn by_order(self, by_order: &'static str) -> Mutant {
        Mutant { by_order, ..self }
    }

    const fn by_run(self, by_run: &'static str) -> Mutant {
        Mutant { by_run, ..self }
    }

    const fn not_on_gpus(self) -> Mutant {
        Mutant { on_gpus: false, ..self }
    }

    /// What a run tells.
    pub fn run(&self) -> Caught {
        match self.by_run {
            "" => Caught::Nothing,
            "Deadlock" => Caught::Hang,
            _ => Caught::WrongRows,
        }
    }

    /// Changes the schedule of the mutant's rank; `false` where it has no such step.
    pub fn change(&self, schedule: &mut Schedule) -> bool {
        (self.change)(&mut schedule.steps)
    }
}

// Ranks that wait for each other's chunks cannot drift apart by two steps. A rank without rows, from which nobody needs
// anything, can fall behind: it is the one that acknowledgements protect.
const EQUAL: &[u32] = &[1, 1, 1];
const TWO: &[u32] = &[1, 1];
const ONE_SENDS: &[u32] = &[1, 0];
// So is, in a reduce-scatter, the owner of all rows: it waits for the others, and they for nothing of its.
const ONE_OWNS: &[u32] = &[0, 1];

/// Of an all-gather + GEMM.
pub const MUTANTS: &[Mutant] = &[
    mutant((EQUAL, 2), "drops a move", drop_a_move).by_order("NotOnce").by_run("ReadTooEarly"),
    mutant((EQUAL, 2), "signals before it moves", signal_before_a_move).by_run("ReadTooEarly"),
    mutant((EQUAL, 1), "drops the wait of a tile", |steps| {
        each(steps, |_, step| match step {
            Step::Multiply { awaits, .. } => awaits.pop().is_some(),
            _ => false,
        })
    })
    .by_run("ReadTooEarly"),
    mutant((ONE_SENDS, 0), "drops the wait for a consumer", |steps| {
        remove(steps, |step| awaits(step, Word::Consumed { by: 1 }))
    })
    .by_run("Overwritten")
    .not_on_gpus(),
    mutant((ONE_SENDS, 0), "drops the wait for its own sends", |steps| {
        remove(steps, |step| matches!(step, Step::Await { word: Word::Sent { .. }, .. }))
    })
    .by_run("Overwritten")
    .not_on_gpus(),
    mutant((EQUAL, 1), "drops an acknowledgement", drop_an_acknowledgement).by_run("Deadlock"),
    mutant((ONE_SENDS, 1), "acknowledges before it reads", acknowledge_too_early)
        .by_run("Overwritten")
        .not_on_gpus(),
    mutant((EQUAL, 2), "sends to the wrong peer", send_to_the_wrong_rank)
        .by_order("NotOnce")
        .by_run("Deadlock"),
    mutant((EQUAL, 2), "sends the wrong rows", |steps| {
        each(steps, |_, step| match step {
            Step::Move { chunk, to: 0 } => set(chunk, 1),
            _ => false,
        })
    })
    .by_order("NotOnce")
    .by_run("ReadTooEarly"),
    mutant((EQUAL, 2), "sends twice", |steps| repeat(steps, 0, |step| moves_to(step, 0)))
        .by_order("NotOnce"),
    mutant((EQUAL, 2), "sends in another order", |steps| {
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
    })
    .by_order("OutOfOrder"),
];

/// Of a GEMM + reduce-scatter whose sums are sent. On the model a result that is never stored is nothing: a look at the schedules alone sees that.
pub const REDUCE_MUTANTS: &[Mutant] = &[
    mutant((EQUAL, 2), "drops a move", drop_a_move)
        .by_order("NotOnce { what: \"rank 0 gets chunk 0 from rank 2\", times: 0 }")
        .by_run("ReadTooEarly { reader: 0, chunk: 0, from: 2"),
    mutant((ONE_OWNS, 0), "drops the wait for a consumer", |steps| {
        remove(steps, |step| awaits(step, Word::Consumed { by: 1 }))
    })
    .by_run("Overwritten { owner: 1, chunk: 0, from: 0")
    .not_on_gpus(),
    mutant((ONE_OWNS, 0), "drops the wait for its own sends", |steps| {
        remove(steps, |step| awaits(step, Word::Sent { push: 0 }))
    })
    .by_run("Overwritten { owner: 0, chunk: 0, from: 0")
    .not_on_gpus(),
    mutant((EQUAL, 2), "drops the wait for its own sums", drop_the_wait_for_own_sums)
        .by_run("ReadTooEarly { reader: 2, chunk: 0, from: 2"),
    mutant((EQUAL, 1), "drops the wait for another rank's sums", drop_the_wait_for_sums_of_another)
        .by_run("ReadTooEarly { reader: 1, chunk: 1, from: 0"),
    mutant((EQUAL, 2), "signals before it moves", signal_before_a_move)
        .by_run("ReadTooEarly { reader: 0, chunk: 0, from: 2")
        .not_on_gpus(),
    mutant((EQUAL, 2), "signals before it multiplies", say_too_early_that_sums_are_complete)
        .by_run("ReadTooEarly { reader: 2, chunk: 0, from: 2"),
    mutant((EQUAL, 2), "multiplies again what it sends", |steps| repeat(steps, 2, is_product))
        .by_order("NotAllRows { rank: 2, multiplied: ")
        .by_run("ReadTooEarly { reader: 2, chunk: ")
        .not_on_gpus(),
    mutant((EQUAL, 2), "sends to the wrong rank", send_to_the_wrong_rank)
        .by_order("NoSuchStep { rank: 2, step: \"move 0 → 1\" }")
        .by_run("Deadlock"),
    mutant((EQUAL, 2), "sends in another order", |steps| {
        // Rank 2 sends chunk 0 to rank 0, then chunk 1 to rank 1.
        each(steps, |lane, step| match (lane, step) {
            (
                Lane::Push(_),
                Step::Move { chunk, to } | Step::Post { word: Word::Partial { chunk, .. }, to, .. },
            ) => set(chunk, 1 - *chunk) && set(to, 1 - *to),
            (Lane::Push(_), Step::Await { word: Word::Summed { chunk }, .. }) => {
                set(chunk, 1 - *chunk)
            }
            (Lane::Push(_), Step::Await { word: Word::Consumed { by }, .. }) => set(by, 1 - *by),
            _ => false,
        })
    })
    .by_order("OutOfOrder { rank: 2, step: \"move 0 → 0\" }")
    .not_on_gpus(),
    mutant((EQUAL, 2), "multiplies its own rows first", |steps| {
        let first = steps.iter().position(|(_, step)| is_product(step));
        let last = steps.iter().rposition(|(_, step)| is_product(step));
        let (Some(first), Some(own)) = (first, last) else { return false };
        steps[first..=own].rotate_right(1);
        first < own
    })
    .by_order("OutOfOrder { rank: 2, step: \"multiply rows 0..1\" }"),
    mutant((EQUAL, 1), "drops an acknowledgement", drop_an_acknowledgement).by_run("Deadlock"),
    mutant((ONE_OWNS, 1), "acknowledges before it reads", acknowledge_too_early)
        .by_run("Overwritten { owner: 1, chunk: 0, from: 0")
        .not_on_gpus(),
    mutant((EQUAL, 1), "reduces twice", |steps| repeat(steps, 0, is_reduction))
        .by_order("NotOnce { what: \"rank 1 adds up chunk 1\", times: 2 }"),
    mutant((EQUAL, 1), "drops a reduction", |steps| remove(steps, is_reduction))
        .by_order("NotOnce { what: \"rank 1 adds up chunk 1\", times: 0 }")
        .not_on_gpus(),
    mutant((EQUAL, 1), "reduces the wrong rows", |steps| {
        each(steps, |_, step| match step {
            Step::Reduce { chunk } => set(chunk, 0),
            _ => false,
        })
    })
    .by_order("NoSuchStep { rank: 1, step: \"reduce 0\" }")
    .by_run("ReadTooEarly { reader: 1, chunk: 0, from: 0")
    .not_on_gpus(),
];

/// Of a GEMM + reduce-scatter by a kernel, which reads all ranks' sums where they lie. On GPUs it starts when the product has ended.
pub const KERNEL_MUTANTS: &[Mutant] = &[
    mutant(
        (TWO, 1),
        "says that sums are complete before it multiplies",
        say_too_early_that_sums_are_complete,
    )
    .by_run("ReadTooEarly { reader: ")
    .not_on_gpus(),
    mutant((TWO, 1), "drops the wait for its own sums", drop_the_wait_for_own_sums)
        .by_run("ReadTooEarly { reader: ")
        .not_on_gpus(),
    mutant((EQUAL, 1), "drops the wait for another rank's sums", drop_the_wait_for_sums_of_another)
        .by_run("ReadTooEarly { reader: 1, chunk: 1, from: 0"),
    mutant((EQUAL, 2), "signals the wrong rank", |steps| {
        each(steps, |_, step| match step {
            Step::Post { word: Word::Partial { .. }, to, .. } if *to == 0 => set(to, 1),
            _ => false,
        })
    })
    .by_run("Deadlock"),
    mutant((EQUAL, 1), "multiplies while the step before is added up", |steps| {
        remove(steps, |step| awaits(step, Word::Begun))
    })
    .by_run("Overwritten { owner: 1, chunk: ")
    .not_on_gpus(),
    // Rank 0 gets no rows, so it waits for nobody's sums.
    mutant((ONE_OWNS, 0), "multiplies while others read older sums", |steps| {
        each(steps, |_, step| match step {
            Step::Await { word: Word::Consumed { .. }, age } => set(age, 2),
            _ => false,
        })
    })
    .by_run("Overwritten { owner: 0, chunk: 0, from: 0")
    .not_on_gpus(),
    mutant((EQUAL, 1), "drops an acknowledgement", drop_an_acknowledgement).by_run("Deadlock"),
    mutant((EQUAL, 1), "reduces twice", |steps| repeat(steps, 0, is_reduction))
        .by_order("NotOnce { what: \"rank 1 adds up chunk 1\", times: 2 }"),
    mutant((EQUAL, 1), "drops a reduction", |steps| remove(steps, is_reduction))
        .by_order("NotOnce { what: \"rank 1 adds up chunk 1\", times: 0 }")
        .not_on_gpus(),
];

/// Of a GEMM + all-reduce in one shot.
pub const ONE_SHOT_MUTANTS: &[Mutant] = &[
    mutant((EQUAL, 1), "drops a move", drop_a_move)
        .by_order("NotOnce { what: \"rank 0 gets")
        .by_run("ReadTooEarly { reader: 0, chunk: 0, from: 1"),
    mutant((EQUAL, 1), "sends to itself", |steps| {
        each(steps, |_, step| match step {
            Step::Move { to, .. } => set(to, 1),
            _ => false,
        })
    })
    .by_order("NoSuchStep { rank: 1")
    .by_run("ReadTooEarly { reader: 0, chunk: 0, from: 1"),
    mutant((EQUAL, 1), "signals before it sends", signal_before_the_last_move)
        .by_run("ReadTooEarly { reader: 0, chunk: 1, from: 1"),
    mutant((EQUAL, 1), "drops the wait for its own sums", |steps| {
        remove(steps, |step| awaits(step, Word::Summed { chunk: 2 }))
    })
    .by_run("ReadTooEarly { reader: 1, chunk: 2, from: 1"),
    mutant((EQUAL, 1), "waits for no sums of rank 0", |steps| {
        remove(steps, |step| {
            matches!(step, Step::Await { word: Word::Partial { from: 0, .. }, .. })
        })
    })
    .by_run("ReadTooEarly { reader: 1, chunk: 1, from: 0"),
    mutant((EQUAL, 1), "drops a reduction", |steps| remove(steps, is_reduction))
        .by_order("NotOnce { what: \"rank 1 adds up chunk 0\", times: 0 }"),
    mutant((EQUAL, 1), "multiplies too few rows", |steps| {
        let first = steps.iter().position(|(_, step)| is_product(step));
        first.inspect(|at| drop(steps.remove(*at))).is_some()
    })
    .by_order("NotAllRows { rank: 1")
    .by_run("ReadTooEarly { reader: 1, chunk: 2, from: 1"),
];

/// Of a GEMM + all-reduce in two shots. Chunk 1 is rank 1's.
pub const TWO_SHOT_MUTANTS: &[Mutant] = &[
    mutant((EQUAL, 1), "sends sums in place of a total", |steps| {
        // It does not wait until they have been added up.
        remove(steps, |step| awaits(step, Word::Summed { chunk: 1 }))
    })
    .by_run("ReadTooEarly { reader: 1, chunk: 1, from: 1"),
    mutant((EQUAL, 1), "says that a total is complete before it adds up", |steps| {
        put_before(steps, is_reduction, |step| {
            matches!(step, Step::Post { word: Word::Summed { chunk: 1 }, .. })
        })
    })
    .by_run("ReadTooEarly { reader: 1, chunk: 1, from: 1"),
    mutant((EQUAL, 1), "drops a total", |steps| {
        remove(steps, |step| matches!(step, Step::Move { chunk: 1, to: 0 }))
    })
    .by_order("NotOnce { what: \"rank 0 gets chunk 1 from rank 1\", times: 0 }")
    .by_run("ReadTooEarly { reader: 0, chunk: 1, from: 1"),
    mutant((EQUAL, 1), "signals a total before it sends it", signal_before_the_last_move)
        .by_run("ReadTooEarly { reader: 0, chunk: 1, from: 1")
        .not_on_gpus(),
    mutant((EQUAL, 1), "drops the wait for a total", |steps| {
        remove(steps, |step| awaits(step, Word::Partial { chunk: 0, from: 0 }))
    })
    .by_run("ReadTooEarly { reader: 1, chunk: 0, from: 0"),
    mutant((EQUAL, 1), "drops the wait for another rank's sums", drop_the_wait_for_sums_of_another)
        .by_run("ReadTooEarly { reader: 1, chunk: 1, from: 0"),
    mutant((ONE_OWNS, 0), "neither awaits nor stores a total", |steps| {
        // It computes sums two epochs later in the place of some that it still sends.
        remove(steps, |step| awaits(step, Word::Partial { chunk: 0, from: 1 }))
            && remove(steps, is_reduction)
    })
    .by_order("NotOnce { what: \"rank 0 adds up chunk 0\", times: 0 }")
    .by_run("Overwritten { owner: 0, chunk: 0, from: 0")
    .not_on_gpus(),
    mutant((EQUAL, 1), "stores no total", |steps| {
        remove(steps, |step| matches!(step, Step::Reduce { chunk: 0 }))
    })
    .by_order("NotOnce { what: \"rank 1 adds up chunk 0\", times: 0 }")
    .not_on_gpus(),
    mutant((EQUAL, 1), "sends its sums of a chunk to a rank that does not add it up", |steps| {
        each(steps, |_, step| match step {
            Step::Move { chunk: 0, to } => set(to, 2),
            _ => false,
        })
    })
    .by_order("NoSuchStep { rank: 1, step: \"move 0 → 2\" }")
    .by_run("ReadTooEarly { reader: 0, chunk: 0, from: 1"),
];

/// Those that a kernel can carry out: it adds up, and sends what it adds, in one lane.
pub fn two_shot_mutants_of_a_kernel() -> Vec<&'static Mutant> {
    let names =
        ["drops a total", "drops the wait for a total", "drops the wait for another rank's sums"];
    let found = TWO_SHOT_MUTANTS.iter().filter(|mutant| names.contains(&mutant.name));
    let found: Vec<_> = found.collect();
    assert_eq!(found.len(), names.len());
    found
}

fn drop_a_move(steps: &mut Steps) -> bool {
    remove(steps, |step| moves_to(step, 0))
}

fn say_too_early_that_sums_are_complete(steps: &mut Steps) -> bool {
    let says = |step: &Step| matches!(step, Step::Post { word: Word::Summed { .. }, .. });
    put_before(steps, is_product, says)
}

fn drop_the_wait_for_own_sums(steps: &mut Steps) -> bool {
    remove(steps, |step| awaits(step, Word::Summed { chunk: 0 }))
}

/// Of rank 1, for those of rank 0.
fn drop_the_wait_for_sums_of_another(steps: &mut Steps) -> bool {
    remove(steps, |step| awaits(step, Word::Partial { chunk: 1, from: 0 }))
}

fn signal_before_a_move(steps: &mut Steps) -> bool {
    let signals = |step: &Step| {
        let Step::Post { word, to: 0, .. } = step else { return false };
        matches!(word, Word::Landed { .. } | Word::Partial { .. })
    };
    put_before(steps, |step| moves_to(step, 0), signals)
}

/// Of the last one: what is sent later makes up for others.
fn signal_before_the_last_move(steps: &mut Steps) -> bool {
    let last = steps.iter().rposition(|(_, step)| matches!(step, Step::Move { .. }));
    last.inspect(|at| steps.swap(*at, at + 1)).is_some()
}

fn send_to_the_wrong_rank(steps: &mut Steps) -> bool {
    each(steps, |_, step| match step {
        Step::Move { to, .. }
        | Step::Post { word: Word::Landed { .. } | Word::Partial { .. }, to, .. }
            if *to == 0 =>
        {
            set(to, 1)
        }
        _ => false,
    })
}

fn drop_an_acknowledgement(steps: &mut Steps) -> bool {
    remove(steps, |step| matches!(step, Step::Post { word: Word::Consumed { .. }, to: 0, .. }))
}

fn acknowledge_too_early(steps: &mut Steps) -> bool {
    each(steps, |_, step| match step {
        Step::Post { word: Word::Consumed { .. }, age, .. } => set(age, 0),
        _ => false,
    })
}

/// Changes each step that `change` knows; whether there was any.
fn each(steps: &mut Steps, mut change: impl FnMut(Lane, &mut Step) -> bool) -> bool {
    steps.iter_mut().fold(false, |changed, (lane, step)| change(*lane, step) | changed)
}

fn set(number: &mut u32, to: u32) -> bool {
    *number = to;
    true
}

fn remove(steps: &mut Steps, is: impl Fn(&Step) -> bool) -> bool {
    let before = steps.len();
    steps.retain(|(_, step)| !is(step));
    steps.len() < before
}

/// Does the first such step once more, `later` steps later.
fn repeat(steps: &mut Steps, later: usize, is: fn(&Step) -> bool) -> bool {
    let Some(at) = steps.iter().position(|(_, step)| is(step)) else { return false };
    steps.insert(at + later, steps[at].clone());
    true
}

/// Puts the first step that is `second` in front of the first that is `first`.
fn put_before(steps: &mut Steps, first: fn(&Step) -> bool, second: fn(&Step) -> bool) -> bool {
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

fn is_product(step: &Step) -> bool {
    matches!(step, Step::Multiply { .. })
}

fn is_reduction(step: &Step) -> bool {
    matches!(step, Step::Reduce { .. })
}
