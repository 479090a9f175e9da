//! The candidates for a problem: ways to carry the operation out, kernels, and the predicted time of a step.
//!
//! What belongs here: the ways of a gather (`predict` has those of reductions), and the kernels for every way. Invariant: equal
//! problems have equal candidates everywhere; the first of a list is the default.

use super::asked::{Anything, Asked, Fits};
use super::entry::Multiplying;
use crate::kernels::{Choice, Kernel, choices, ranked, that_serve};
use crate::plan::{Engine, Problem, SMALL_SHARD, Strategy, Way};
use crate::predict::{self, Estimate, Machine, Setup, estimate};

/// The ways of a gather that make sense for shards of this size, the default first.
///
/// ```
/// use overlap_gemm::plan::Problem;
/// use overlap_gemm::tune::ways;
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// assert_eq!(ways(&problem)[0].to_string(), "fused, copy engines on one stream, 2 pieces");
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn ways(problem: &Problem) -> Vec<Way> {
    const KIB: u64 = 1 << 10;
    const MIB: u64 = 1 << 20;
    let most_rows = problem.shards().most_rows();
    let bytes = u64::try_from(problem.shard_bytes()).unwrap_or(u64::MAX);
    let mut all = Vec::new();
    let mut add = |strategy, engine, pieces| {
        let way = Way { strategy, engine, pieces };
        if pieces <= most_rows && !all.contains(&way) {
            all.push(way);
        }
    };
    let usual = Engine::usual(problem, Strategy::Fused);
    add(Strategy::Fused, usual, usual.usual_pieces(problem));
    // One stream: copies to several peers at once take longer than one after the other, and between two GPUs two streams took
    // as long or up to 12 % longer (benches/results/2026-11-26-h200x2-no-table.txt).
    let copies = Engine::CopyEngines { streams: 1 };
    let kernel = |blocks: u32| Engine::Kernel { blocks };
    // To several peers a kernel pushes for long, and slows the product that runs beside it: between four GPUs 8192×1792×4096
    // took 256 µs by 16 blocks, 301 by 32, 214 by copies (benches/results/2026-11-28-h100x4-ways.txt).
    let most_pushed = if problem.ranks() > 2 { SMALL_SHARD } else { 16 * MIB };
    if bytes <= most_pushed {
        let blocks: &[u32] = match bytes {
            0..=0x4_0000 => &[4, 8, 16],
            0x4_0001..=0x8_0000 => &[8, 16, 32],
            0x8_0001..=0x40_0000 => &[16, 32, 64],
            _ => &[16, 32],
        };
        blocks.iter().for_each(|&blocks| add(Strategy::Fused, kernel(blocks), 1));
        if bytes >= MIB {
            add(Strategy::Fused, kernel(blocks[blocks.len() / 2]), 2);
        }
        add(Strategy::Sequential, kernel(blocks[blocks.len() - 1]), 1);
    } else {
        let pushed = Way { strategy: Strategy::Fused, engine: Engine::PUSHING, pieces: 1 };
        if pushed.spans(problem) > 1 {
            add(Strategy::Fused, Engine::PUSHING, 1);
        }
        add(Strategy::Sequential, copies, 1);
    }
    if bytes >= 512 * KIB {
        for pieces in [1, 2, 4] {
            if pieces == 1 || bytes / u64::from(pieces) >= MIB {
                add(Strategy::Fused, copies, pieces);
            }
        }
        add(Strategy::Pipelined, copies, 1);
    }
    all
}

/// A plan, and its predicted time.
///
/// ```
/// use overlap_gemm::plan::{Operation, Partials, Problem};
/// use overlap_gemm::tune::{Anything, Asked, candidates};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let (operation, partials) = (Operation::AllGatherGemm, Partials::Bf16);
/// let asked = Asked { gpu: "NVIDIA H200", sms: 132, operation, problem: &problem, partials };
/// let all = candidates(&asked, &Anything);
/// println!("{}: {:.1} µs", all[0].way, all[0].us);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Candidate {
    /// Strategy, engine and pieces.
    pub way: Way,
    /// The kernel; `None`: the cost model chooses one for each product of a fused reduction, since some of them add sums.
    pub multiplying: Option<Multiplying>,
    /// The predicted microseconds of a step.
    pub us: f64,
}

/// Every way that fits with every promising kernel. Of a reduction the first is the plan without a table, and the first of each way
/// has the kernel that is chosen without one.
pub fn candidates(asked: &Asked<'_>, fits: &dyn Fits) -> Vec<Candidate> {
    match asked.operation.reduces() {
        true => of_reductions(asked, fits),
        false => of_gathers(asked, fits),
    }
}

/// The open ways of a reduction with the kernels that are chosen without a table, the way to take first.
pub(super) fn usual_of_reductions(asked: &Asked<'_>, fits: &dyn Fits) -> Vec<Candidate> {
    let all = predict::ranked(&asked.machine(), asked.problem, fits.sums(asked));
    let candidate = |(setup, estimate): (Setup, Estimate)| {
        let Setup { operation, way, ref kernel, swizzle, splits, .. } = setup;
        let multiplying = Multiplying::of(kernel, swizzle, splits);
        let adds_up = operation.products_add_up(way.strategy, way.engine);
        Candidate { way, multiplying: (!adds_up).then_some(multiplying), us: us_of(&estimate) }
    };
    all.into_iter().map(candidate).collect()
}

/// These, and their ways with other kernels.
fn of_reductions(asked: &Asked<'_>, fits: &dyn Fits) -> Vec<Candidate> {
    let Asked { problem, sms, operation, partials, .. } = *asked;
    let (machine, usual) = (asked.machine(), usual_of_reductions(asked, fits));
    let mut all = usual.clone();
    for Candidate { way, multiplying: own, .. } in usual {
        let sums = problem.of_sums(problem.n(), partials.element());
        let Ok(part) = sums.and_then(|sums| way.part_of_sums(&sums)) else { continue };
        let adds_up = operation.products_add_up(way.strategy, way.engine);
        let kernels = fits.kernels().iter().filter(|kernel| kernel.adds_others || !adds_up);
        let kernels: Vec<Kernel> = kernels.cloned().collect();
        let may = |one: &Multiplying| fits.multiplying(&way, one) && own.as_ref() != Some(one);
        for one in kernels_for(&part, &part, &kernels, sms, &may) {
            let kernel = kernels.iter().find(|kernel| kernel.name == one.kernel);
            let setup = kernel.map(|kernel| one.setup(operation, way, kernel.clone()));
            if let Some(us) = setup.and_then(|setup| predicted_us(&machine, problem, &setup)) {
                all.push(Candidate { way, multiplying: Some(one), us });
            }
        }
    }
    all
}

/// Every way of a gather with every promising kernel; the rules' fused plan is the first fused one. Where no kernel
/// fits, because the caller chooses it, each way has the kernel that the cost model would take.
fn of_gathers(asked: &Asked<'_>, fits: &dyn Fits) -> Vec<Candidate> {
    let Asked { problem, sms, operation, .. } = *asked;
    let machine = asked.machine();
    let mut ways = ways(problem);
    ways.retain(|way| fits.way(way));
    let mut all = Vec::new();
    for strategy in Strategy::ALL {
        let Ok(part) = strategy.part_of(problem) else { continue };
        let Some(first) = ways.iter().find(|way| way.strategy == strategy) else { continue };
        let list = |may: &dyn Fits, measure: &Problem, sms| {
            let may = |one: &Multiplying| may.multiplying(first, one);
            kernels_for(&part, measure, fits.kernels(), sms, &may)
        };
        // What the first of the ways would take comes first.
        let left = first.sms_of_product(problem, sms);
        let mut usual = list(fits, &part, left);
        let is_open = !usual.is_empty();
        if !is_open {
            usual = list(&Anything, &part, left);
            usual.truncate(1);
        }
        let add = |kernels: &mut Vec<Multiplying>, further: Vec<Multiplying>| {
            for one in further {
                if !kernels.contains(&one) {
                    kernels.push(one);
                }
            }
        };
        if is_open && left != sms {
            add(&mut usual, list(fits, &part, sms));
        }
        // Rows come a shard at a time: those that compute one in full waves.
        if let (Strategy::Fused, true, Ok(shard)) = (strategy, is_open, part.of_largest_shard()) {
            add(&mut usual, list(fits, &shard, sms));
        }
        for way in ways.iter().filter(|way| way.strategy == strategy) {
            let mut kernels = usual.clone();
            // Beside a kernel that pushes, a product may have fewer SMs: then others are the fastest.
            if let (Engine::Kernel { blocks }, Strategy::Fused, true) =
                (way.engine, strategy, is_open)
            {
                add(&mut kernels, list(fits, &part, sms.saturating_sub(blocks)));
            }
            for multiplying in kernels {
                let kernel = fits.kernels().iter().find(|kernel| kernel.name == multiplying.kernel);
                let setup = kernel.map(|kernel| multiplying.setup(operation, *way, kernel.clone()));
                if let Some(us) = setup.and_then(|setup| predicted_us(&machine, problem, &setup)) {
                    all.push(Candidate { way: *way, multiplying: Some(multiplying), us });
                }
            }
        }
    }
    all
}

/// The kernels for `part` that should be the fastest for `measure`: first the one that would be chosen for that, then the others by
/// speed.
fn kernels_for(
    part: &Problem,
    measure: &Problem,
    kernels: &[Kernel],
    sms: u32,
    may: &dyn Fn(&Multiplying) -> bool,
) -> Vec<Multiplying> {
    /// How many, how much slower than the quickest, and with how many numbers of slices each.
    const MOST: usize = 8;
    const SLOWER: f64 = 1.25;
    const SLICINGS: usize = 2;
    let serves = |kernel: &Kernel| kernel.computes(part);
    let mut open = choices(kernels, part, that_serve(kernels, sms, serves));
    let of =
        |Choice { kernel, swizzle, splits }| Multiplying::of(&kernels[kernel], swizzle, splits);
    open.retain(|choice| may(&of(*choice)));
    let mut least = None;
    let mut all: Vec<Multiplying> = Vec::new();
    for (choice, cost) in ranked(kernels, measure, open, sms) {
        if all.len() == MOST || cost > SLOWER * *least.get_or_insert(cost) {
            break;
        }
        let one = of(choice);
        let same = all.iter().filter(|other| other.kernel == one.kernel).count();
        if same < SLICINGS {
            all.push(one);
        }
    }
    all
}

/// The predicted microseconds of a step; `None`: this plan is not possible.
fn predicted_us(machine: &Machine, problem: &Problem, setup: &Setup) -> Option<f64> {
    let estimate = estimate(machine, &setup.plan(problem).ok()?, setup).ok()?;
    Some(us_of(&estimate)).filter(|us| *us > 0.0)
}

fn us_of(estimate: &Estimate) -> f64 {
    1e6 * estimate.total.as_secs_f64()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::{prop_assert, proptest};

    use super::super::made_up::problem;
    use super::*;
    use crate::predict::Setup;

    #[test]
    fn kernels_come_quickest_first_and_few_of_each() {
        let problem = problem(4096, 3584, 8192);
        let all = crate::kernels::all_kernels();
        let found = kernels_for(&problem, &problem, all, 132, &|_| true);
        assert!((3..=8).contains(&found.len()), "{found:?}");
        let machine = Machine::h200();
        let usual = Setup::usual(&machine, &problem, Strategy::Fused).unwrap();
        assert_eq!(found[0].kernel, usual.kernel.name);
        let without =
            kernels_for(&problem, &problem, all, 132, &|one| one.kernel != found[0].kernel);
        assert_eq!(without[0].kernel, found[1].kernel);
        assert_eq!(kernels_for(&problem, &problem, all, 132, &|_| false), []);
    }

    #[test]
    fn large_shards_of_few_columns_may_be_pushed_in_spans() {
        let pushed = Way { strategy: Strategy::Fused, engine: Engine::PUSHING, pieces: 1 };
        assert!(ways(&problem(6400, 1024, 10_240)).contains(&pushed));
        assert!(!ways(&problem(6400, 4096, 10_240)).contains(&pushed));
    }

    proptest! {
        #[test]
        fn ways_are_few_possible_and_each_is_another(m in 1u32..1_000_000, ranks in 2u64..9) {
            let problem = Problem::builder(m.into(), 3584, 8192).ranks(ranks).build().unwrap();
            let ways = ways(&problem);
            prop_assert!((1..=9).contains(&ways.len()));
            for (nth, way) in ways.iter().enumerate() {
                prop_assert!(!ways[..nth].contains(way));
                prop_assert!((1..=problem.shards().most_rows()).contains(&way.pieces));
            }
            prop_assert!(ways.iter().any(|way| way.strategy == Strategy::Fused));
            prop_assert!(ways.iter().any(|way| way.strategy == Strategy::Sequential));
        }
    }
}
