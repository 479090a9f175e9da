//! Planning a reduction with all ranks.
//!
//! Invariant: a rank that cannot plan says so where all agree, so that none waits for it.

use std::sync::Arc;

use super::choice::{Chosen, Reduced};
use super::{Reduce, Sum};
use crate::cuda::exchange::reach::obstacle;
use crate::cuda::movers::engines::ways_for_sums;
use crate::cuda::movers::gather::Gatherer;
use crate::cuda::movers::gather::joining::Purpose;
use crate::cuda::movers::options::CollectiveOptions;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::{Product, check_alike, check_size};
use crate::cuda::sys::device::Device;
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{
    Activation, MAX_DIMENSION, Operation, Partials, PlanOptions, Problem, Reduction, Way,
};
use crate::tune::Tuning;

impl<const ALL: bool, const GEMM: bool> Reduce<ALL, GEMM> {
    /// Plans with all ranks.
    pub(super) fn join(
        group: &Arc<Group>,
        device: &Device,
        products: &[(Problem, GemmOptions)],
        options: &CollectiveOptions,
        reduction: Reduction,
        tuning: &Tuning,
    ) -> Result<Self> {
        let obstacle = obstacle(group, device, options.timeouts.first)?;
        let refuse = |error| Gatherer::refuse(group, options, error);
        let first = check_alike(products).map_err(refuse)?;
        let (operation, partials) = (Self::OPERATION, reduction.partials);
        let columns = check_sums(operation, products).map_err(refuse)?;
        let open = ways_for_sums(options, first, operation, obstacle.as_deref());
        let open = open.map_err(refuse)?;
        let reduced = Reduced { operation, products, columns, partials };
        let none = Tuning::none();
        // As in a gather, a strategy that is asked for is planned without a table.
        let tuning = if options.strategy.is_some() { &none } else { tuning };
        let Chosen { way, products, why } = match GEMM {
            true => reduced.choose(&open, tuning, device.info()),
            false => reduced.choose_alone(&open),
        };
        let adds_up = operation.products_add_up(way.strategy, way.engine);
        let sums = Self::plan_sums(device, &products, way, adds_up, (columns, partials));
        let sums = sums.map_err(refuse)?;
        let product = sums[0].product.as_ref();
        let tiling = product.map_or(PlanOptions::default().tiling, Product::tiling);
        // What a table has decided is in it, so that ranks with different tables notice.
        let kind = format!("{operation} {way:?} {products:?} {reduction:?}");
        let sent = Some((columns, partials));
        let purpose = Purpose { kind: &kind, tiling, operation, way, sums: sent };
        let mut gatherer = Gatherer::join(group, device, first, &purpose, options)?;
        let products = sums.iter().flat_map(|sum| sum.product.iter().chain(&sum.adding));
        gatherer.note_products(products.map(Product::occupied_sms).max().unwrap_or(0));
        tracing::debug!(rank = group.rank(), problem = %first, %way, why, "planned {operation}");
        Ok(Reduce { gatherer, sums, reduction, why })
    }

    fn plan_sums(
        device: &Device,
        products: &[(Problem, GemmOptions)],
        way: Way,
        adds_up: bool,
        (columns, partials): (u32, Partials),
    ) -> Result<Vec<Sum>> {
        let mut next = 0;
        let sum = |(problem, options): &(Problem, GemmOptions)| {
            problem.check_tma()?;
            let part = way.part_of_sums(&problem.of_sums(columns, partials.element())?)?;
            check_size(&part)?;
            // What becomes of a total is no business of the product's.
            let plain = GemmOptions {
                activation: Activation::None,
                bias: false,
                c: false,
                ..options.clone()
            };
            let product = GEMM.then(|| Product::plan(device, &part, &plain)).transpose()?;
            let adding = || {
                problem.check_fused_sums(partials.element())?;
                let options = GemmOptions { adds_others: true, ..options.clone() };
                Product::plan(device, &way.part_of_sums(problem)?, &options)
            };
            let adding = adds_up.then(adding).transpose()?;
            let (problem, options) = (problem.clone(), options.clone());
            let column = next;
            next += u64::from(problem.n()) * u64::from(partials.element().size());
            Ok(Sum { problem, options, product, adding, column })
        };
        products.iter().map(sum).collect()
    }
}

/// The columns of all products together; an error if `operation` cannot add up the sums of one.
fn check_sums(operation: Operation, products: &[(Problem, GemmOptions)]) -> Result<u32> {
    products.iter().try_for_each(|(problem, _)| {
        problem.check_gate(operation)?;
        problem.elements().check_reduced(operation)
    })?;
    let columns: u64 = products.iter().map(|(problem, _)| u64::from(problem.n())).sum();
    let (what, remedy) = ("the columns of all products together", "plan several operations");
    Error::check_range(what, columns, 1..=MAX_DIMENSION.into(), remedy)?;
    Ok(columns as u32)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType::{Bf16, E4m3, F16, F32};
    use crate::plan::BLayout;

    #[test]
    fn sums_lie_side_by_side_in_the_type_of_partials() {
        let one = Problem::builder(100, 48, 64).shards(&[40, 0, 60]).elements(F16, F16, F32);
        let one = one.b_layout(BLayout::Kn).lda(72).ldb(56).ldd(52).build().unwrap();
        let other = Problem::builder(100, 16, 64).shards(&[40, 0, 60]).build().unwrap();
        let products = [one.clone(), other].map(|problem| (problem, GemmOptions::default()));
        assert_eq!(check_sums(Operation::GemmReduceScatter, &products), Ok(64));
        let sums = one.of_sums(64, Bf16).unwrap();
        assert_eq!((sums.n(), sums.ldd(), sums.elements().d), (48, 64, Bf16));
        assert_eq!((sums.lda(), sums.ldb(), sums.b_layout()), (72, 56, BLayout::Kn));
        assert_eq!(sums.shards(), one.shards());
    }

    #[test]
    fn too_many_columns_are_refused() {
        let wide = Problem::builder(1, 1 << 30, 16).build().unwrap();
        let wide = (wide, GemmOptions::default());
        let sums = check_sums(Operation::GemmReduceScatter, &[wide.clone(), wide]);
        let text = sums.unwrap_err().to_string();
        assert!(text.starts_with("the columns of all products together is 2147483648"), "{text}");
    }

    #[test]
    fn every_product_has_sums_that_can_be_added_up() {
        let one = Problem::builder(64, 32, 64).elements(E4m3, E4m3, Bf16);
        let others = [one.clone().gated(true), one.clone().elements(E4m3, E4m3, E4m3)];
        let texts = ["a reduction of gated products", "a reduction to e4m3"];
        for (other, text) in others.into_iter().zip(texts) {
            let products =
                [one.clone(), other].map(|of| (of.build().unwrap(), GemmOptions::default()));
            for operation in [Operation::GemmReduceScatter, Operation::GemmAllReduce] {
                let error = check_sums(operation, &products).unwrap_err().to_string();
                assert!(error.starts_with(text), "{error}");
            }
        }
    }
}
