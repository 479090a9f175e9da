//! The C functions of `csrc/overlap_gemm.h`, with statuses turned into errors.
//!
//! What belongs here: one thin function for each C function, over the generated structs; nobody else calls C. Invariants:
//! a status that is not OK becomes an [`Error`] that carries the message the C side left on this thread; every call goes
//! through `with_kernels`, so in a binary without kernels each function says why there are none, and no plan exists.

use std::ffi::{CStr, c_void};
use std::marker::PhantomData;

use cudarc::driver::CudaStream;

use super::bindings::{
    self, og_activation, og_chunk, og_exchange, og_gather, og_gather_step, og_gemm_input,
    og_gemm_operands, og_gemm_plan, og_gemm_shape, og_kernel_facts, og_layout, og_pad,
    og_reduction, og_slots, og_status, og_type,
};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::kernels::Kernel;
use crate::plan::{
    Activation, BLayout, ClusterShape, ElementTypes, MAX_PUSHED, MAX_RANKS, TMA_ALIGNMENT,
    TileShape,
};

/// The most chunks a product waits for: they travel as parameters of the kernel.
pub const MAX_AWAITED_CHUNKS: u32 = bindings::OG_MAX_CHUNKS;

/// The largest M, N and K: rounding up to a tile has to stay within 31 bits.
pub(crate) const MAX_EXTENT: u32 = bindings::OG_MAX_EXTENT;

// Three limits have two homes, because plans know them without this feature.
const _: () = assert!(MAX_RANKS == bindings::OG_MAX_RANKS);
const _: () = assert!(MAX_PUSHED == bindings::OG_MAX_PUSHED);
const _: () = assert!(TMA_ALIGNMENT == bindings::OG_ALIGNMENT_BYTES as u64);

/// How the input of a product arrives.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Input<'a> {
    pub(crate) words: og_gemm_input,
    /// What is before it on the stream began when B was there.
    pub(crate) b_is_there: bool,
    /// `words` points to them.
    _chunks: PhantomData<&'a [og_chunk]>,
}

impl<'a> Input<'a> {
    /// `chunks`, and the rest: `words`.
    pub(crate) fn new(chunks: &'a [og_chunk], words: og_gemm_input) -> Self {
        let (chunk_count, chunks) = (count(chunks), chunks.as_ptr());
        let words = og_gemm_input { chunks, chunk_count, ..words };
        Input { words, b_is_there: false, _chunks: PhantomData }
    }

    /// The same for a product that comes behind another one of the step, and may read what that writes as anything but
    /// A and B.
    pub(crate) fn after_another(mut self) -> Self {
        self.words.begun = std::ptr::null();
        self
    }
}

impl From<Activation> for og_activation {
    fn from(activation: Activation) -> Self {
        match activation {
            Activation::None => og_activation::OG_ACTIVATION_NONE,
            Activation::Relu => og_activation::OG_ACTIVATION_RELU,
            Activation::GeluTanh => og_activation::OG_ACTIVATION_GELU_TANH,
            Activation::Silu => og_activation::OG_ACTIVATION_SILU,
        }
    }
}

impl From<ElementType> for og_type {
    fn from(element: ElementType) -> Self {
        match element {
            ElementType::Bf16 => og_type::OG_TYPE_BF16,
            ElementType::F16 => og_type::OG_TYPE_F16,
            ElementType::F32 => og_type::OG_TYPE_F32,
            ElementType::E4m3 => og_type::OG_TYPE_E4M3,
            ElementType::E5m2 => og_type::OG_TYPE_E5M2,
        }
    }
}

/// Numbers of the C side are signed; what does not fit is refused there.
pub(crate) fn int(value: u32) -> i32 {
    i32::try_from(value).unwrap_or(i32::MAX)
}

/// As [`int`].
pub(crate) fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

pub(crate) fn count<T>(list: &[T]) -> i32 {
    i32::try_from(list.len()).unwrap_or(i32::MAX)
}

/// Runs what calls C. Without kernels there is nothing to call: `run` is not compiled into the binary, and this says why.
fn with_kernels<T>(run: impl FnOnce() -> T) -> Result<T> {
    #[cfg(overlap_gemm_kernels)]
    return Ok(run());
    #[cfg(not(overlap_gemm_kernels))]
    {
        drop(run);
        Err(Error::KernelsNotBuilt { reason: super::generated::REASON.into() })
    }
}

/// One call, and its status as an error with the words that the C side left behind.
fn call(function: &'static str, run: impl FnOnce() -> og_status) -> Result<()> {
    let status = with_kernels(run)?;
    if status == og_status::OG_STATUS_OK {
        return Ok(());
    }
    // SAFETY: the message is a C string that is never null, stays valid until this thread's next call, and is copied before.
    let (message, code) = with_kernels(|| unsafe {
        let message = CStr::from_ptr(bindings::og_last_error_message());
        (message.to_string_lossy(), bindings::og_last_cuda_error())
    })?;
    Err(match status {
        og_status::OG_STATUS_OUT_OF_RANGE
        | og_status::OG_STATUS_BAD_PITCH
        | og_status::OG_STATUS_MISALIGNED => Error::Unsupported {
            what: format!("this call of {function}"),
            why: message.into_owned(),
            remedy: "change the named value",
        },
        og_status::OG_STATUS_ARCHITECTURE => {
            Error::NoDevice { reason: format!("{message}; use a Hopper GPU (H100, H200, GH200)") }
        }
        // Null pointers and empty plans cannot come from this crate, nor may CUTLASS throw: all
        // faults of ours if they occur.
        _ => Error::Cuda {
            call: function,
            code: u32::try_from(code).ok().filter(|code| *code != 0),
            detail: format!("{message} ({status:?})"),
        },
    })
}

fn handle(stream: &CudaStream) -> *mut c_void {
    stream.cu_stream().cast()
}

/// Whether the kernels are in this binary, compiled from the header that Rust was compiled with; the error says where the
/// build looked for a toolkit.
///
/// ```
/// match overlap_gemm::cuda::kernels_built() {
///     Ok(()) => println!("{:?}", overlap_gemm::cuda::build_info()?),
///     Err(error) => println!("{error}"),
/// }
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn kernels_built() -> Result<()> {
    // SAFETY: takes nothing, touches nothing.
    let compiled = with_kernels(|| unsafe { bindings::og_abi_version() })?;
    if i64::from(compiled) == i64::from(bindings::OG_ABI_VERSION) {
        return Ok(());
    }
    Err(Error::KernelsNotBuilt {
        reason: format!(
            "the objects have ABI version {compiled}, src/cuda/sys/bindings.rs has {}: run cargo clean \
             and build again; if csrc/overlap_gemm.h has changed, cargo check --features bindings \
             says how to renew the declarations",
            bindings::OG_ABI_VERSION
        ),
    })
}

pub(crate) fn kernel_count() -> Result<u32> {
    // SAFETY: takes nothing, touches nothing.
    with_kernels(|| unsafe { bindings::og_kernel_count() }.max(0).unsigned_abs())
}

pub(crate) fn kernel_info(index: u32) -> Result<Kernel> {
    let mut facts = og_kernel_facts::default();
    // SAFETY: the pointer is to a live struct of the declared layout.
    call("og_kernel_info", || unsafe { bindings::og_kernel_info(int(index), &mut facts) })?;
    // SAFETY: the header promises a static string.
    let name = unsafe { CStr::from_ptr(facts.name) }.to_string_lossy().into_owned();
    let unknown = |what: &str, number: u32| Error::Cuda {
        call: "og_kernel_info",
        code: None,
        detail: format!("kernel {index} has {what} {number}: run cargo clean and build again"),
    };
    let element = |number: og_type| {
        let found = ElementType::ALL.into_iter().find(|element| og_type::from(*element) == number);
        found.ok_or_else(|| unknown("element type", number.0))
    };
    let [a, b, d] = [facts.a_type, facts.b_type, facts.d_type].map(element);
    let elements = ElementTypes { a: a?, b: b?, d: d? };
    let extents = |[m, n]: [i32; 2]| [m, n].map(i32::unsigned_abs);
    let ([m, n], [height, width]) =
        (extents([facts.tile_m, facts.tile_n]), extents([facts.cluster_m, facts.cluster_n]));
    Ok(Kernel {
        name,
        elements,
        b_layout: match facts.b_layout {
            og_layout::OG_LAYOUT_NK => BLayout::Nk,
            og_layout::OG_LAYOUT_KN => BLayout::Kn,
            og_layout(other) => return Err(unknown("layout", other)),
        },
        tile: TileShape { m, n },
        tile_k: facts.tile_k.unsigned_abs(),
        cluster: ClusterShape { m: height, n: width },
        pingpong: facts.pingpong != 0,
        transposed: facts.transposed != 0,
        fast_accumulation: facts.fast_accumulation != 0,
        max_splits: facts.max_splits.unsigned_abs(),
        adds_others: facts.adds_others != 0,
        gates: facts.gates != 0,
    })
}

/// `og_gemm_check`: needs no device.
pub(crate) fn check(shape: &og_gemm_shape, with_c: bool) -> Result<()> {
    // SAFETY: the pointer is to a live struct of the declared layout.
    call("og_gemm_check", || unsafe { bindings::og_gemm_check(shape, with_c.into()) })
}

/// `og_gemm_prepare`.
///
/// # Safety
/// The CUDA context of the device is current on this thread.
pub(crate) unsafe fn prepare(shape: &og_gemm_shape) -> Result<og_gemm_plan> {
    let mut plan = og_gemm_plan::default();
    // SAFETY: both pointers are to live structs of the declared layout; the context is current.
    call("og_gemm_prepare", || unsafe { bindings::og_gemm_prepare(shape, &mut plan) })?;
    Ok(plan)
}

/// `og_gemm_enqueue`.
///
/// # Safety
/// The context that [`prepare`] has made `plan` in is current on this thread, `stream` belongs to it, the
/// addresses are of device memory as long as sizes and pitches say, those of `input` as the header
/// says, `records` (0: none) of the plan's tiles times the splits, `workspace` of the plan's bytes, which
/// were zero once; all of it stays valid until the product is done.
pub(crate) unsafe fn enqueue(
    plan: &og_gemm_plan,
    rows: u32,
    operands: &og_gemm_operands,
    input: Option<&Input<'_>>,
    [records, workspace]: [u64; 2],
    stream: &CudaStream,
) -> Result<()> {
    // SAFETY: the structs are live and of the declared layout; the rest is the caller's promise.
    call("og_gemm_enqueue", || unsafe {
        bindings::og_gemm_enqueue(
            plan,
            rows.into(),
            operands,
            input.map_or(std::ptr::null(), |input| &raw const input.words),
            records as *mut _,
            workspace as *mut _,
            handle(stream),
        )
    })
}

/// `og_epoch_advance`.
///
/// # Safety
/// The context of `stream` is current on this thread, and `epoch` is the address of a word there
/// that stays valid until the kernel is done.
pub(crate) unsafe fn epoch_advance(epoch: u64, stream: &CudaStream) -> Result<()> {
    // SAFETY: the caller's promise.
    call("og_epoch_advance", || unsafe {
        bindings::og_epoch_advance(epoch as *mut _, handle(stream))
    })
}

/// `og_signal_post`.
///
/// # Safety
/// As for [`epoch_advance`]; `count` words from `signals` on, too.
pub(crate) unsafe fn signal_post(
    signals: u64,
    count: u32,
    epoch: u64,
    stream: &CudaStream,
) -> Result<()> {
    // SAFETY: the caller's promise.
    call("og_signal_post", || unsafe {
        bindings::og_signal_post(signals as *mut _, int(count), epoch as *const _, handle(stream))
    })
}

/// `og_gather_begin`.
///
/// # Safety
/// The context of `stream` is current on this thread; the words are as the header says on every rank,
/// every rank has memory where the pushes say, and all of it stays until the kernel is done.
pub(crate) unsafe fn gather_begin(
    gather: &og_gather,
    step: &og_gather_step,
    stream: &CudaStream,
) -> Result<()> {
    // SAFETY: live structs of the declared layouts; the rest is the caller's promise.
    call("og_gather_begin", || unsafe { bindings::og_gather_begin(gather, step, handle(stream)) })
}

/// `og_gather_await`.
///
/// # Safety
/// As for [`gather_begin`].
pub(crate) unsafe fn gather_await(
    gather: &og_gather,
    slots: &og_slots,
    stream: &CudaStream,
) -> Result<()> {
    // SAFETY: live structs of the declared layouts; the rest is the caller's promise.
    call("og_gather_await", || unsafe { bindings::og_gather_await(gather, slots, handle(stream)) })
}

/// `og_reduce`.
///
/// # Safety
/// The context of `stream` is current on this thread; sums, outputs and words are as the header says, and stay until the
/// kernel is done.
pub(crate) unsafe fn reduce(reduction: &og_reduction, stream: &CudaStream) -> Result<()> {
    // SAFETY: a live struct of the declared layout; the rest is the caller's promise.
    call("og_reduce", || unsafe { bindings::og_reduce(reduction, handle(stream)) })
}

/// `og_exchange_sums`.
///
/// # Safety
/// As for [`gather_begin`] and [`reduce`]; what is sent to a rank fits where it lands.
pub(crate) unsafe fn exchange_sums(
    gather: &og_gather,
    step: &og_gather_step,
    exchange: &og_exchange,
    stream: &CudaStream,
) -> Result<()> {
    // SAFETY: live structs of the declared layouts; the rest is the caller's promise.
    call("og_exchange_sums", || unsafe {
        bindings::og_exchange_sums(gather, step, exchange, handle(stream))
    })
}

/// `og_pad_meet`; no `peer` means all.
///
/// # Safety
/// The context of `stream` is current on this thread; the words are as the header says on every rank, and stay
/// until the kernel is done.
pub(crate) unsafe fn pad_meet(
    pad: &og_pad,
    channel: u32,
    peer: Option<u32>,
    puts: bool,
    waits: bool,
    stream: &CudaStream,
) -> Result<()> {
    let (channel, peer) = (int(channel), peer.map_or(-1, int));
    // SAFETY: a live struct of the declared layout; the rest is the caller's promise.
    call("og_pad_meet", || unsafe {
        bindings::og_pad_meet(pad, channel, peer, puts.into(), waits.into(), handle(stream))
    })
}

/// `og_signals_prepare`.
///
/// # Safety
/// The CUDA context of the device is current on this thread.
pub(crate) unsafe fn signals_prepare() -> Result<()> {
    // SAFETY: the caller's promise.
    call("og_signals_prepare", || unsafe { bindings::og_signals_prepare() })
}

#[cfg(all(test, overlap_gemm_kernels))]
#[path = "ffi_tests.rs"]
mod tests;
