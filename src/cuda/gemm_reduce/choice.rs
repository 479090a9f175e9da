//! The way of a reduction, where some of it was left open: what is predicted to be the fastest; without a product, a rule.
//!
//! What belongs here: the question to `predict`, with the kernels of this binary, and the answer in words. Pure: no device.
//! Invariant: equal questions have equal answers on every rank; what was asked for is among the open ways.

use crate::cuda::product::choice::choose as choose_kernel;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::sys::build_info::kernels;
use crate::kernels::Kernel;
use crate::plan::{Engine, Operation, Partials, Problem, Way};
use crate::predict::{Machine, Setup, ranked};

/// What is reduced, as all ranks plan it.
#[derive(Clone, Copy)]
pub(super) struct Reduced<'a> {
    pub(super) operation: Operation,
    pub(super) products: &'a [(Problem, GemmOptions)],
    /// Of all products together.
    pub(super) columns: u32,
    pub(super) partials: Partials,
}

impl Reduced<'_> {
    /// One of the `open` ways of a reduction of products, on GPUs of `sms` SMs, and why that one.
    pub(super) fn choose(&self, open: &[Way], sms: u32) -> (Way, String) {
        self.choose_of(kernels().unwrap_or_default(), open, sms)
    }

    fn choose_of(&self, kernels: &[Kernel], open: &[Way], sms: u32) -> (Way, String) {
        if let [way] = open {
            return (*way, why_alone(*way).into());
        }
        // To what travels, products of one A are one with all of their columns.
        let (first, gemm) = &self.products[0];
        let whole = match self.products {
            [_] => Ok(first.clone()),
            _ => {
                let ranks_columns = u64::from(first.columns_of_b() / first.n());
                first.with_n(ranks_columns * u64::from(self.columns))
            }
        };
        let all = whole.map(|whole| {
            let setups = open.iter().filter_map(|way| self.setup(kernels, &whole, *way, sms, gemm));
            ranked(&Machine::h200().with_sms(sms), &whole, setups)
        });
        let times = all.iter().flatten().map(|(setup, estimate)| (setup.way, estimate.total));
        let times: Vec<_> = times.map(|(way, total)| (way, total.as_secs_f64() * 1e6)).collect();
        let Some(((way, us), others)) = times.split_first() else {
            return (open[0], "no prediction holds for it, and sums travel during products".into());
        };
        let others = others.iter().map(|(way, us)| format!("; {way}: {us:.1}"));
        (*way, format!("predicted to take {us:.1} µs") + &others.collect::<String>())
    }

    /// One of the `open` ways of a reduction without a product: what was the fastest.
    pub(super) fn choose_alone(&self, open: &[Way]) -> (Way, String) {
        // Bytes of totals that a rank gets, up to which a kernel was the fastest, as far as it was measured, on two H200
        // (benches/results/2026-11-29-h200x2-alone-many-rows.txt). In an all-reduce copies bring all rows before any are added.
        let few = if self.operation.is_all_reduce() { 64 << 20 } else { 16 << 20 };
        let row = u64::from(self.columns) * u64::from(self.partials.element().size());
        let are_few = u64::from(self.operation.most_output_rows(&self.products[0].0)) * row <= few;
        let why = match are_few {
            true => "a kernel adds up these sums sooner than copy engines bring them",
            false => "copy engines take no SM while many sums travel",
        };
        let fits = |way: &&Way| matches!(way.engine, Engine::Kernel { .. }) == are_few;
        match open.iter().find(fits) {
            Some(way) if open.len() > 1 => (*way, why.into()),
            _ => (open[0], why_alone(open[0]).into()),
        }
    }

    /// How it is carried out that way; `None`: no kernel computes it.
    fn setup(
        &self,
        kernels: &[Kernel],
        whole: &Problem,
        way: Way,
        sms: u32,
        gemm: &GemmOptions,
    ) -> Option<Setup> {
        let adds_up = self.operation.products_add_up(way.strategy, way.engine);
        let sum_type = self.partials.element();
        // As they are planned: what becomes of a total is no business of a product's, but where it adds up.
        let kernel_of = |sums: &Problem, gemm: &GemmOptions| {
            let part = way.part_of_sums(sums).ok()?;
            let gemm = GemmOptions { adds_others: adds_up, c: gemm.c && adds_up, ..gemm.clone() };
            choose_kernel(kernels, &part, &gemm, sms).ok()
        };
        for (one, gemm) in self.products {
            if adds_up {
                one.check_fused_sums(sum_type).ok()?;
            }
            kernel_of(&one.of_sums(whole.n(), sum_type).ok()?, gemm)?;
        }
        let choice = kernel_of(&whole.of_sums(whole.n(), sum_type).ok()?, gemm)?;
        Some(Setup {
            operation: self.operation,
            way,
            kernel: kernels[choice.kernel].clone(),
            swizzle: choice.swizzle,
            splits: choice.splits,
            sms: gemm.sm_limit,
        })
    }
}

/// Why no other way is open.
fn why_alone(way: Way) -> &'static str {
    match way.engine {
        Engine::Nccl => "NCCL adds up sums when all of them have been computed",
        _ => "asked for",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kernels::all_kernels;
    use crate::plan::Strategy;
    use crate::predict::ways_of_sums;

    fn ways(operation: Operation) -> Vec<Way> {
        ways_of_sums(&Problem::builder(64, 64, 64).ranks(2).build().unwrap(), operation, None)
    }

    fn chosen(operation: Operation, m: u64, open: &[Way], kernels: &[Kernel]) -> (String, String) {
        let problem = Problem::builder(m, 8192, 3584).ranks(2).build().unwrap();
        let (columns, partials) = (8192, Partials::Bf16);
        let products = &[(problem, GemmOptions::default())];
        let reduced = Reduced { operation, products, columns, partials };
        let (way, why) = match operation.is_alone() {
            true => reduced.choose_alone(open),
            false => reduced.choose_of(kernels, open, 132),
        };
        (way.to_string(), why)
    }

    #[test]
    fn the_way_that_was_measured_to_be_the_fastest_is_chosen() {
        let kernels = all_kernels();
        let all = ways(Operation::GemmAllReduce);
        let [pipelined, by_kernel, fused] = [0, 2, 5].map(|nth: usize| all[nth].to_string());
        // benches/results: 2026-11-26-h200x2-few-sums.txt, 2026-11-28-h200x2-all-reduce.json, and the reduce-scatter's files.
        for (operation, m, expected) in [
            (Operation::GemmReduceScatter, 64, &by_kernel),
            (Operation::GemmReduceScatter, 512, &by_kernel),
            (Operation::GemmReduceScatter, 1024, &pipelined),
            (Operation::GemmAllReduce, 512, &by_kernel),
            (Operation::GemmAllReduce, 1024, &by_kernel),
            (Operation::GemmAllReduce, 8192, &fused),
        ] {
            let all = ways(operation);
            let (way, why) = chosen(operation, m, &all, kernels);
            assert_eq!(way, *expected, "{operation}, {m} rows: {why}");
            assert!(
                why.starts_with("predicted to take ") && why.matches(';').count() == all.len() - 1,
                "{why}"
            );
        }
    }

    /// 3 % of a long step are more than what a kernel spares the host.
    #[test]
    fn a_kernel_is_not_preferred_where_copies_are_much_sooner() {
        let problem = Problem::builder(15638, 4224, 10624).ranks(2).build().unwrap();
        let (operation, partials) = (Operation::GemmAllReduce, Partials::Bf16);
        let products = &[(problem, GemmOptions::default())];
        let reduced = Reduced { operation, products, columns: 4224, partials };
        let (way, why) = reduced.choose_of(all_kernels(), &ways(operation), 132);
        assert!(!matches!(way.engine, Engine::Kernel { .. }), "{why}");
    }

    /// A way that one of several products cannot go is not chosen, in whichever order they are planned.
    #[test]
    fn every_product_has_a_say_in_the_way() {
        let all = ways(Operation::GemmAllReduce);
        let fused = all[5];
        let problem = Problem::builder(8192, 4096, 3584).ranks(2).build().unwrap();
        let adds = all_kernels().iter().find(|kernel| kernel.adds_others).unwrap();
        let never = all_kernels().iter().find(|kernel| {
            let types = [kernel.elements, adds.elements];
            !kernel.adds_others && types[0] == types[1] && !kernel.transposed
        });
        let plain = (problem.clone(), GemmOptions::default());
        let picky = (problem, GemmOptions::default().with_kernel(&never.unwrap().name));
        let way = |products: &[(Problem, GemmOptions)]| {
            let (operation, partials) = (Operation::GemmAllReduce, Partials::Bf16);
            Reduced { operation, products, columns: 8192, partials }
                .choose_of(all_kernels(), &all, 132)
                .0
        };
        assert_eq!(way(&[plain.clone(), plain.clone()]), fused);
        assert_ne!(way(&[plain.clone(), picky.clone()]), fused);
        assert_ne!(way(&[picky, plain]), fused);
    }

    #[test]
    fn few_sums_without_a_product_are_added_up_by_a_kernel() {
        let all = ways(Operation::AllReduce);
        let [copies, by_kernel] = all[..] else { panic!("{all:?}") };
        for (operation, m, expected) in [
            (Operation::ReduceScatter, 2048, by_kernel),
            (Operation::ReduceScatter, 4096, copies),
            (Operation::AllReduce, 4096, by_kernel),
            (Operation::AllReduce, 8192, copies),
        ] {
            let (way, why) = chosen(operation, m, &all, &[]);
            assert_eq!(way, expected.to_string(), "{operation}, {m} rows: {why}");
        }
        let (way, why) = chosen(Operation::AllReduce, 64, &all[..1], &[]);
        assert_eq!((way, why.as_str()), (copies.to_string(), "asked for"));
    }

    #[test]
    fn one_open_way_needs_no_prediction() {
        let way = Way { strategy: Strategy::Sequential, engine: Engine::Nccl, pieces: 1 };
        for operation in [Operation::GemmAllReduce, Operation::AllReduce] {
            let (chosen, why) = chosen(operation, 64, &[way], &[]);
            assert_eq!((chosen, &why[..4]), (way.to_string(), "NCCL"));
        }
        let all = ways(Operation::GemmReduceScatter);
        let sequential = [all[1]];
        assert_eq!(sequential[0].strategy, Strategy::Sequential);
        let (way, why) = chosen(Operation::GemmReduceScatter, 8192, &sequential, all_kernels());
        assert_eq!((way, why.as_str()), (sequential[0].to_string(), "asked for"));
        // Planning the product says that there is no kernel.
        let (way, why) = chosen(Operation::GemmReduceScatter, 64, &all, &[]);
        assert_eq!(way, all[0].to_string());
        assert!(why.starts_with("no prediction holds"), "{why}");
    }
}
