//! What every rank enqueues step by step: the contenders that take more than one call. The others are in `planning`.
//!
//! Invariants: all contenders of a case read the same A and multiply by the same Bs, whose sets take turns; who gathers,
//! gathers in place. Where sums are reduced, all ranks use the set of the same number in each step, each
//! its own matrices; a partial is bf16 and has all rows, a total has the rows that this rank gets and lies in a block of its
//! own.

use std::ops::Range;
use std::sync::Arc;

use overlap_gemm::cuda::nccl::{Communicator, Parts};
use overlap_gemm::cuda::{
    AllGather, AllGatherGemm, CollectiveOptions, GemmAllReduce, GemmOptions, GemmReduce,
    GemmReduceScatter, RawOperands, Reduce, Shard, StepRecord,
};
use overlap_gemm::group::Group;
use overlap_gemm::plan::{Engine, Operation, Plan, Problem, Reduction, Scaling};
use overlap_gemm::predict::Setup;
use overlap_gemm::trace::Timeline;
use overlap_gemm::{ElementType, Result};

use super::super::super::report::Kind;
use super::super::check::Adder;
use super::super::driver::{Block, Gpu};
use super::super::inputs::Inputs;
use super::super::own::operands;

/// Sums between ranks, and D.
const PARTIALS: ElementType = ElementType::Bf16;

/// What is enqueued.
pub trait Step {
    /// Enqueues a step whose B and D are those of that set.
    fn enqueue(&mut self, set: usize) -> Result<()>;
    /// Whether all went well, when the stream is through.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A whole operation of this crate, ready for steps: a contender, or a step to record.
pub trait Whole<'a>: Step {
    /// As a contender.
    fn into_contender(self: Box<Self>) -> Planned<'a>;
    /// Enqueues such a step, which is kept in `record`.
    fn enqueue_recorded(&mut self, set: usize, record: &mut StepRecord) -> Result<()>;
    /// Room for one.
    fn step_record(&self) -> Result<StepRecord>;
    /// What was planned.
    fn planned(&self) -> &Plan;
    /// The plan in words.
    fn describe(&self) -> String;

    /// What happened in one step among many, on this rank's clock.
    fn record(&mut self, gpu: &Gpu, set: usize) -> Result<Timeline> {
        const STEPS: usize = 60;
        let mut record = self.step_record()?;
        for step in 0..STEPS {
            match step + 5 == STEPS {
                true => self.enqueue_recorded(set, &mut record)?,
                false => self.enqueue(set)?,
            }
        }
        gpu.synchronize()?;
        self.check()?;
        record.timeline(&gpu.stream)
    }
}

/// One after the other.
impl Step for Vec<Box<dyn Step + '_>> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        self.iter_mut().try_for_each(|step| step.enqueue(set))
    }

    fn check(&mut self) -> Result<()> {
        self.iter_mut().try_for_each(|step| step.check())
    }
}

impl<F: FnMut(usize) -> Result<()>> Step for F {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        self(set)
    }
}

/// A contender in a case.
pub struct Planned<'a> {
    pub kind: Kind,
    /// In words.
    pub what: String,
    /// Who adds up its totals, if it has any.
    pub adder: Adder,
    /// How it is carried out, where that says all.
    pub setup: Option<Setup>,
    /// Two that say the same are the same.
    pub identity: Option<String>,
    pub step: Box<dyn Step + 'a>,
}

impl<'a> Planned<'a> {
    pub fn new(kind: Kind, what: String, step: impl Step + 'a) -> Self {
        let step = Box::new(step);
        Planned { kind, what, adder: Adder::Own, setup: None, identity: None, step }
    }

    /// Both steps, one behind the other; the kind is the second's.
    pub fn then(self, next: Planned<'a>) -> Self {
        let identities = self.identity.zip(next.identity);
        let identity = identities.map(|(first, second)| format!("{first}; then {second}"));
        let what = format!("{}; then {}", self.what, next.what);
        let steps = vec![self.step, next.step];
        Planned { identity, ..Planned::new(next.kind, what, steps) }
    }
}

/// A case on one rank.
#[derive(Clone, Copy)]
pub struct Place<'a> {
    pub gpu: &'a Gpu,
    pub group: &'a Arc<Group>,
    /// With the shards of all ranks.
    pub problem: &'a Problem,
    pub inputs: &'a Inputs,
    /// The set whose A is gathered, and which is checked.
    pub set: usize,
}

impl Place<'_> {
    /// Where this rank's rows of A begin. They are in memory, so 64 bits can count the bytes before them.
    fn own_rows(&self) -> u64 {
        let first = self.problem.shards().rows(self.group.rank()).start;
        self.inputs.sets[self.set].a.address + self.problem.row_bytes(&(0..first)) as u64
    }

    fn own_scales(&self) -> u64 {
        let first = self.problem.shards().rows(self.group.rank()).start;
        match (&self.inputs.scale_a, self.problem.scaling()) {
            (Some(scales), Scaling::Rows) => scales.address + 4 * u64::from(first),
            _ => 0,
        }
    }

    /// The rows of each rank in memory that begins at `address` and has `row_bytes` a row.
    fn parts(&self, address: u64, row_bytes: u64) -> Parts {
        let shards = self.problem.shards();
        let of_rank = |rank| {
            let rows = shards.rows(rank);
            (u64::from(rows.start) * row_bytes, rows.len() as u64 * row_bytes)
        };
        Parts { address, of_ranks: (0..shards.ranks()).map(of_rank).collect() }
    }
}

/// A case of a reduction on one rank.
#[derive(Clone, Copy)]
pub struct Summing<'a> {
    pub place: Place<'a>,
    pub operation: Operation,
    /// Room for this rank's totals, for each set; none where nothing is reduced.
    pub totals: &'a [Block],
}

/// The bytes of the totals in these rows; of a row at least, so that there is something to point at.
pub fn bytes_of_total(problem: &Problem, rows: &Range<u32>) -> u64 {
    problem.d_len_of(rows.len().max(1) as u32) * u64::from(problem.elements().d.size())
}

/// Enqueues NCCL's all-gather.
pub fn gather_by_nccl(place: &Place<'_>, nccl: &Communicator, set: usize) -> Result<()> {
    let row = u64::from(place.problem.k()) * u64::from(place.problem.elements().a.size());
    let mut buffers = vec![place.parts(place.inputs.sets[set].a.address, row)];
    if let (Some(scales), Scaling::Rows) = (&place.inputs.scale_a, place.problem.scaling()) {
        buffers.push(place.parts(scales.address, 4));
    }
    // SAFETY: A and its scales have room for all ranks' rows, and the own ones are in their place.
    unsafe { nccl.all_gather(&buffers, &place.gpu.stream) }
}

/// Enqueues NCCL's reduction of what lies in D.
pub fn reduce_by_nccl(case: &Summing<'_>, nccl: &Communicator, set: usize) -> Result<()> {
    let Place { gpu, problem, inputs, .. } = case.place;
    let (from, to) = (inputs.sets[set].d.address, &case.totals[set]);
    // SAFETY: D has all ranks' rows, a total has room for those that this rank gets, and lies elsewhere; both live until the
    // stream is through.
    unsafe {
        match case.operation {
            Operation::GemmAllReduce => {
                nccl.all_reduce(from, to.address, to.bytes, PARTIALS, &gpu.stream)
            }
            _ => {
                let row = u64::from(problem.n()) * u64::from(PARTIALS.size());
                let parts = case.place.parts(from, row);
                nccl.reduce_scatter(&parts, to.address, PARTIALS, &gpu.stream)
            }
        }
    }
}

/// This crate's all-gather + GEMM.
pub struct Gathered<'a> {
    place: Place<'a>,
    layer: AllGatherGemm,
}

impl<'a> Gathered<'a> {
    /// One that is planned; puts this rank's rows into both of their slots.
    fn of(place: Place<'a>, layer: AllGatherGemm) -> Result<Self> {
        let gpu = place.gpu;
        let mut it = Gathered { place, layer };
        for _ in 0..2 {
            let (slot, bytes) = it.layer.local_shard(None)?;
            let from = place.own_rows();
            // SAFETY: the slot has room for the rank's rows, which A has.
            unsafe { gpu.copy(slot, from, bytes) }?;
            it.enqueue(place.set)?;
            gpu.synchronize()?;
            it.layer.check()?;
        }
        Ok(it)
    }

    /// How it is carried out, for predictions.
    fn setup(&self) -> Setup {
        let kernel = self.layer.kernel();
        Setup::of_plan(self.planned(), kernel, self.layer.choice().splits, self.layer.sm_count())
    }

    /// What this rank brings to a step whose B and D are those of that set, and its operands.
    fn step(&self, set: usize) -> (Shard<'static>, RawOperands) {
        let Place { inputs, problem, .. } = self.place;
        let mut operands = operands(inputs, set);
        operands.a = 0;
        let mut shard = Shard::in_place();
        if problem.scaling() == Scaling::Rows {
            operands.scale_a = 0;
            shard = shard.scales(self.place.own_scales());
        }
        (shard, operands)
    }
}

impl<'a> Whole<'a> for Gathered<'a> {
    fn into_contender(self: Box<Self>) -> Planned<'a> {
        let (setup, what) = (self.setup(), self.describe().replace('\n', "; "));
        let identity = Some(format!("{setup:?}"));
        let setup = Some(setup);
        Planned { setup, identity, ..Planned::new(Kind::AllGatherGemm, what, *self) }
    }

    fn enqueue_recorded(&mut self, set: usize, record: &mut StepRecord) -> Result<()> {
        let (shard, operands) = self.step(set);
        let stream = &self.place.gpu.stream;
        // SAFETY: as in `enqueue`; the record lives until the stream is through.
        unsafe { self.layer.enqueue_recorded(stream, shard, &[operands], record) }
    }

    fn step_record(&self) -> Result<StepRecord> {
        self.layer.step_record()
    }

    fn planned(&self) -> &Plan {
        self.layer.planned()
    }

    fn describe(&self) -> String {
        self.layer.explain().trim_end().into()
    }
}

impl Step for Gathered<'_> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        let (shard, operands) = self.step(set);
        // SAFETY: as large as the problem says; they live until the stream is through.
        unsafe { self.layer.enqueue_raw(&self.place.gpu.stream, shard, &[operands]) }
    }

    fn check(&mut self) -> Result<()> {
        self.layer.check()
    }
}

/// This crate's all-gather, and the product that is enqueued between its start and its end, if there is one.
pub struct Gather<'a> {
    place: Place<'a>,
    gather: AllGather,
    product: Option<Box<dyn Step + 'a>>,
}

impl<'a> Gather<'a> {
    /// Plans it without a product.
    pub fn plan(place: Place<'a>, options: &CollectiveOptions) -> Result<Planned<'a>> {
        let it = Gather::new(place, options, None)?;
        Ok(Planned::new(Kind::AllGather, "this crate's all-gather".into(), it))
    }

    /// Plans it with one that does not wait for the rows. Copy engines move them: a kernel would be through before.
    pub fn beside(
        place: Place<'a>,
        options: &CollectiveOptions,
        product: impl Step + 'a,
    ) -> Result<Planned<'a>> {
        let by_copies = options.engine.unwrap_or(Engine::CopyEngines { streams: 1 });
        let options = options.clone().with_engine(by_copies);
        let it = Gather::new(place, &options, Some(Box::new(product)))?;
        let what = "this crate's product and all-gather".into();
        Ok(Planned::new(Kind::GemmBesideCopies, what, it))
    }

    fn new(
        place: Place<'a>,
        options: &CollectiveOptions,
        product: Option<Box<dyn Step + 'a>>,
    ) -> Result<Self> {
        let Place { gpu, group, problem, .. } = place;
        let row = u64::from(problem.k()) * u64::from(problem.elements().a.size());
        let rows = problem.shards().to_rows();
        let gather = AllGather::plan(group, &gpu.device, &rows, row, options)?;
        Ok(Gather { place, gather, product })
    }
}

impl Step for Gather<'_> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        let stream = &self.place.gpu.stream;
        // SAFETY: the rows are in their slots; any rows will do.
        unsafe { self.gather.start(stream, None, None) }?;
        if let Some(product) = &mut self.product {
            product.enqueue(set)?;
        }
        self.gather.finish(stream).map(drop)
    }

    fn check(&mut self) -> Result<()> {
        self.gather.check()
    }
}

/// An operation of this crate that all ranks have planned; its first steps make it ready.
pub type Unstarted<'a> = Box<dyn FnOnce() -> Result<Box<dyn Whole<'a> + 'a>> + 'a>;

/// Plans the whole operation. It is refused on all ranks alike.
pub fn plan_whole<'a>(
    case: Summing<'a>,
    options: &CollectiveOptions,
    gemm: &GemmOptions,
) -> Result<Unstarted<'a>> {
    let Summing { place, operation, .. } = case;
    let (Place { gpu, group, problem, .. }, sum) = (place, Reduction::default());
    let device = &gpu.device;
    Ok(match operation {
        Operation::GemmReduceScatter => {
            let layer = GemmReduceScatter::plan(group, device, problem, options, gemm, sum)?;
            Box::new(move || Ok(Box::new(Reduced::of(case, layer)?)))
        }
        Operation::GemmAllReduce => {
            let layer = GemmAllReduce::plan(group, device, problem, options, gemm, sum)?;
            Box::new(move || Ok(Box::new(Reduced::of(case, layer)?)))
        }
        _ => {
            let layer = AllGatherGemm::plan(group, device, problem, options, gemm)?;
            Box::new(move || Ok(Box::new(Gathered::of(place, layer)?)))
        }
    })
}

/// This crate's GEMM + reduce-scatter, or all-reduce (`ALL`).
pub struct Reduced<'a, const ALL: bool> {
    summing: Summing<'a>,
    layer: GemmReduce<ALL>,
}

impl<'a, const ALL: bool> Reduced<'a, ALL> {
    /// One that is planned; takes a step in each of its two buffers: what is left there is of the first set, and shows in a total
    /// of another.
    fn of(summing: Summing<'a>, layer: GemmReduce<ALL>) -> Result<Self> {
        let gpu = summing.place.gpu;
        let mut it = Reduced { summing, layer };
        for _ in 0..2 {
            it.enqueue(0)?;
        }
        gpu.synchronize()?;
        it.layer.check()?;
        Ok(it)
    }

    /// What this rank brings to a step with the matrices of that set, and its operands.
    fn step(&self, set: usize) -> (Shard<'static>, RawOperands) {
        let Place { problem, inputs, .. } = self.summing.place;
        let mut total = operands(inputs, set);
        let mut rows = Shard::at(total.a);
        if problem.scaling() == Scaling::Rows {
            rows = rows.scales(total.scale_a);
            total.scale_a = 0;
        }
        (total.a, total.d) = (0, self.summing.totals[set].address);
        (rows, total)
    }
}

impl<'a, const ALL: bool> Whole<'a> for Reduced<'a, ALL> {
    fn into_contender(self: Box<Self>) -> Planned<'a> {
        let explained = self.describe();
        // The first line says why, which differs where somebody asks for what is chosen anyway.
        let how: Vec<&str> = explained.lines().skip(1).collect();
        let identity = Some(format!("{:?} {how:?}", self.layer.way()));
        let what = explained.replace('\n', "; ");
        Planned { identity, ..Planned::new(Kind::whole(self.summing.operation), what, *self) }
    }

    fn enqueue_recorded(&mut self, set: usize, record: &mut StepRecord) -> Result<()> {
        let (rows, total) = self.step(set);
        let stream = &self.summing.place.gpu.stream;
        // SAFETY: as in `enqueue`; the record lives until the stream is through.
        unsafe { self.layer.enqueue_recorded(stream, rows, &[total], record) }
    }

    fn step_record(&self) -> Result<StepRecord> {
        self.layer.step_record()
    }

    fn planned(&self) -> &Plan {
        self.layer.planned()
    }

    fn describe(&self) -> String {
        self.layer.explain().trim_end().into()
    }
}

impl<const ALL: bool> Step for Reduced<'_, ALL> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        let (rows, total) = self.step(set);
        let gpu = self.summing.place.gpu;
        // SAFETY: A and B are as large as the problem says, a total as the rows that this rank gets; they live until the stream
        // is through, and the total overlaps nothing.
        unsafe { self.layer.enqueue_raw(&gpu.stream, rows, &[total]) }
    }

    fn check(&mut self) -> Result<()> {
        self.layer.check()
    }
}

/// This crate's reduce-scatter, or all-reduce (`ALL`), of what lies in D.
pub struct ReducedAlone<'a, const ALL: bool> {
    summing: Summing<'a>,
    layer: Reduce<ALL, false>,
}

impl<'a, const ALL: bool> ReducedAlone<'a, ALL> {
    /// Plans it.
    pub fn plan(summing: Summing<'a>, options: &CollectiveOptions) -> Result<Planned<'a>> {
        let Place { gpu, group, problem, .. } = summing.place;
        let (rows, columns, sum) = (problem.shards().to_rows(), problem.n(), Reduction::default());
        let plan = Reduce::<ALL, false>::plan;
        let layer = plan(group, &gpu.device, &rows, columns, PARTIALS, options, sum)?;
        let what = layer.explain().trim_end().replace('\n', "; ");
        let kind = Kind::reduction(summing.operation);
        Ok(Planned::new(kind, what, ReducedAlone { summing, layer }))
    }
}

impl<const ALL: bool> Step for ReducedAlone<'_, ALL> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        let Place { gpu, inputs, .. } = self.summing.place;
        let (sums, d) = (inputs.sets[set].d.address, self.summing.totals[set].address);
        // SAFETY: D has all ranks' rows, a total has room for those that this rank gets, and lies elsewhere; both live until
        // the stream is through.
        unsafe { self.layer.enqueue_raw(&gpu.stream, None, sums, d) }
    }

    fn check(&mut self) -> Result<()> {
        self.layer.check()
    }
}
