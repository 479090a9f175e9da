//! The demo on a Hopper GPU: all ranks on one device, chunk copies, then the plain kernel.
//!
//! All ranks share one device and one stream, so the demo gathers, then multiplies; `trace` runs the fused
//! product, on ranks that are processes. The demo exercises plan, memory, kernel and check with the plan's own
//! chunks and orders. Invariant: everything is enqueued on one stream, so two events time exactly the work between
//! them.

use std::sync::Arc;
use std::time::Duration;

use overlap_gemm::cuda::cudarc::driver::sys::CUevent_flags::CU_EVENT_DEFAULT;
use overlap_gemm::cuda::cudarc::driver::{CudaEvent, CudaSlice, CudaStream, DriverError};
use overlap_gemm::cuda::{Device, Gemm, GemmOptions, Operands};
use overlap_gemm::element::bf16;
use overlap_gemm::plan::{Plan, PlanOptions, Problem, Tile};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Reference, Report};
use overlap_gemm::trace::{TileEvent, Timeline, TransferEvent};
use overlap_gemm::{Error, Result};

use super::{Args, Shown, Source, Time};
use crate::exit::Failure;
use crate::interrupt::Interrupt;

/// Rows of each rank's output that are compared: each costs a pass over B on the CPU.
const COMPARED_ROWS: u32 = 4;

/// Steps before the timed ones.
const WARM_UP: u32 = 2;

pub(super) fn run(args: &Args, interrupt: Interrupt) -> Result<Shown, Failure> {
    if args.link.is_some() {
        let why = "--link slows the copies of threads; a GPU has its own link: use --on host";
        return Err(Failure::Usage(why.into()));
    }
    let (m, n, k) = (args.m.unwrap_or(4096), args.n.unwrap_or(3584), args.k.unwrap_or(8192));
    let problem = Problem::builder(m, n, k).ranks(args.ranks).build()?;
    let options = PlanOptions { pieces: Some(args.chunks(&problem)), ..PlanOptions::default() };
    let plan = Plan::new(&problem, options)?;
    let device = Device::open(0)?;
    let gemm = Gemm::plan(&device, &problem, &GemmOptions::default())?;
    check_memory(&problem, &device)?;
    let mut world = World::new(&plan, &device, args.seed)?;

    let mut steps = Vec::new();
    for step in 0..WARM_UP + args.steps {
        interrupt.check()?;
        let marks = world.enqueue(&gemm, step)?;
        call("cuStreamSynchronize", world.stream.synchronize())?;
        steps.push(marks);
    }
    let timed = &steps[WARM_UP as usize..];
    let part = |part: fn(&Marks) -> Result<f64>| -> Result<f64> {
        let mut all = Vec::new();
        for marks in timed.iter().flatten() {
            all.push(part(marks)?);
        }
        all.sort_by(f64::total_cmp);
        Ok(all[all.len() / 2])
    };
    let (gather, product) = (part(Marks::gather_ms)?, part(Marks::product_ms)?);
    let timeline = match timed.last() {
        Some(last) => draw(last, &world.origin, &plan)?,
        None => Timeline::default(),
    };
    let report = world.compare(&plan, interrupt)?;
    let tflops = 1e-9 * problem.flops() as f64 / product;
    let time = |name, what, ms, source| Time { name, ms, source, what };
    Ok(Shown {
        on: "gpu",
        device: format!("GPU 0 ({}), which runs all ranks in turn", device.info().name),
        problem,
        link_bytes_per_second: None,
        times: vec![
            time("gather", "gather of a rank (copies within the GPU)", gather, Source::Measured),
            time("product", "product of a rank", product, Source::Measured),
            time("sequential", "one after the other", gather + product, Source::Sum),
        ],
        hidden: None,
        product_tflops: Some(tflops),
        report,
        timeline,
    })
}

/// An error if the matrices of all ranks do not fit the device.
fn check_memory(problem: &Problem, device: &Device) -> Result<()> {
    let elements = u128::from(problem.b_len()) + u128::from(problem.d_len());
    let gathered = problem.row_bytes(&(0..problem.m()));
    let bytes = u128::from(problem.ranks()) * (gathered + 2 * elements) + gathered;
    let most = device.info().memory_bytes / 10 * 9;
    if bytes <= most.into() {
        return Ok(());
    }
    Err(Error::OutOfRange {
        what: "the memory for the matrices of all ranks in bytes".into(),
        value: u64::try_from(bytes).unwrap_or(u64::MAX),
        min: 0,
        max: most,
        remedy: "choose a smaller problem or fewer ranks",
    })
}

/// The matrices of all ranks.
struct World {
    stream: Arc<CudaStream>,
    a: Vec<bf16>,
    b: Vec<Vec<bf16>>,
    chunks: Vec<CudaSlice<bf16>>,
    ranks: Vec<Rank>,
    order: Vec<Vec<(u32, std::ops::Range<usize>)>>,
    origin: CudaEvent,
}

struct Rank {
    gathered: CudaSlice<bf16>,
    b: CudaSlice<bf16>,
    d: CudaSlice<bf16>,
}

/// The events of one rank in one step.
struct Marks {
    rank: u32,
    step: u32,
    /// Each chunk, and when it was there.
    arrived: Vec<(u32, CudaEvent)>,
    start: CudaEvent,
    gathered: CudaEvent,
    done: CudaEvent,
}

impl Marks {
    fn gather_ms(&self) -> Result<f64> {
        elapsed(&self.start, &self.gathered)
    }

    fn product_ms(&self) -> Result<f64> {
        elapsed(&self.gathered, &self.done)
    }
}

impl World {
    fn new(plan: &Plan, device: &Device, seed: u64) -> Result<Self> {
        let (problem, stream) = (plan.problem(), device.new_stream()?);
        let (chunks, k) = (plan.chunks(), problem.k() as usize);
        let elements = |chunk: u32| {
            let rows = chunks.rows(chunk);
            rows.start as usize * k..rows.end as usize * k
        };
        let a: Vec<bf16> = Random::of_stream(seed, 0).elements(problem.a_len(problem.m()));
        let upload = |values: &[bf16]| call("cuMemcpyHtoDAsync", stream.clone_htod(values));
        let poison = |len: u64| upload(&vec![bf16::NAN; len as usize]);
        let (mut b, mut ranks, mut order) = (Vec::new(), Vec::new(), Vec::new());
        for rank in 0..problem.ranks() {
            let weight = Random::of_stream(seed, 1 + u64::from(rank)).elements(problem.b_len());
            ranks.push(Rank {
                gathered: poison(problem.a_len(problem.m()))?,
                b: upload(&weight)?,
                d: poison(problem.d_len())?,
            });
            b.push(weight);
            order.push(chunks.need_order(rank).map(|chunk| (chunk, elements(chunk))).collect());
        }
        let mut pieces = Vec::new();
        for chunk in 0..chunks.len() {
            pieces.push(upload(&a[elements(chunk)])?);
        }
        let origin = mark(&stream)?;
        Ok(World { stream, a, b, chunks: pieces, ranks, order, origin })
    }

    /// Every rank gathers in its need order, then multiplies.
    fn enqueue(&mut self, gemm: &Gemm, step: u32) -> Result<Vec<Marks>> {
        let World { stream, chunks, ranks, order, .. } = self;
        let mut marks = Vec::new();
        for (rank, (matrices, order)) in ranks.iter_mut().zip(order).enumerate() {
            let start = mark(stream)?;
            let mut arrived = Vec::new();
            for (chunk, place) in order {
                let mut slot = matrices.gathered.slice_mut(place.clone());
                let copied = stream.memcpy_dtod(&chunks[*chunk as usize], &mut slot);
                call("cuMemcpyDtoDAsync", copied)?;
                arrived.push((*chunk, mark(stream)?));
            }
            let gathered = mark(stream)?;
            let operands = Operands::new(&matrices.gathered, &matrices.b, &mut matrices.d);
            gemm.enqueue(stream, operands)?;
            let done = mark(stream)?;
            marks.push(Marks { rank: rank as u32, step, arrived, start, gathered, done });
        }
        Ok(marks)
    }

    /// Compares some rows of every rank's output with the reference.
    fn compare(&self, plan: &Plan, interrupt: Interrupt) -> Result<Report, Failure> {
        let problem = plan.problem();
        let mut report = Report::default();
        for (rank, b) in self.ranks.iter().zip(&self.b) {
            interrupt.check()?;
            let d = call("cuMemcpyDtoHAsync", self.stream.clone_dtoh(&rank.d))?;
            call("cuStreamSynchronize", self.stream.synchronize())?;
            let stride = problem.m().div_ceil(COMPARED_ROWS) as usize;
            let rows = (0..problem.m()).rev().step_by(stride);
            let reference = Reference::new(problem, &self.a, b, &[], &[])?;
            report.merge(&reference.compare(&d, rows)?);
        }
        Ok(report)
    }
}

/// The last step as a timeline: a bar for each product, since the kernel keeps no record of tiles.
fn draw(marks: &[Marks], origin: &CudaEvent, plan: &Plan) -> Result<Timeline> {
    let time = |ms: f64| Duration::from_secs_f64((ms / 1e3).max(0.0));
    let mut timeline = Timeline::default();
    for rank in marks {
        let at = |event: &CudaEvent| elapsed(origin, event).map(time);
        let mut begin = at(&rank.start)?;
        for (chunk, event) in &rank.arrived {
            let (from, signalled) = (plan.chunks().rank_of(*chunk), at(event)?);
            let (to, epoch, chunk) = (rank.rank, rank.step, *chunk);
            timeline.transfers.push(TransferEvent { from, to, epoch, chunk, begin, signalled });
            begin = signalled;
        }
        timeline.tiles.push(TileEvent {
            rank: rank.rank,
            worker: 0,
            epoch: rank.step,
            product: 0,
            tile: Tile { m: 0, n: 0 },
            chunk: rank.arrived.last().map_or(0, |(chunk, _)| *chunk),
            wait_begin: at(&rank.start)?,
            ready: at(&rank.gathered)?,
            done: at(&rank.done)?,
        });
    }
    Ok(timeline)
}

fn mark(stream: &CudaStream) -> Result<CudaEvent> {
    call("cuEventRecord", stream.record_event(Some(CU_EVENT_DEFAULT)))
}

/// Milliseconds from one event to a later one; waits for both.
fn elapsed(from: &CudaEvent, to: &CudaEvent) -> Result<f64> {
    call("cuEventElapsedTime", from.elapsed_ms(to)).map(f64::from)
}

/// Names the call that failed.
fn call<T>(call: &'static str, result: Result<T, DriverError>) -> Result<T> {
    result.map_err(|error| Error::Cuda { call, detail: error.to_string() })
}
