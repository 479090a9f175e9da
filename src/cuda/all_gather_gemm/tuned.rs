//! What a table of measurements, or a prediction where it has none, decides of an all-gather + GEMM.
//!
//! What belongs here: what was left open, whether what the table has can be carried out here, and how it is put
//! into options; `product::tuned` has what reductions do, too. Pure: the driver's name apart, no device. Invariant: all that a caller fixed stays as it is, and
//! what comes out is legal, so that a table never makes a plan fail that would succeed without.

use crate::cuda::exchange::chunk_table::check_count;
use crate::cuda::movers::options::CollectiveOptions;
use crate::cuda::product::options::GemmOptions;
use crate::cuda::product::tuned::{can_run, fix, origin};
use crate::cuda::sys::build_info::kernels;
use crate::cuda::sys::device::{DeviceInfo, driver_name};
use crate::kernels::Kernel;
use crate::plan::{Engine, MAX_PUSHED, Operation, Partials, Plan, PlanOptions, Problem, Way};
use crate::tune::{Answer, Asked, Fits, Multiplying, Tuning};

#[derive(Clone, Copy, Debug)]
pub(crate) struct Open<'a> {
    /// Products of one gathered A.
    pub(crate) products: &'a [(Problem, GemmOptions)],
    pub(crate) options: &'a CollectiveOptions,
    /// GPUs do not reach each other's memory: nothing that was measured holds.
    pub(crate) in_the_way: bool,
}

#[derive(Clone, Debug)]
pub(crate) struct Advice {
    pub(crate) options: CollectiveOptions,
    pub(crate) products: Vec<(Problem, GemmOptions)>,
    /// Where it comes from; `None`: nobody was asked.
    origin: Option<String>,
    is_answered: bool,
}

impl Advice {
    /// Why it is carried out so; `rule` is what the rules say without a table.
    pub(crate) fn explain(&self, rule: &str) -> String {
        match &self.origin {
            None => rule.to_owned(),
            Some(origin) if self.is_answered => origin.clone(),
            Some(origin) => format!("by the rules: {rule} ({origin})"),
        }
    }
}

/// What the table says, on a device of this process.
pub(crate) fn advise(tuning: &Tuning, device: &DeviceInfo, open: &Open<'_>) -> Advice {
    let driver = driver_name().unwrap_or_default();
    advise_by(tuning, device, &driver, kernels().unwrap_or_default(), open)
}

fn advise_by(
    tuning: &Tuning,
    device: &DeviceInfo,
    driver: &str,
    kernels: &[Kernel],
    open: &Open<'_>,
) -> Advice {
    let Open { products, options, .. } = *open;
    let mut advice = Advice {
        options: options.clone(),
        products: products.to_vec(),
        origin: None,
        is_answered: false,
    };
    if options.strategy.is_some() {
        return advice;
    }
    let answer = look_up(tuning, device, kernels, open);
    let none = match open.in_the_way {
        true => "no table speaks of GPUs that do not reach each other".into(),
        false => format!("no prediction holds for it on {}", device.name),
    };
    advice.origin = Some(origin(answer.as_ref(), &none, driver, tuning));
    if let Some(answer) = answer {
        advice.is_answered = true;
        advice.options.strategy = Some(answer.way.strategy);
        advice.options.engine = Some(answer.way.engine);
        advice.options.pieces = Some(answer.way.pieces);
        if let (Some(multiplying), [(_, gemm)]) = (&answer.multiplying, &mut advice.products[..]) {
            fix(gemm, multiplying);
        }
    }
    advice
}

fn look_up(
    tuning: &Tuning,
    device: &DeviceInfo,
    kernels: &[Kernel],
    open: &Open<'_>,
) -> Option<Answer> {
    let (first, _) = open.products.first().filter(|_| !open.in_the_way)?;
    // To the gather, products of one A are one with all of their columns.
    let columns = open.products.iter().map(|(problem, _)| u64::from(problem.n())).sum();
    let whole = if open.products.len() == 1 {
        first.clone()
    } else {
        first.ungated_with_n(columns).ok()?
    };
    let (gpu, sms, operation) = (&device.name, device.sm_count, Operation::AllGatherGemm);
    let asked = Asked { gpu, sms, operation, problem: &whole, partials: Partials::default() };
    tuning.look_up(&asked, &Here { kernels, sms: device.sm_count, open, problem: &whole })
}

/// What can be carried out here, of what was left open.
struct Here<'a> {
    kernels: &'a [Kernel],
    sms: u32,
    open: &'a Open<'a>,
    problem: &'a Problem,
}

impl Fits for Here<'_> {
    fn kernels(&self) -> &[Kernel] {
        self.kernels
    }

    fn way(&self, way: &Way) -> bool {
        let (asked, Way { engine, pieces, .. }) = (self.open.options, *way);
        let is_open = asked.engine.is_none_or(|asked| asked == engine)
            && asked.pieces.is_none_or(|asked| asked == pieces);
        let is_carried = match engine {
            Engine::Kernel { .. } => pieces <= MAX_PUSHED,
            Engine::CopyEngines { .. } | Engine::Nccl | Engine::Thread => true,
        };
        // However the output is tiled.
        let options = PlanOptions::new().with_pieces(pieces);
        let is_cut = || {
            Plan::new(self.problem, options).is_ok_and(|plan| check_count(plan.chunks()).is_ok())
        };
        is_open && is_carried && is_cut()
    }

    fn multiplying(&self, way: &Way, multiplying: &Multiplying) -> bool {
        // Several products have a kernel each.
        let [(_, gemm)] = self.open.products else { return false };
        let part = way.strategy.part_of(self.problem);
        part.is_ok_and(|part| can_run(gemm, multiplying, self.kernels, &part, self.sms))
    }
}

#[cfg(test)]
#[path = "tuned_tests.rs"]
mod tests;
