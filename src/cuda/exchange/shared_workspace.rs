//! Memory that several operations use, one after the other.
//!
//! What belongs here: where an operation's words and rows lie in it, and the handover from one operation to the next.
//! Invariants: an operation touches the memory only when all ranks have ended the steps of other operations before it, as the
//! streams have them; words lie where no operation that a rank still has keeps its own.

use std::fmt;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use cudarc::driver::{CudaStream, result};

use super::layout::Layout;
use super::signal_pad::SignalPad;
use super::step_order::StepOrder;
use super::symmetric::SymmetricMemory;
use crate::cuda::sys::Driver;
use crate::cuda::sys::device::{Device, check_context};
use crate::error::{Error, Result};
use crate::group::Group;
use crate::sync::lock;

/// Words of all operations lie before their rows.
const WORDS: u64 = 4 << 20;
/// Where an operation's words begin: multiples of this. On the first page are the stop words, which all of them share.
const PAGE: u64 = 4096;

/// Memory for operations whose steps come one after the other, such as those of a model's layers. It is as large as the largest
/// of them needs; without it each operation has memory of its own.
///
/// Collective: all ranks create it, plan the same operations in it, and enqueue or capture the steps of all these operations in the
/// same order, one after the other. It grows when an operation needs more; earlier plans and their graphs stay valid.
///
/// The cost: a step that follows a step of another operation waits, on the GPU, until all ranks have ended that step. The first step
/// of each graph waits in the same way; after a capture, so does every step outside of graphs. Use a workspace for many rows;
/// operations of few rows need little memory. Rows cannot be in place
/// ([`AllGatherGemm::local_shard`](crate::cuda::AllGatherGemm::local_shard) is refused), NCCL cannot
/// move them, and gathered rows can be read until the next step of any operation.
///
/// ```no_run
/// use std::time::Duration;
/// use overlap_gemm::cuda::{
///     AllGatherGemm, Device, CollectiveOptions, GemmOptions, GemmReduceScatter, SharedWorkspace,
/// };
/// use overlap_gemm::group::GroupOptions;
/// use overlap_gemm::plan::{Problem, Reduction};
///
/// let (group, device) = Device::join(&GroupOptions::default())?;
/// let ranks = group.ranks().into();
/// let workspace = SharedWorkspace::new(&group, &device, Duration::from_secs(30))?;
/// let (options, gemm) = (CollectiveOptions::default().with_workspace(&workspace), GemmOptions::default());
/// let up = Problem::builder(8192, 3584, 8192).ranks(ranks).build()?;
/// let up = AllGatherGemm::plan(&group, &device, &up, &options, &gemm)?;
/// let (down, sum) = (Problem::builder(8192, 8192, 3584).ranks(ranks).build()?, Reduction::default());
/// let down = GemmReduceScatter::plan(&group, &device, &down, &options, &gemm, sum)?;
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone)]
pub struct SharedWorkspace(Arc<Shared>);

struct Shared {
    /// The same on all ranks, and no other workspace's of the group.
    number: u64,
    group: Arc<Group>,
    device: Device,
    /// Dropped before the memory, which has its stop words.
    pad: SignalPad,
    memory: Arc<SymmetricMemory>,
    limit: Duration,
    places: Mutex<Vec<(Range<u64>, Weak<Place>)>>,
    steps: Mutex<Steps>,
    /// Where copy engines push for all operations: a GPU has few queues for streams.
    copy_streams: Mutex<Vec<Arc<CudaStream>>>,
}

/// An operation's place in the memory.
#[derive(Debug)]
pub(crate) struct Place {
    /// The first byte of its words; its rows lie behind all words.
    pub(crate) words_at: u64,
    number: u64,
}

/// The steps of all operations.
struct Steps {
    order: StepOrder,
    /// The operation of the latest step.
    latest: Option<u64>,
    /// A step has begun and not ended.
    in_step: bool,
}

impl SharedWorkspace {
    /// Blocks until all ranks have called it. `limit` is the timeout of each wait between ranks: here, when a plan takes its place in
    /// the workspace, and between steps of two operations.
    pub fn new(group: &Arc<Group>, device: &Device, limit: Duration) -> Result<Self> {
        /// Of this process: rank 0's is everybody's.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let order = StepOrder::new(device).inspect_err(|error| refused(group, error))?;
        // No operation needs more than the GPU has.
        let memory = SymmetricMemory::reserve(group, device, device.info().memory_bytes)?;
        memory.grow(group, WORDS, limit)?;
        device.bind()?;
        let stop = memory.own_address();
        // SAFETY: this rank's part is longer, and no step uses it yet.
        let zeroed = unsafe { result::memset_d8_sync(stop, 0, PAGE as usize) };
        zeroed.in_call("cuMemsetD8").inspect_err(|error| refused(group, error))?;
        let pad = SignalPad::new(group, device, 1, limit)?.behind_steps(stop);
        // Relaxed: a number that nobody else has; nothing else is handed over with it.
        let own = NEXT.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        let numbers = group.all_gather("the number of a shared workspace", &own, limit)?;
        let first = numbers.first().and_then(|number| number.as_slice().try_into().ok());
        let number = first.map_or(0, u64::from_le_bytes);
        let steps = Steps { order, latest: None, in_step: false };
        Ok(SharedWorkspace(Arc::new(Shared {
            number,
            group: Arc::clone(group),
            device: device.clone(),
            memory: Arc::new(memory),
            pad,
            limit,
            places: Mutex::default(),
            steps: Mutex::new(steps),
            copy_streams: Mutex::default(),
        })))
    }

    /// How many bytes each rank has here at present.
    pub fn bytes(&self) -> u64 {
        self.0.memory.bytes()
    }

    /// An error unless an operation of this group can be planned here.
    pub(crate) fn check_plan(&self, group: &Group, device: &Device) -> Result<()> {
        check_context("the workspace", self.0.device.context(), device.context())?;
        if std::ptr::eq(&*self.0.group, group) {
            return Ok(());
        }
        let remedy = "plan with the group that the workspace was made with";
        Err(Error::mismatch("the group of the workspace", "another", "the plan's", remedy))
    }

    /// Finds a place for an operation, and lets the memory grow if that needs more. Collective; all ranks find the same.
    pub(crate) fn place(
        &self,
        layout: Layout,
    ) -> Result<(Layout, Arc<SymmetricMemory>, Arc<Place>)> {
        let Shared { group, memory, limit, .. } = &*self.0;
        let mut places = lock(&self.0.places);
        places.retain(|(_, place)| place.strong_count() > 0);
        // A rank that has dropped an operation may still be written to by one that has not.
        let own = places.iter().flat_map(|(taken, _)| [taken.start, taken.end]);
        let own: Vec<u8> = own.flat_map(u64::to_le_bytes).collect();
        let all = group.all_gather("the words in a shared workspace", &own, *limit)?;
        let taken = all.iter().flat_map(|part| read_ranges(part));
        let needed = layout.words_bytes().next_multiple_of(PAGE);
        let words_at = first_gap(taken.collect(), needed).ok_or_else(|| Error::Unsupported {
            what: "one more operation in this workspace".into(),
            why: format!("its {needed} bytes of words do not fit beside those of the others"),
            remedy: "drop operations on all ranks, or make another workspace",
        })?;
        let layout = layout.with_rows_from(WORDS - words_at);
        let missing = (words_at + layout.bytes).saturating_sub(memory.bytes());
        if missing > 0 {
            memory.grow(group, missing, *limit)?;
        }
        // Relaxed: as above.
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let place = Arc::new(Place { words_at, number: NEXT.fetch_add(1, Ordering::Relaxed) });
        places.push((words_at..words_at + needed, Arc::downgrade(&place)));
        Ok((layout, Arc::clone(memory), place))
    }

    /// `count` streams, the same ones for all operations.
    pub(crate) fn copy_streams(&self, count: u32) -> Result<Vec<Arc<CudaStream>>> {
        let (mut streams, count) = (lock(&self.0.copy_streams), count as usize);
        while streams.len() < count {
            streams.push(self.0.device.new_stream()?);
        }
        Ok(streams[..count].to_vec())
    }

    /// An error if the next step cannot be on `stream`, or another operation's has not ended.
    pub(crate) fn check_stream(&self, stream: &Arc<CudaStream>) -> Result<()> {
        self.free()?.order.check_stream(&self.0.device, stream)
    }

    /// Begins a step of an operation on `stream`: it waits there until all ranks have ended the steps of other operations before it.
    pub(crate) fn begin(
        &self,
        place: &Place,
        stream: &Arc<CudaStream>,
        capture: Option<u64>,
    ) -> Result<()> {
        let mut steps = self.free()?;
        let is_cut_off = steps.order.next(&self.0.device, stream, capture)?;
        let is_new = steps.latest.is_some_and(|latest| latest != place.number);
        if is_cut_off || is_new {
            self.0.pad.barrier(stream, 0)?;
        }
        (steps.latest, steps.in_step) = (Some(place.number), true);
        Ok(())
    }

    /// The operation's step has been enqueued, or has failed, or the operation is dropped. Whether it was in a step.
    pub(crate) fn end(&self, place: &Place) -> bool {
        let mut steps = lock(&self.0.steps);
        let was_in_step = steps.in_step && steps.latest == Some(place.number);
        steps.in_step &= !was_in_step;
        was_in_step
    }

    /// Whether the latest step was that operation's.
    pub(crate) fn is_latest(&self, place: &Place) -> bool {
        lock(&self.0.steps).latest == Some(place.number)
    }

    /// Whether a step was captured: only the device knows whose step is the latest.
    pub(crate) fn has_graphs(&self) -> bool {
        lock(&self.0.steps).order.captured
    }

    /// An error if a rank has not waited as it should have.
    pub(crate) fn check(&self) -> Result<()> {
        self.0.pad.check()
    }

    /// Between two steps.
    fn free(&self) -> Result<MutexGuard<'_, Steps>> {
        let steps = lock(&self.0.steps);
        if steps.in_step {
            let remedy = "end one step before the next begins in the same workspace";
            return Err(Error::mismatch("the step before", "not ended", "ended", remedy));
        }
        Ok(steps)
    }
}

impl PartialEq for SharedWorkspace {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

impl Eq for SharedWorkspace {}

impl fmt::Debug for SharedWorkspace {
    /// What ranks compare when they plan: it names the workspace, and nothing that may differ between them.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SharedWorkspace({})", self.0.number)
    }
}

/// Tells the others, who would wait, that this rank has no workspace, and why.
fn refused(group: &Group, error: &Error) {
    group.abort(&format!("rank {} has no shared workspace: {error}", group.rank()));
}

/// What another rank has sent of its operations' words.
fn read_ranges(bytes: &[u8]) -> Vec<Range<u64>> {
    let number = |bytes: &[u8]| bytes.try_into().map_or(0, u64::from_le_bytes);
    bytes.chunks_exact(16).map(|pair| number(&pair[..8])..number(&pair[8..])).collect()
}

/// The first place among the words for `needed` bytes.
fn first_gap(mut taken: Vec<Range<u64>>, needed: u64) -> Option<u64> {
    taken.sort_by_key(|range| range.start);
    let mut end = PAGE;
    for range in taken {
        if range.start.saturating_sub(end) >= needed {
            break;
        }
        end = end.max(range.end);
    }
    (end.checked_add(needed)? <= WORDS).then_some(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_lie_in_the_first_gap_that_no_rank_uses() {
        let gap = |taken: &[[u64; 2]], needed| {
            first_gap(taken.iter().map(|[start, end]| *start..*end).collect(), needed)
        };
        assert_eq!(gap(&[], PAGE), Some(PAGE));
        // Both ranks have the first; one has dropped the second, the other has not.
        let taken = [[1, 2], [1, 2], [2, 4], [5, 6]].map(|range| range.map(|page| page * PAGE));
        assert_eq!(gap(&taken, PAGE), Some(4 * PAGE));
        assert_eq!(gap(&taken, 2 * PAGE), Some(6 * PAGE));
        assert_eq!(gap(&[[2 * PAGE, WORDS]], PAGE), Some(PAGE));
        assert_eq!(gap(&[[2 * PAGE, WORDS]], 2 * PAGE), None);
        assert_eq!(gap(&[], WORDS), None, "the first page is all operations'");
        assert_eq!(gap(&[[0, PAGE]], u64::MAX), None);
    }

    #[test]
    fn ranges_come_out_as_they_went_in() {
        let sent: Vec<u8> = [1u64, 2, 3, u64::MAX].iter().flat_map(|at| at.to_le_bytes()).collect();
        assert_eq!(read_ranges(&sent), [1..2, 3..u64::MAX]);
        assert_eq!(read_ranges(&sent[..31]).len(), 1, "what is cut off is nobody's");
    }
}
