//! The contenders, as values that every rank enqueues step by step: the products, and all that gathers. What reduces is
//! beside, in `reducing`.
//!
//! Invariant: all contenders of a case read the same A and multiply by the same Bs, whose sets take
//! turns; who gathers, gathers in place unless rows are to be copied.

use std::ops::Range;
use std::rc::Rc;
use std::sync::Arc;

use overlap_gemm::Result;
use overlap_gemm::cuda::cudarc::driver::{CudaEvent, CudaStream};
use overlap_gemm::cuda::nccl::{Communicator, Parts};
use overlap_gemm::cuda::{
    AllGather, AllGatherGemm, GatherOptions, Gemm, GemmOptions, RawOperands, Shard, SymmetricMemory,
};
use overlap_gemm::group::Group;
use overlap_gemm::plan::{Plan, Problem, Scaling, Strategy};
use overlap_gemm::predict::Setup;
use overlap_gemm::trace::Timeline;

use super::super::super::report::Kind;
use super::super::check::Adder;
use super::super::cublaslt::Suggested;
use super::super::driver::{Gpu, call, record};
use super::super::inputs::Inputs;
use super::super::own::operands;
use super::super::timing::Product;
use super::loops::LIMIT;

/// One of them.
pub trait Step {
    /// Enqueues a step whose B and D are those of that set.
    fn enqueue(&mut self, set: usize) -> Result<()>;
    /// Whether all went well, when the stream is through.
    fn check(&mut self) -> Result<()> {
        Ok(())
    }
    /// What it does.
    fn kind(&self) -> Kind {
        Kind::AllGatherGemm
    }
    /// What it is, in words.
    fn describe(&self) -> String;
    /// Who adds up its totals, if it has any.
    fn adder(&self) -> Adder {
        Adder::Own
    }
    /// How it is carried out, where that says all.
    fn carried_out(&self) -> Option<Setup> {
        None
    }
    /// Two that say the same are the same.
    fn identity(&self) -> Option<String> {
        self.carried_out().map(|setup| format!("{setup:?}"))
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
    /// The first of this rank's rows, in bytes from the start of A, and the bytes of all of them.
    fn own(&self) -> (u64, u64) {
        let rows = self.problem.shards().rows(self.group.rank());
        (self.bytes(0..rows.start), self.bytes(rows))
    }

    /// Bytes of the largest shard: room for the rows of any rank.
    fn slot(&self) -> u64 {
        self.bytes(0..self.problem.shards().most_rows())
    }

    /// Of rows that are in memory, so that 64 bits can count their bytes.
    fn bytes(&self, rows: Range<u32>) -> u64 {
        self.problem.row_bytes(&rows) as u64
    }

    fn own_scales(&self) -> u64 {
        let first = self.problem.shards().rows(self.group.rank()).start;
        match (&self.inputs.scale_a, self.problem.scaling()) {
            (Some(scales), Scaling::Rows) => scales.address + 4 * u64::from(first),
            _ => 0,
        }
    }
}

/// cuBLASLt's product.
pub struct Cublaslt<'a> {
    pub place: Place<'a>,
    pub product: Rc<Suggested>,
    /// Gathers A before.
    pub nccl: Option<Rc<Communicator>>,
}

/// NCCL's all-gather.
pub struct NcclAlone<'a> {
    pub place: Place<'a>,
    pub nccl: Rc<Communicator>,
}

fn gather_by_nccl(place: &Place<'_>, nccl: &Communicator, set: usize) -> Result<()> {
    let shards = place.problem.shards();
    let rows_of = |bytes: u64| {
        let of_rank = |rank| {
            let rows = shards.rows(rank);
            (u64::from(rows.start) * bytes, rows.len() as u64 * bytes)
        };
        (0..place.group.ranks()).map(of_rank).collect()
    };
    let row = u64::from(place.problem.k()) * u64::from(place.problem.elements().a.size());
    let mut buffers =
        vec![Parts { address: place.inputs.sets[set].a.address, of_ranks: rows_of(row) }];
    if let (Some(scales), Scaling::Rows) = (&place.inputs.scale_a, place.problem.scaling()) {
        buffers.push(Parts { address: scales.address, of_ranks: rows_of(4) });
    }
    // SAFETY: A and its scales have room for all ranks' rows, and the own ones are in their place.
    unsafe { nccl.all_gather(&buffers, &place.gpu.stream) }
}

impl Step for Cublaslt<'_> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        if let Some(nccl) = &self.nccl {
            gather_by_nccl(&self.place, nccl, set)?;
        }
        self.product.enqueue(self.place.gpu, self.place.inputs, set)
    }

    fn kind(&self) -> Kind {
        if self.nccl.is_some() { Kind::AllGatherGemm } else { Kind::Gemm }
    }

    fn describe(&self) -> String {
        self.product.describe()
    }
}

impl Step for NcclAlone<'_> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        gather_by_nccl(&self.place, &self.nccl, set)
    }

    fn kind(&self) -> Kind {
        Kind::AllGather
    }

    fn describe(&self) -> String {
        format!("NCCL {:?}", self.nccl.version())
    }
}

/// This crate's plain GEMM, its inputs already there.
pub struct Own<'a> {
    pub place: Place<'a>,
    pub gemm: Gemm,
}

impl Step for Own<'_> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        // SAFETY: as large as the problem says; they live until the stream is through.
        unsafe { self.gemm.enqueue_raw(&self.place.gpu.stream, &operands(self.place.inputs, set)) }
    }

    fn kind(&self) -> Kind {
        Kind::Gemm
    }

    fn describe(&self) -> String {
        self.gemm.kernel().to_string()
    }
}

/// This crate's plain GEMM, A already gathered, while as many bytes as a gather moves are pushed beside it, which nobody
/// waits for but the next step: what an overlap costs that waits for nothing.
pub struct Beside<'a> {
    place: Place<'a>,
    gemm: Gemm,
    memory: SymmetricMemory,
    pusher: Arc<CudaStream>,
    events: [CudaEvent; 2],
}

impl<'a> Beside<'a> {
    /// Plans it; collective.
    pub fn plan(place: Place<'a>, options: &GemmOptions) -> Result<Self> {
        let (device, group) = (&place.gpu.device, place.group);
        let (gemm, ranks) = (Gemm::plan(device, place.problem, options)?, u64::from(group.ranks()));
        let memory = SymmetricMemory::new(group, device, place.slot() * ranks, LIMIT)?;
        let events = [place.gpu.event()?, place.gpu.event()?];
        Ok(Beside { place, gemm, memory, pusher: device.new_stream()?, events })
    }
}

impl Step for Beside<'_> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        let Place { gpu, group, inputs, .. } = self.place;
        let (first, bytes) = self.place.own();
        let [begun, pushed] = &self.events;
        record(begun, &gpu.stream)?;
        call("cuStreamWaitEvent", self.pusher.wait(begun))?;
        let from = inputs.sets[self.place.set].a.address + first;
        let slot = u64::from(group.rank()) * self.place.slot();
        for peer in (0..group.ranks()).filter(|peer| *peer != group.rank()) {
            // SAFETY: this rank's rows of A, and a slot that nobody reads; both live until the streams are through,
            // since the stream of the product waits for the pushes.
            unsafe { self.memory.put(&self.pusher, peer, slot, from, bytes) }?;
        }
        record(pushed, &self.pusher)?;
        // SAFETY: as large as the problem says; they live until the stream is through.
        unsafe { self.gemm.enqueue_raw(&gpu.stream, &operands(inputs, set)) }?;
        call("cuStreamWaitEvent", gpu.stream.wait(pushed))
    }

    fn kind(&self) -> Kind {
        Kind::GemmBesideCopies
    }

    fn describe(&self) -> String {
        self.gemm.kernel().to_string()
    }
}

/// This crate's all-gather + GEMM.
pub struct Gathered<'a> {
    place: Place<'a>,
    layer: AllGatherGemm,
    copied: bool,
}

impl<'a> Gathered<'a> {
    /// Plans it, and puts this rank's rows into both of their slots.
    pub fn plan(
        place: Place<'a>,
        strategy: Option<Strategy>,
        gather: &GatherOptions,
        gemm: &GemmOptions,
        copied: bool,
    ) -> Result<Self> {
        let Place { gpu, group, problem, .. } = place;
        let layer = AllGatherGemm::plan(group, &gpu.device, problem, strategy, gather, gemm)?;
        Self::of(place, layer, copied)
    }

    /// One that is planned; puts this rank's rows into both of their slots.
    pub fn of(place: Place<'a>, layer: AllGatherGemm, copied: bool) -> Result<Self> {
        let gpu = place.gpu;
        let mut it = Gathered { place, layer, copied };
        for _ in 0..2 {
            let (slot, bytes) = it.layer.local_shard(None)?;
            let from = place.inputs.sets[place.set].a.address + place.own().0;
            // SAFETY: the slot has room for the rank's rows, which A has.
            unsafe { gpu.copy(slot, from, bytes) }?;
            it.enqueue(place.set)?;
            gpu.synchronize()?;
            it.layer.check()?;
        }
        Ok(it)
    }
}

impl Gathered<'_> {
    /// What happened in one step among many, on this rank's clock.
    pub fn record(&mut self) -> Result<Timeline> {
        const STEPS: usize = 60;
        let stream = Arc::clone(&self.place.gpu.stream);
        let mut record = self.layer.step_record()?;
        for step in 0..STEPS {
            if step + 5 != STEPS {
                self.enqueue(self.place.set)?;
                continue;
            }
            let (shard, operands) = self.step(self.place.set);
            // SAFETY: as large as the problem says; they, and the record, live until the stream is through.
            unsafe { self.layer.enqueue_recorded(&stream, shard, &[operands], &mut record) }?;
        }
        self.place.gpu.synchronize()?;
        self.layer.check()?;
        record.timeline(&stream)
    }

    /// How it is carried out, for predictions.
    pub fn setup(&self) -> Setup {
        let (planned, kernel) = (self.layer.planned(), self.layer.kernel());
        Setup::of_plan(planned, kernel, self.layer.choice().splits, self.layer.sm_count())
    }

    /// What was planned.
    pub fn planned(&self) -> &Plan {
        self.layer.planned()
    }

    /// What this rank brings to a step whose B and D are those of that set, and its operands.
    fn step(&self, set: usize) -> (Shard<'static>, RawOperands) {
        let Place { inputs, problem, .. } = self.place;
        let mut operands = operands(inputs, set);
        operands.a = 0;
        let mut shard = Shard::in_place();
        if self.copied {
            shard = Shard::at(inputs.sets[self.place.set].a.address + self.place.own().0);
        }
        if problem.scaling() == Scaling::Rows {
            operands.scale_a = 0;
            shard = shard.scales(self.place.own_scales());
        }
        (shard, operands)
    }
}

impl Step for Gathered<'_> {
    fn enqueue(&mut self, set: usize) -> Result<()> {
        let (shard, operands) = self.step(set);
        // SAFETY: as large as the problem says; they live until the stream is through.
        unsafe { self.layer.enqueue(&self.place.gpu.stream, shard, &[operands]) }
    }

    fn check(&mut self) -> Result<()> {
        self.layer.check()
    }

    fn describe(&self) -> String {
        self.layer.explain().trim_end().replace('\n', "; ")
    }

    fn carried_out(&self) -> Option<Setup> {
        Some(self.setup())
    }
}

/// This crate's all-gather.
pub struct GatherAlone<'a> {
    place: Place<'a>,
    gather: AllGather,
}

impl<'a> GatherAlone<'a> {
    /// Plans it.
    pub fn plan(place: Place<'a>, options: &GatherOptions) -> Result<Self> {
        let Place { gpu, group, problem, .. } = place;
        let row = u64::from(problem.k()) * u64::from(problem.elements().a.size());
        let rows = problem.shards().to_rows();
        let gather = AllGather::plan(group, &gpu.device, &rows, row, options)?;
        Ok(GatherAlone { place, gather })
    }
}

impl Step for GatherAlone<'_> {
    fn enqueue(&mut self, _: usize) -> Result<()> {
        let stream = &self.place.gpu.stream;
        // SAFETY: the rows are in their slots; any rows will do.
        unsafe { self.gather.start(stream, None, None) }?;
        self.gather.finish(stream).map(drop)
    }

    fn check(&mut self) -> Result<()> {
        self.gather.check()
    }

    fn kind(&self) -> Kind {
        Kind::AllGather
    }

    fn describe(&self) -> String {
        "this crate's all-gather".into()
    }
}
