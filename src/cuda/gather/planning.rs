//! Planning a gather: what one rank decides, what all have to agree on, and the memory that they share.
//!
//! Invariant: what is wrong with a call is found on every rank before anything is made, and leaves the group
//! as it was; what goes wrong after that is told to all ranks, for they would wait.

use std::sync::Arc;
use std::time::Duration;

use cudarc::driver::result;
use cudarc::driver::sys::CUevent_flags;

use super::layout::{Layout, MOST_SENDERS, SCRATCH_AT};
use super::options::{Engine, GatherOptions, SMALL_SHARD};
use super::pushing::{Pusher, copy, write};
use super::step_shape::StepShape;
use super::{Gatherer, Table};
use crate::cuda::chunk_table::check_count;
use crate::cuda::device::Device;
use crate::cuda::signals::Signals;
use crate::cuda::symmetric::SymmetricMemory;
use crate::cuda::{MAX_PUSHED, driver_error};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::plan::{Plan, PlanOptions, Problem, Tiling};

/// Pieces of a shard are no smaller than this by default: each costs a copy engine some microseconds.
const SMALLEST_PIECE: u64 = 8 << 20;
/// More pieces than this gain nothing.
const MOST_PIECES: u64 = 2;

impl Gatherer {
    /// Joins the operation: all ranks call it with the same. `kind` says what it is for, `tiling` how the
    /// rows will be read, or why they cannot be.
    pub(in super::super) fn join(
        group: &Arc<Group>,
        device: &Device,
        problem: &Problem,
        tiling: Result<Tiling>,
        kind: &str,
        options: &GatherOptions,
    ) -> Result<Self> {
        let limit = options.first_limit;
        let planned = tiling.and_then(|tiling| plan(group, problem, tiling, options));
        agree(group, kind, problem, options, planned.as_ref().err(), limit)?;
        let plan = Arc::new(planned?);
        let layout = Layout::new(problem, plan.chunks().most_per_rank())?;
        let memory = Arc::new(SymmetricMemory::new(group, device, layout.bytes(), limit)?);
        let made = Self::make(group, device, &plan, options, layout, memory);
        let tell = |error: &Error| {
            group.abort(&format!("rank {} cannot plan a gather: {error}", group.rank()));
        };
        let gatherer = made.inspect_err(tell)?;
        // Nobody may write here before the words are there.
        group.barrier("a gather is planned", limit)?;
        gatherer.try_the_way().inspect_err(tell)?;
        group.barrier("a gather can begin", limit)?;
        Ok(gatherer)
    }

    fn make(
        group: &Arc<Group>,
        device: &Device,
        plan: &Arc<Plan>,
        options: &GatherOptions,
        layout: Layout,
        memory: Arc<SymmetricMemory>,
    ) -> Result<Self> {
        device.bind()?;
        let words = layout.first_words(options.first_epoch);
        let bytes = layout.bytes() as usize;
        // SAFETY: this rank's part is so long, and nobody writes to it before the barrier.
        unsafe {
            result::memset_d8_sync(memory.own_address(), 0xff, bytes)
                .and_then(|()| result::memcpy_htod_sync(memory.own_address(), &words))
        }
        .map_err(|error| driver_error("cuMemcpyHtoD", error))?;
        // Neither call promises that the memory has been written when it returns.
        let context = device.context();
        context.synchronize().map_err(|error| driver_error("cuCtxSynchronize", error))?;
        let signals = Signals::shared(device, &memory, layout.slots(), options.first_epoch)?;
        let host = Arc::downgrade(signals.host());
        group.on_end(move |_| {
            if let Some(host) = host.upgrade() {
                host.set_abort(true);
            }
        });

        let stream = device.new_stream()?;
        let addresses: Vec<u64> =
            (0..group.ranks()).map(|rank| memory.address(rank)).collect::<Result<_>>()?;
        let table = Table::new(&stream, &addresses)?;
        let engine = choose(options.engine, plan.problem())?;
        let event = || {
            let untimed = CUevent_flags::CU_EVENT_DISABLE_TIMING;
            let event = device.context().new_event(Some(untimed));
            event.map_err(|error| driver_error("cuEventCreate", error))
        };
        let pushers = match engine {
            Engine::CopyEngines { streams } => streams,
            _ => 1,
        };
        let pusher = |_| Ok(Pusher { stream: device.new_stream()?, sent: event()? });
        let pushers = (0..pushers).map(pusher).collect::<Result<_>>()?;
        let begun = event()?;
        let first = StepShape::new(plan, &layout, group.rank())?;
        Ok(Gatherer {
            signals,
            group: Arc::clone(group),
            device: device.clone(),
            plan: Arc::clone(plan),
            options: options.clone(),
            engine,
            layout,
            memory,
            table,
            pushers,
            begun,
            shapes: vec![Arc::new(first)],
            next_buffer: 0,
            epoch: options.first_epoch,
            captured: false,
            first_is_over: false,
            latest: None,
            last_stream: None,
            failed: None,
        })
    }

    /// First uses of a way to a peer take milliseconds, and may wait for what waits for them.
    fn try_the_way(&self) -> Result<()> {
        let scratch = Layout::word(SCRATCH_AT);
        for pusher in &self.pushers {
            for peer in (0..self.group.ranks()).filter(|peer| *peer != self.group.rank()) {
                let to = self.memory.address(peer)? + scratch;
                copy(&pusher.stream, to, self.memory.own_address() + scratch, 16)?;
                write(&pusher.stream, to, 0)?;
            }
            pusher
                .stream
                .synchronize()
                .map_err(|error| driver_error("cuStreamSynchronize", error))?;
        }
        Ok(())
    }
}

/// What can be planned without asking the others.
fn plan(group: &Group, problem: &Problem, tiling: Tiling, options: &GatherOptions) -> Result<Plan> {
    if problem.ranks() != group.ranks() {
        let remedy = "plan for as many ranks as the group has";
        let (got, expected) = (problem.ranks(), group.ranks());
        return Err(Error::mismatch("the number of ranks in the plan", got, expected, remedy));
    }
    problem.check_tma()?;
    let pieces = match options.pieces {
        Some(pieces) => pieces,
        None => default_pieces(problem),
    };
    let engine = choose(options.engine, problem)?;
    if matches!(engine, Engine::Kernel { .. }) && pieces > MAX_PUSHED {
        let (what, most) = ("the number of pieces a shard", u64::from(MAX_PUSHED));
        let remedy = "push so many pieces by copy engines";
        return Err(Error::out_of_range(what, pieces.into(), 1, most, remedy));
    }
    let plan = Plan::new(problem, PlanOptions { chunks_per_shard: Some(pieces), tiling })?;
    check_count(plan.chunks())?;
    Ok(plan)
}

/// Bytes of the largest shard.
pub(in super::super) fn shard_bytes(problem: &Problem) -> u64 {
    let bytes = problem.row_bytes(&(0..problem.shards().most_rows()));
    u64::try_from(bytes).unwrap_or(u64::MAX)
}

fn default_pieces(problem: &Problem) -> u32 {
    let pieces = (shard_bytes(problem) / SMALLEST_PIECE).clamp(1, MOST_PIECES);
    (pieces as u32).min(problem.shards().most_rows())
}

fn choose(engine: Engine, problem: &Problem) -> Result<Engine> {
    let bounded = |what: &str, value: u32, most: u64| {
        let range = 1..=most;
        if range.contains(&value.into()) {
            return Ok(engine);
        }
        Err(Error::out_of_range(what, value.into(), 1, most, "ask for a number in that range"))
    };
    match engine {
        Engine::Auto if shard_bytes(problem) <= SMALL_SHARD => {
            Ok(Engine::Kernel { blocks: (shard_bytes(problem) >> 16).clamp(16, 64) as u32 })
        }
        Engine::Auto => {
            Ok(Engine::CopyEngines { streams: problem.ranks().saturating_sub(1).clamp(1, 2) })
        }
        Engine::CopyEngines { streams } => {
            bounded("the number of streams", streams, MOST_SENDERS.into())
        }
        Engine::Kernel { blocks } => bounded("the number of blocks", blocks, 128),
    }
}

/// An error on all ranks unless all plan the same. The group lives on: what is wrong is wrong with a call.
fn agree(
    group: &Group,
    kind: &str,
    problem: &Problem,
    options: &GatherOptions,
    refused: Option<&Error>,
    limit: Duration,
) -> Result<()> {
    let text = match refused {
        Some(error) => format!("!{error}"),
        None => format!("{kind} of {problem}, {problem:?}, {options:?}"),
    };
    let texts = group.all_gather("the plan of a gather", text.as_bytes(), limit)?;
    let first = &texts[0];
    let mut others = (0..).zip(texts.iter());
    let Some((peer, other)) = others.find(|(_, other)| other.starts_with(b"!") || *other != first)
    else {
        return Ok(());
    };
    let (rank, words) = (group.rank(), |text: &[u8]| String::from_utf8_lossy(text).into_owned());
    match other.strip_prefix(b"!") {
        // Whose own plan was refused says so itself.
        Some(_) if refused.is_some() => Ok(()),
        Some(why) => {
            let reason = format!("rank {peer} cannot plan it: {}", words(why));
            Err(Error::Aborted { rank, reason })
        }
        None => {
            let what = format!("the plan of rank {peer}");
            let expected = format!("rank 0's: {}", words(first));
            let remedy = "plan the same operations in the same order on every rank";
            Err(Error::mismatch(what, words(other), expected, remedy))
        }
    }
}
