//! The way of a reduction, where some of it was left open: what a table of measurements says, else what is predicted to be the
//! fastest; without a product, a rule.
//!
//! What belongs here: the question to `tune`, with the kernels of this binary, and the answer in words. Pure: the driver's name
//! apart, no device. Invariant: equal questions have equal answers on every rank; what was asked for is among the open ways, and a
//! table never makes a plan fail that would succeed without.

use crate::cuda::product::choice::choose as choose_kernel;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::tuned::{can_run, fix, origin};
use crate::cuda::sys::build_info::kernels;
use crate::cuda::sys::device::{DeviceInfo, driver_name};
use crate::kernels::Kernel;
use crate::plan::{Engine, Operation, Partials, Problem, Way};
use crate::predict::Setup;
use crate::tune::{Asked, Fits, Multiplying, Tuning};

/// What is reduced, as all ranks plan it.
#[derive(Clone, Copy)]
pub(super) struct Reduced<'a> {
    pub(super) operation: Operation,
    pub(super) products: &'a [(Problem, GemmOptions)],
    /// Of all products together.
    pub(super) columns: u32,
    pub(super) partials: Partials,
}

/// What was chosen.
pub(super) struct Chosen {
    pub(super) way: Way,
    /// With the kernel that was measured, if any.
    pub(super) products: Vec<(Problem, GemmOptions)>,
    pub(super) why: String,
}

impl Reduced<'_> {
    /// One of the `open` ways of a reduction of products, and why that one.
    pub(super) fn choose(&self, open: &[Way], tuning: &Tuning, device: &DeviceInfo) -> Chosen {
        let driver = driver_name().unwrap_or_default();
        self.choose_of(kernels().unwrap_or_default(), open, tuning, device, &driver)
    }

    fn choose_of(
        &self,
        kernels: &[Kernel],
        open: &[Way],
        tuning: &Tuning,
        device: &DeviceInfo,
        driver: &str,
    ) -> Chosen {
        if let [way] = open {
            return self.chosen(*way, why_alone(*way).into());
        }
        // To what travels, products of one A are one with all of their columns.
        let (first, _) = &self.products[0];
        let whole = match self.products {
            [_] => Ok(first.clone()),
            _ => {
                let ranks_columns = u64::from(first.columns_of_b() / first.n());
                first.with_n(ranks_columns * u64::from(self.columns))
            }
        };
        let answer = whole.ok().and_then(|whole| {
            let Reduced { operation, partials, .. } = *self;
            let (gpu, sms, problem) = (&device.name, device.sm_count, &whole);
            let asked = Asked { gpu, sms, operation, problem, partials };
            tuning.look_up(&asked, &Here { reduced: self, kernels, open, problem, sms })
        });
        let none = "no prediction holds for it, and sums travel during products";
        let why = origin(answer.as_ref(), none, driver, tuning);
        let mut chosen = self.chosen(answer.as_ref().map_or(open[0], |answer| answer.way), why);
        let multiplying = answer.and_then(|answer| answer.multiplying);
        if let (Some(multiplying), [(_, gemm)]) = (multiplying, &mut chosen.products[..]) {
            fix(gemm, &multiplying);
        }
        chosen
    }

    fn chosen(&self, way: Way, why: String) -> Chosen {
        Chosen { way, products: self.products.to_vec(), why }
    }

    /// One of the `open` ways of a reduction without a product: what was the fastest.
    pub(super) fn choose_alone(&self, open: &[Way]) -> Chosen {
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
            Some(way) if open.len() > 1 => self.chosen(*way, why.into()),
            _ => self.chosen(open[0], why_alone(open[0]).into()),
        }
    }

    fn adds_up(&self, way: Way) -> bool {
        self.operation.products_add_up(way.strategy, way.engine)
    }

    /// A product's options as they are planned: what becomes of a total is no business of a product's, but where it adds up.
    fn options_of(&self, way: Way, gemm: &GemmOptions) -> GemmOptions {
        let adds_up = self.adds_up(way);
        GemmOptions { adds_others: adds_up, c: gemm.c && adds_up, ..gemm.clone() }
    }

    /// How it is carried out that way; `None`: no kernel computes it.
    fn setup(&self, kernels: &[Kernel], whole: &Problem, way: Way, sms: u32) -> Option<Setup> {
        let (adds_up, sum_type) = (self.adds_up(way), self.partials.element());
        let kernel_of = |sums: &Problem, gemm: &GemmOptions| {
            let part = way.part_of_sums(sums).ok()?;
            choose_kernel(kernels, &part, &self.options_of(way, gemm), sms).ok()
        };
        for (one, gemm) in self.products {
            if adds_up {
                one.check_fused_sums(sum_type).ok()?;
            }
            kernel_of(&one.of_sums(whole.n(), sum_type).ok()?, gemm)?;
        }
        let (_, gemm) = &self.products[0];
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

/// What can be carried out here, of what was left open.
struct Here<'a> {
    reduced: &'a Reduced<'a>,
    kernels: &'a [Kernel],
    open: &'a [Way],
    /// The product of all columns.
    problem: &'a Problem,
    sms: u32,
}

impl Here<'_> {
    fn setup(&self, way: Way) -> Option<Setup> {
        self.reduced.setup(self.kernels, self.problem, way, self.sms)
    }
}

impl Fits for Here<'_> {
    fn kernels(&self) -> &[Kernel] {
        self.kernels
    }

    fn way(&self, way: &Way) -> bool {
        self.open.contains(way) && self.setup(*way).is_some()
    }

    fn multiplying(&self, way: &Way, multiplying: &Multiplying) -> bool {
        // Several products have a kernel each.
        let [(_, gemm)] = self.reduced.products else { return false };
        let gemm = self.reduced.options_of(*way, gemm);
        let sums = self.problem.of_sums(self.problem.n(), self.reduced.partials.element());
        let part = sums.and_then(|sums| way.part_of_sums(&sums));
        part.is_ok_and(|part| can_run(&gemm, multiplying, self.kernels, &part, self.sms))
    }

    fn sums(&self, _: &Asked<'_>) -> Vec<Setup> {
        self.open.iter().filter_map(|way| self.setup(*way)).collect()
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
#[path = "choice_tests.rs"]
mod tests;
