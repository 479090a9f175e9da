//! How the sums that ranks have over their slices of K become one output, and of which problems.
//!
//! Invariant: an output does not depend on what arrives first: the sums are added in `f32`, in the one order that
//! [`Plan::additions`] says. Threads and the reference follow it; tests compare GPUs with the reference. NCCL alone adds in an
//! order of its own.

use serde::{Deserialize, Serialize};

use super::problem::Problem;
use super::types::Scaling;
use super::way::Engine;
use super::whole::Plan;
use crate::element::{Element, ElementType, bf16};
use crate::error::{Error, Result};

/// The type in which sums travel to the rank that adds them up.
///
/// ```
/// use overlap_gemm::plan::Partials;
///
/// let sum = 1.0 + 1.0 / 1024.0;
/// assert_eq!((Partials::Bf16.round(sum), Partials::F32.round(sum)), (1.0, sum));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partials {
    /// Rounded once, to half the bytes; by NCCL perhaps after each addition.
    #[default]
    Bf16,
    /// As they are.
    F32,
}

impl Partials {
    /// The element type.
    pub fn element(self) -> ElementType {
        match self {
            Partials::Bf16 => ElementType::Bf16,
            Partials::F32 => ElementType::F32,
        }
    }

    /// The sum as it arrives.
    pub fn round(self, sum: f32) -> f32 {
        match self {
            Partials::Bf16 => bf16::narrow(sum).widen(),
            Partials::F32 => sum,
        }
    }
}

/// How the ranks' sums are added up.
///
/// ```
/// use overlap_gemm::plan::{Partials, Reduction};
///
/// let mean = Reduction { average: true, ..Reduction::default() };
/// assert_eq!(mean.partials, Partials::Bf16);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reduction {
    /// The type in which sums travel.
    pub partials: Partials,
    /// Whether the total is divided by the number of ranks.
    pub average: bool,
}

impl Problem {
    /// Totals of these rows of each rank that are rounded to `d`: a problem for a reduction without a product.
    pub(crate) fn of_totals(rows: &[u32], columns: u32, d: ElementType) -> Result<Self> {
        let m = rows.iter().map(|rows| u64::from(*rows)).sum();
        // Nothing is multiplied: any A, B and K will do.
        let problem = Problem::builder(m, columns.into(), 16).shards(rows);
        problem.elements(ElementType::Bf16, ElementType::Bf16, d).build()
    }

    /// An error unless a product of this can add other ranks' sums, which are in `sums`, while it stores D: in a fused
    /// reduction on a GPU.
    pub fn check_fused_sums(&self, sums: ElementType) -> Result<()> {
        let d = self.elements().d;
        let (of_what, why) = if self.scaling() != Scaling::None {
            ("scaled fp8".into(), "others' sums would have to be divided by the scales")
        } else if sums != d || d.size() != 2 {
            let of_what = format!("sums in {sums} to a D in {d}");
            (of_what, "a product reads others' sums in D's type, of 16 bits")
        } else {
            return Ok(());
        };
        Err(Error::Unsupported {
            what: format!("a fused reduction of {of_what}"),
            why: why.into(),
            remedy: "use Strategy::Pipelined, or leave the strategy out",
        })
    }
}

impl Plan {
    /// The ranks whose sums of `owner`'s rows are added up for `rank`, in the order of the additions; each with the type to which its
    /// sums are rounded before.
    ///
    /// That is the order of the ranks. Only where products add up, in a fused reduction on GPUs, the sums of the rank that adds are
    /// the first, unrounded, since they are in registers. In a reduce-scatter on threads they are unrounded at their own place.
    /// What NCCL adds has an order of its own, which is not this one.
    ///
    /// ```
    /// use overlap_gemm::plan::Partials::{Bf16, F32};
    /// use overlap_gemm::plan::{Engine, Operation, Plan, PlanOptions, Problem};
    ///
    /// let problem = Problem::builder(3, 16, 16).ranks(3).build()?;
    /// let threads = PlanOptions { operation: Operation::GemmReduceScatter, ..PlanOptions::new() };
    /// let order = |options| Plan::new(&problem, options).map(|plan| plan.additions(1, 1, Bf16));
    /// assert_eq!(order(threads)?, [(0, Bf16), (1, F32), (2, Bf16)]);
    /// let gpus = threads.with_engine(Engine::CopyEngines { streams: 1 });
    /// assert_eq!(order(gpus)?, [(1, F32), (0, Bf16), (2, Bf16)]);
    /// # Ok::<(), overlap_gemm::Error>(())
    /// ```
    pub fn additions(&self, rank: u32, owner: u32, partials: Partials) -> Vec<(u32, Partials)> {
        let operation = self.options().operation;
        let adder = if self.has_two_shots() { owner } else { rank };
        let first = self.products_add_up().then_some(adder);
        let on_threads = self.options().engine == Engine::Thread;
        let keeps_own = first.is_some() || on_threads && !operation.is_all_reduce();
        let others = (0..self.problem().ranks()).filter(|from| Some(*from) != first);
        let rounded = |from| if keeps_own && from == adder { Partials::F32 } else { partials };
        first.into_iter().chain(others).map(|from| (from, rounded(from))).collect()
    }
}
