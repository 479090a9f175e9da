//! What a stream does without a kernel: copies, and words that it writes or waits for.
//!
//! Invariant: a word that a stream writes is seen by others after everything that the stream did before.

use cudarc::driver::sys::{self, CUdeviceptr, CUstreamWaitValue_flags};
use cudarc::driver::{CudaStream, result};

use super::driver_error;
use crate::error::Result;

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
        .map_err(|error| driver_error("cuMemcpyDtoDAsync", error))
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
        .map_err(|error| driver_error("cuStreamWaitValue32", error))
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
        .map_err(|error| driver_error("cuStreamWriteValue32", error))
}
