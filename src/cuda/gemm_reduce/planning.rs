//! Planning GEMM + reduce-scatter or all-reduce: the products of all rows, where their sums lie, and what sends them.
//!
//! Invariant: a rank that cannot plan a product says so where all agree on the operation, so that none waits for it.

use std::sync::Arc;

use super::GemmReduce;
use crate::cuda::exchange::reach::obstacle;
use crate::cuda::movers::engines::{self, choose_for_sums};
use crate::cuda::movers::gather::Gatherer;
use crate::cuda::movers::gather::joining::Purpose;
use crate::cuda::movers::options::GatherOptions;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::{Product, check_alike};
use crate::cuda::sys::device::Device;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{Activation, MAX_DIMENSION, Operation, Partials, Problem, Reduction, Strategy};

/// One product, and what becomes of its sums.
#[derive(Debug)]
pub(super) struct Sum {
    /// As the caller planned it: D is what becomes of the total.
    pub(super) problem: Problem,
    pub(super) options: GemmOptions,
    /// Multiplies rows of A into this rank's sums, and does nothing else.
    pub(super) product: Product,
    /// Where its columns start in a row of all products' sums, in bytes.
    pub(super) column: u64,
}

impl<const ALL: bool> GemmReduce<ALL> {
    pub(super) const OPERATION: Operation =
        if ALL { Operation::GemmAllReduce } else { Operation::GemmReduceScatter };

    /// Plans the operation: all ranks call it, with the same. Returns when all have. Strategy `None`: by the number of rows,
    /// as [`GemmReduce::explain`] says.
    pub fn plan(
        group: &Arc<Group>,
        device: &Device,
        problem: &Problem,
        strategy: Option<Strategy>,
        options: &GatherOptions,
        gemm: &GemmOptions,
        reduction: Reduction,
    ) -> Result<Self> {
        let problems = std::slice::from_ref(problem);
        Self::plan_all(group, device, problems, strategy, options, gemm, reduction)
    }

    /// [`GemmReduce::plan`] for several products of the same A: problems that differ in N, in B's layout and in D,
    /// and in nothing else.
    pub fn plan_all(
        group: &Arc<Group>,
        device: &Device,
        problems: &[Problem],
        strategy: Option<Strategy>,
        options: &GatherOptions,
        gemm: &GemmOptions,
        reduction: Reduction,
    ) -> Result<Self> {
        let obstacle = obstacle(group, device, options.timeouts.first)?;
        let refuse = |error| Gatherer::refuse(group, options, error);
        let first = check_alike(problems).map_err(refuse)?;
        let columns = columns_of(problems).map_err(refuse)?;
        let (operation, partials) = (Self::OPERATION, reduction.partials);
        let sent = engines::Sums { operation, columns, partials };
        let way = choose_for_sums(options, first, strategy, None, sent).map_err(refuse)?.0;
        let sums = plan_sums(device, problems, way.strategy, gemm, (columns, partials));
        let tiling = match &sums {
            Ok(sums) => {
                let product = &sums[0].product;
                Ok(product.kernel.tiling(product.choice.swizzle))
            }
            Err(error) => Err(error.clone()),
        };
        let kind = format!("{operation} {strategy:?} {problems:?} {gemm:?} {reduction:?}");
        let purpose = Purpose { kind: &kind, tiling, operation, strategy, sums: Some(sent) };
        let gatherer =
            Gatherer::join(group, device, first, &purpose, options, obstacle.as_deref())?;
        let (sums, way) = (sums?, gatherer.plan().way());
        tracing::debug!(rank = group.rank(), problem = %first, %way, "planned {operation}");
        Ok(GemmReduce { gatherer, sums, reduction })
    }
}

/// The columns of all products together.
fn columns_of(problems: &[Problem]) -> Result<u32> {
    let columns: u64 = problems.iter().map(|problem| u64::from(problem.n())).sum();
    match u32::try_from(columns) {
        Ok(columns) if columns <= MAX_DIMENSION => Ok(columns),
        _ => {
            let what = "the columns of all products together";
            let remedy = "plan several operations";
            Err(Error::out_of_range(what, columns, 1, MAX_DIMENSION.into(), remedy))
        }
    }
}

fn plan_sums(
    device: &Device,
    problems: &[Problem],
    strategy: Strategy,
    gemm: &GemmOptions,
    (columns, partials): (u32, Partials),
) -> Result<Vec<Sum>> {
    // What becomes of a total is no business of the products'.
    let plain = GemmOptions { activation: Activation::None, bias: false, c: false, ..gemm.clone() };
    let mut next = 0;
    let sum = |problem: &Problem| {
        problem.check_tma()?;
        let part = strategy.part_of(&problem_of_sums(problem, columns, partials)?)?;
        let product = Product::plan(device, &part, &plain)?;
        let (problem, options) = (problem.clone(), gemm.clone());
        let column = next;
        next += u64::from(problem.n()) * u64::from(partials.element().size());
        Ok(Sum { problem, options, product, column })
    };
    problems.iter().map(sum).collect()
}

/// The product of all rows, into some columns of a row of sums.
fn problem_of_sums(problem: &Problem, columns: u32, partials: Partials) -> Result<Problem> {
    let elements = problem.elements();
    Problem::builder(problem.m().into(), problem.n().into(), problem.k().into())
        .shards(&problem.shards().to_rows())
        .elements(elements.a, elements.b, partials.element())
        .b_layout(problem.b_layout())
        .lda(problem.lda().into())
        .ldb(problem.ldb().into())
        .ldd(columns.into())
        .scaling(problem.scaling())
        .build()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType::{Bf16, F16, F32};
    use crate::plan::BLayout;

    #[test]
    fn sums_lie_side_by_side_in_the_type_of_partials() {
        let one = Problem::builder(100, 48, 64).shards(&[40, 0, 60]).elements(F16, F16, F32);
        let one = one.b_layout(BLayout::Kn).lda(72).ldb(56).ldd(52).build().unwrap();
        let other = Problem::builder(100, 16, 64).shards(&[40, 0, 60]).build().unwrap();
        assert_eq!(columns_of(&[one.clone(), other]), Ok(64));
        let sums = problem_of_sums(&one, 64, Partials::Bf16).unwrap();
        assert_eq!((sums.n(), sums.ldd(), sums.elements().d), (48, 64, Bf16));
        assert_eq!((sums.lda(), sums.ldb(), sums.b_layout()), (72, 56, BLayout::Kn));
        assert_eq!(sums.shards(), one.shards());
    }

    #[test]
    fn too_many_columns_are_refused() {
        let wide = Problem::builder(1, 1 << 30, 16).build().unwrap();
        let text = columns_of(&[wide.clone(), wide]).unwrap_err().to_string();
        assert!(text.starts_with("the columns of all products together is 2147483648"), "{text}");
    }
}
