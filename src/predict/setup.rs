//! How a step is carried out: operation, way and kernel.
//!
//! What belongs here: the value, what the GPU executor takes where nothing is asked for, and the order of setups by their
//! predicted times. Invariant: a setup's kernel computes what its problem asks for; equal questions have equal answers.

use std::time::Duration;

use super::machine::Machine;
use super::{Estimate, estimate};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::kernels::{Kernel, all_kernels, cheapest, choices, kind, that_serve};
use crate::plan::{
    Engine, MAX_PUSHED, Operation, Partials, Plan, PlanOptions, Problem, Strategy, Way,
};

/// Everything that a step's time depends on besides the problem and the machine.
///
/// ```
/// use overlap_gemm::plan::{Engine, Problem, Strategy};
/// use overlap_gemm::predict::{Machine, Setup};
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let usual = Setup::usual(&Machine::h200(), &problem, Strategy::Fused)?;
/// let other = usual.clone().with_engine(Engine::CopyEngines { streams: 4 }, &problem);
/// println!("{} by {}; or {}", usual.way, usual.kernel.name, other.way);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct Setup {
    /// What is computed.
    pub operation: Operation,
    /// How rows travel, and what they meet.
    pub way: Way,
    /// What multiplies; in a reduction it computes sums, in the type in which they travel. Without a product, its D alone counts.
    pub kernel: Kernel,
    /// Unit rows that sweep over the columns together.
    pub swizzle: u32,
    /// Slices that K is cut into.
    pub splits: u32,
    /// SMs that the product occupies; `None`: what the GPU executor takes.
    pub sms: Option<u32>,
}

impl Setup {
    /// What the GPU executor would choose, had it been built with every kernel.
    pub fn usual(machine: &Machine, problem: &Problem, strategy: Strategy) -> Result<Self> {
        Self::of_kernels(all_kernels(), machine, problem, strategy)
    }

    /// The product alone, of an A that is already gathered: what no step that gathers is faster than.
    pub fn gemm(machine: &Machine, problem: &Problem) -> Result<Self> {
        let setup = Self::usual(machine, problem, Strategy::Sequential)?;
        Ok(Setup { operation: Operation::Gemm, ..setup })
    }

    /// What it would choose of these kernels.
    pub fn of_kernels(
        kernels: &[Kernel],
        machine: &Machine,
        problem: &Problem,
        strategy: Strategy,
    ) -> Result<Self> {
        let engine = Engine::usual(problem, strategy);
        let way = Way { strategy, engine, pieces: engine.usual_pieces(problem) };
        Self::of_part(kernels, machine, problem, Operation::AllGatherGemm, way)
    }

    /// What it would choose of these kernels for a reduction that is carried out this way, with sums that travel in that type.
    pub fn of_sums(
        kernels: &[Kernel],
        machine: &Machine,
        problem: &Problem,
        operation: Operation,
        way: Way,
        partials: Partials,
    ) -> Result<Self> {
        let sums = problem.of_sums(problem.n(), partials.element())?;
        Self::of_part(kernels, machine, &sums, operation, way)
    }

    fn of_part(
        kernels: &[Kernel],
        machine: &Machine,
        product: &Problem,
        operation: Operation,
        way: Way,
    ) -> Result<Self> {
        let part = match operation.reduces() {
            true => way.part_of_sums(product)?,
            false => way.strategy.part_of(product)?,
        };
        let (elements, layout) = (part.elements(), part.b_layout());
        let adds_up = operation.products_add_up(way.strategy, way.engine);
        let serves =
            |kernel: &Kernel| kernel.serves(&part, true) && (kernel.adds_others || !adds_up);
        let sms = way.sms_of_product(product, machine.sms);
        let sizes = kernels.iter().filter(|kernel| serves(kernel)).map(Kernel::cluster_size);
        if let Some(least) = sizes.min() {
            let remedy = "give the machine as many SMs as a GPU has";
            Error::check_range("the number of SMs", sms, least..=u32::MAX, remedy)?;
        }
        let choices = choices(kernels, &part, that_serve(kernels, sms, serves));
        let Some(choice) = cheapest(kernels, &part, &choices, sms) else {
            return Err(Error::Unsupported {
                what: format!("the product {} on the GPU", kind(elements, layout, true)),
                why: "no kernel computes it".into(),
                remedy: "use bf16, f16 or e4m3 inputs with B as N×K",
            });
        };
        let (kernel, swizzle, splits) =
            (kernels[choice.kernel].clone(), choice.swizzle, choice.splits);
        Ok(Setup { operation, way, kernel, swizzle, splits, sms: None })
    }

    /// The product of all rows: of `problem`, or into sums.
    pub(super) fn product_of(&self, problem: &Problem) -> Result<Problem> {
        match self.operation.reduces() {
            true => problem.of_sums(problem.n(), self.kernel.elements.d),
            false => Ok(problem.clone()),
        }
    }

    /// How `plan` is carried out by that kernel on `sms` SMs, with K cut into `splits` slices: for an operation on GPUs, of
    /// its `planned`, `kernel`, `choice` and `sm_count`.
    pub fn of_plan(plan: &Plan, kernel: &Kernel, splits: u32, sms: u32) -> Self {
        let options = plan.options();
        let (operation, swizzle) = (options.operation, options.tiling.swizzle);
        Setup {
            operation,
            way: plan.way(),
            kernel: kernel.clone(),
            swizzle,
            splits,
            sms: Some(sms),
        }
    }

    /// With that engine, and the pieces that go with it.
    #[must_use]
    pub fn with_engine(mut self, engine: Engine, problem: &Problem) -> Self {
        (self.way.engine, self.way.pieces) = (engine, engine.usual_pieces(problem));
        self
    }

    /// The plan of `problem` that is carried out so.
    pub fn plan(&self, problem: &Problem) -> Result<Plan> {
        let Way { strategy, engine, pieces } = self.way;
        let (operation, pieces) = (self.operation, Some(pieces));
        let tiling = self.kernel.tiling(self.swizzle);
        Plan::new(problem, PlanOptions { operation, strategy, engine, pieces, tiling })
    }
}

/// The ways that GPUs have for a reduction; with more streams than one, copies to several peers would share the link. `pieces`
/// of a shard; `None`: those that make sense.
///
/// ```
/// use overlap_gemm::plan::{Operation, Problem};
/// use overlap_gemm::predict::ways_of_sums;
///
/// let problem = Problem::builder(4096, 8192, 3584).ranks(2).build()?;
/// for way in ways_of_sums(&problem, Operation::GemmReduceScatter, None) {
///     println!("{way}");
/// }
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn ways_of_sums(problem: &Problem, operation: Operation, pieces: Option<u32>) -> Vec<Way> {
    let copies = Engine::CopyEngines { streams: 1 };
    let most_rows = problem.shards().most_rows();
    let fused = |pieces| Way { strategy: Strategy::Fused, engine: copies, pieces };
    let fused = pieces.map_or(vec![1, 2, 4], |pieces| vec![pieces]).into_iter().map(fused);
    let can_be = |way: &Way| {
        let adds_up = operation.products_add_up(way.strategy, way.engine);
        way.pieces <= most_rows && (!adds_up || problem.check_fused_sums(ElementType::Bf16).is_ok())
    };
    let fused = fused.filter(can_be);
    // A piece costs a copy engine some microseconds.
    let pieces = pieces.unwrap_or(1);
    let mut ways = vec![
        Way { strategy: Strategy::Pipelined, engine: copies, pieces },
        Way { strategy: Strategy::Sequential, engine: copies, pieces },
    ];
    if problem.ranks().saturating_mul(pieces) <= MAX_PUSHED {
        ways.push(Way { strategy: Strategy::Sequential, engine: Engine::EXCHANGING, pieces });
    }
    ways.extend(fused);
    // Without a product there is no order of multiplying and sending to choose.
    ways.retain(|way| !operation.is_alone() || way.strategy == Strategy::Sequential);
    ways
}

/// By how much a reduction by a kernel may be predicted to take longer, and still come before one by copies, as a part of its time:
/// predictions err by as much.
const KERNEL_LEAD: f64 = 0.03;

/// And at most by so much: what its step costs the host less, 11 to 13 µs where copies cost 30
/// (benches/results/2026-11-28-h100x2-few-sums.txt). Of long steps 3 % are more than that.
const MOST_KERNEL_LEAD: Duration = Duration::from_micros(18);

/// Those that can be predicted, each with its time. The fastest comes first, but a reduction by a kernel is taken for a little
/// faster than predicted; among equals the first.
///
/// ```
/// use overlap_gemm::plan::{Problem, Strategy};
/// use overlap_gemm::predict::{Machine, Setup, ranked};
///
/// let (machine, problem) = (Machine::h200(), Problem::builder(4096, 3584, 8192).ranks(2).build()?);
/// let setups = Strategy::ALL.into_iter().flat_map(|it| Setup::usual(&machine, &problem, it));
/// let (fastest, estimate) = &ranked(&machine, &problem, setups)[0];
/// println!("{}: {:?}", fastest.way, estimate.total);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn ranked(
    machine: &Machine,
    problem: &Problem,
    setups: impl IntoIterator<Item = Setup>,
) -> Vec<(Setup, Estimate)> {
    let predicted = setups.into_iter().filter_map(|setup| {
        let plan = setup.plan(problem).ok()?;
        let estimate = estimate(machine, &plan, &setup).ok()?;
        Some((setup, estimate))
    });
    let mut all: Vec<_> = predicted.collect();
    let score = |(setup, estimate): &(Setup, Estimate)| match setup.way.engine {
        Engine::Kernel { .. } if setup.operation.reduces() => {
            let lead = estimate.total.mul_f64(KERNEL_LEAD).min(MOST_KERNEL_LEAD);
            estimate.total - lead
        }
        _ => estimate.total,
    };
    all.sort_by_key(score);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_no_kernel_computes_is_refused() {
        let problem = Problem::builder(64, 64, 64)
            .elements(ElementType::F32, ElementType::F32, ElementType::F32)
            .build()
            .unwrap();
        let error = Setup::gemm(&Machine::h200(), &problem).unwrap_err();
        assert!(error.to_string().starts_with("the product f32 × f32 → f32"), "{error}");
    }

    #[test]
    fn a_pipelined_product_is_that_of_one_shard() {
        let problem = Problem::builder(128, 3584, 8192).ranks(8).build().unwrap();
        let setup = Setup::usual(&Machine::h200(), &problem, Strategy::Pipelined).unwrap();
        let one = Problem::builder(16, 3584, 8192).build().unwrap();
        let of_one = Setup::usual(&Machine::h200(), &one, Strategy::Sequential).unwrap();
        assert_eq!((&setup.kernel, setup.splits), (&of_one.kernel, of_one.splits));
        assert!(setup.kernel.tile.m < 128, "{}", setup.kernel);
    }
}
