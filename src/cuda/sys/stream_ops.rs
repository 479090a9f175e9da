//! What a stream does without a kernel: copies, and words and events that it writes or waits for.
//!
//! Invariant: a word that a stream writes is seen by others after everything that the stream did before.

use std::ptr::null_mut;

use cudarc::driver::sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
use cudarc::driver::sys::CUstreamCaptureStatus_enum::CU_STREAM_CAPTURE_STATUS_NONE;
use cudarc::driver::sys::{self, CUdeviceptr, CUmemorytype, CUstreamWaitValue_flags};
use cudarc::driver::{CudaEvent, CudaStream, result};

use super::Driver;
use super::device::Device;
use crate::error::{Error, Result};

/// Enqueues a copy between any two places that this GPU reaches.
///
/// # Safety
/// Both are memory of that many bytes, and stay until the stream is through.
pub(crate) unsafe fn copy(
    stream: &CudaStream,
    to: CUdeviceptr,
    from: CUdeviceptr,
    bytes: u64,
) -> Result<()> {
    // SAFETY: the caller's promise.
    unsafe { result::memcpy_dtod_async(to, from, bytes as usize, stream.cu_stream()) }
        .in_call("cuMemcpyDtoDAsync")
}

/// Rows in memory: where the first is, and the bytes from one to the next.
#[derive(Clone, Copy, Debug)]
pub(crate) struct PitchedRows {
    pub(crate) start: CUdeviceptr,
    pub(crate) pitch: u64,
}

/// Enqueues a copy of `count` rows of `bytes` each between any two places that this GPU reaches.
///
/// # Safety
/// Both are memory of that many rows, and stay until the stream is through.
pub(crate) unsafe fn copy_rows(
    stream: &CudaStream,
    to: PitchedRows,
    from: PitchedRows,
    bytes: u64,
    count: u64,
) -> Result<()> {
    if (to.pitch, from.pitch) == (bytes, bytes) {
        // SAFETY: the caller's promise: no bytes lie between the rows.
        return unsafe { copy(stream, to.start, from.start, bytes * count) };
    }
    let copy = sys::CUDA_MEMCPY2D {
        srcXInBytes: 0,
        srcY: 0,
        srcMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        srcHost: std::ptr::null(),
        srcDevice: from.start,
        srcArray: std::ptr::null_mut(),
        srcPitch: from.pitch as usize,
        dstXInBytes: 0,
        dstY: 0,
        dstMemoryType: CUmemorytype::CU_MEMORYTYPE_UNIFIED,
        dstHost: std::ptr::null_mut(),
        dstDevice: to.start,
        dstArray: std::ptr::null_mut(),
        dstPitch: to.pitch as usize,
        WidthInBytes: bytes as usize,
        Height: count as usize,
    };
    // SAFETY: the caller's promise; the call reads `copy` before it returns.
    unsafe { sys::cuMemcpy2DAsync_v2(&raw const copy, stream.cu_stream()) }
        .result()
        .in_call("cuMemcpy2DAsync")
}

/// Lets a stream wait until a word has reached `value`; the comparison wraps. It knows no limit.
///
/// # Safety
/// `word` is a word that this GPU reaches, and stays until the stream is through.
pub(crate) unsafe fn wait_for(stream: &CudaStream, word: CUdeviceptr, value: u32) -> Result<()> {
    let reached = CUstreamWaitValue_flags::CU_STREAM_WAIT_VALUE_GEQ as u32;
    // SAFETY: the caller's promise.
    unsafe { sys::cuStreamWaitValue32_v2(stream.cu_stream(), word, value, reached) }
        .result()
        .in_call("cuStreamWaitValue32")
}

/// Enqueues the writing of a word, after everything that the stream has written is seen everywhere.
///
/// # Safety
/// As for [`wait_for`].
pub(crate) unsafe fn write(stream: &CudaStream, word: CUdeviceptr, value: u32) -> Result<()> {
    // Flags 0: a fence of the whole system comes before the write.
    // SAFETY: the caller's promise.
    unsafe { sys::cuStreamWriteValue32_v2(stream.cu_stream(), word, value, 0) }
        .result()
        .in_call("cuStreamWriteValue32")
}

/// Whether calls on `stream` are being recorded into a graph, not carried out.
pub(crate) fn is_capturing(stream: &CudaStream) -> Result<bool> {
    stream
        .capture_status()
        .map(|status| status != CU_STREAM_CAPTURE_STATUS_NONE)
        .in_call("cuStreamIsCapturing")
}

/// The capture that `stream` is in, if it is in one: each has another number.
pub(crate) fn capture_of(stream: &CudaStream) -> Result<Option<u64>> {
    let (mut status, mut id) = (CU_STREAM_CAPTURE_STATUS_NONE, 0);
    let (graph, nodes, edges, count) = (null_mut(), null_mut(), null_mut(), null_mut());
    let stream = stream.cu_stream();
    // SAFETY: the first two are written; the rest is not asked for.
    let found = unsafe {
        sys::cuStreamGetCaptureInfo_v3(stream, &mut status, &mut id, graph, nodes, edges, count)
    };
    found.result().in_call("cuStreamGetCaptureInfo")?;
    Ok((status != CU_STREAM_CAPTURE_STATUS_NONE).then_some(id))
}

/// An error if `stream` is being captured: of slices nobody knows how long a graph needs them.
pub(crate) fn refuse_capture(stream: &CudaStream) -> Result<()> {
    if !is_capturing(stream)? {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "a call with slices, in a graph,".into(),
        why: "the graph may be launched when they are gone".into(),
        remedy: "use the call with addresses, and keep the memory as long as the graph",
    })
}

/// An error unless `cudarc` orders what `by` does with memory of the stream `of`, and keeps that memory until then. It does so in
/// contexts that have a stream of their own making; a borrowed one does not count.
pub(crate) fn check_tracked(of: &CudaStream, by: &CudaStream) -> Result<()> {
    let untracked = |stream: &CudaStream| {
        let context = stream.context();
        // A caller that turns tracking off promises to order uses itself.
        context.is_event_tracking() && !context.is_in_multi_stream_mode()
    };
    // The work of one stream is in order. But two contexts have one default stream: an untracked context records no use there, and
    // other streams of the memory's context would not wait for it.
    let is_refused = match of == by {
        true => untracked(by) && of.context().is_managing_stream_synchronization(),
        false => untracked(of) || untracked(by),
    };
    if !is_refused {
        return Ok(());
    }
    Err(Error::Unsupported {
        what: "memory of another stream than the call's".into(),
        why: "a `CudaContext` that has made no stream does not track who uses its memory".into(),
        remedy: "make a stream with CudaContext::new_stream and keep it, or call on the memory's stream",
    })
}

/// An event that knows no time, and is cheaper for it.
pub(crate) fn untimed_event(device: &Device) -> Result<CudaEvent> {
    device.context().new_event(Some(CU_EVENT_DISABLE_TIMING)).in_call("cuEventCreate")
}

/// Notes in `event` what was enqueued on `stream` so far.
pub(crate) fn record(event: &CudaEvent, stream: &CudaStream) -> Result<()> {
    event.record(stream).in_call("cuEventRecord")
}

/// Lets what comes next on `stream` come after what `event` has noted.
pub(crate) fn wait(stream: &CudaStream, event: &CudaEvent) -> Result<()> {
    stream.wait(event).in_call("cuStreamWaitEvent")
}

/// Lets what comes next on `stream` come after what is on `before`.
pub(crate) fn follow(stream: &CudaStream, event: &CudaEvent, before: &CudaStream) -> Result<()> {
    record(event, before)?;
    wait(stream, event)
}

/// What is enqueued next on `stream`, which is being captured, comes after nothing. What was enqueued on it belongs to the
/// graph all the same, and no stream has to come after it.
pub(crate) fn let_go(stream: &CudaStream) -> Result<()> {
    let set = sys::CUstreamUpdateCaptureDependencies_flags::CU_STREAM_SET_CAPTURE_DEPENDENCIES;
    let (nodes, edges) = (std::ptr::null_mut(), std::ptr::null());
    // SAFETY: there are no nodes and no edges to read.
    unsafe {
        sys::cuStreamUpdateCaptureDependencies_v2(stream.cu_stream(), nodes, edges, 0, set as u32)
    }
    .result()
    .in_call("cuStreamUpdateCaptureDependencies")
}

/// Waits here until all that was enqueued on `stream` is done.
pub(crate) fn synchronize(stream: &CudaStream) -> Result<()> {
    stream.synchronize().in_call("cuStreamSynchronize")
}
