//! The C functions of `csrc/overlap_gemm.h`, with statuses turned into errors.
//!
//! What belongs here: the generated declarations and one thin function for each C function; nobody
//! else calls C. Invariant: a status that is not OK becomes an [`Error`] that carries the message
//! the C side left on this thread. `ffi_missing.rs` is the twin for builds without kernels and has
//! the same functions.

use std::ffi::{CStr, c_void};

use super::call::{
    ASKED, Addresses, Chunk, Exchange, FailureRecord, GatherStep, GatherWords, Input, LEFT,
    MAX_CHUNKS, MAX_PUSHED, MAX_SHARE_BITS, PadWords, Push, Slots, Sums, SumsRun, TOGGLE_SET,
    TileRecord, Totals, int,
};
use super::shape::{MAX_EXTENT, MAX_SPLITS, Shape};
use crate::element::ElementType;
use crate::error::{Error, Result};
use crate::kernels::Kernel;
use crate::plan::Activation;
use crate::plan::{BLayout, ClusterShape, ElementTypes, MAX_RANKS, TMA_ALIGNMENT, TileShape};

#[allow(
    clippy::undocumented_unsafe_blocks,
    dead_code,
    missing_docs,
    non_camel_case_types,
    unreachable_pub,
    reason = "generated from csrc/overlap_gemm.h, which documents and keeps the C names"
)]
#[path = "bindings.rs"]
mod bindings;

use bindings::{
    og_activation, og_chunk, og_failure, og_failure_kind, og_gather, og_gather_step, og_gemm_input,
    og_gemm_operands, og_gemm_plan, og_gemm_shape, og_kernel_facts, og_layout, og_pad, og_push,
    og_reduction, og_slots, og_status, og_sums_run, og_tile_record, og_type,
};

// The limits have two homes, because Rust must know them where there are no kernels.
const _: () = assert!(MAX_EXTENT as u64 == bindings::OG_MAX_EXTENT as u64);
const _: () = assert!(MAX_SPLITS as u64 == bindings::OG_MAX_SPLITS as u64);
const _: () = assert!(MAX_CHUNKS as u64 == bindings::OG_MAX_CHUNKS as u64);
const _: () = assert!(MAX_PUSHED as u64 == bindings::OG_MAX_PUSHED as u64);
const _: () = assert!(MAX_SHARE_BITS == bindings::OG_MAX_SHARE_BITS);
const _: () = assert!(MAX_RANKS == bindings::OG_MAX_RANKS);
const _: () = assert!(TMA_ALIGNMENT == bindings::OG_ALIGNMENT_BYTES as u64);

// So have the structs that the device writes or that are passed on as they are.
macro_rules! same_layout {
    ($rust:ty, $c:ty, $($field:ident),+) => {
        const _: () = assert!(size_of::<$rust>() == size_of::<$c>());
        const _: () = assert!(align_of::<$rust>() == align_of::<$c>());
        $(const _: () = assert!(
            std::mem::offset_of!($rust, $field) == std::mem::offset_of!($c, $field)
        );)+
    };
}
same_layout!(Chunk, og_chunk, first_row, signal);
same_layout!(SumsRun, og_sums_run, to, first_row, rows, peer, slot, slots);
same_layout!(FailureRecord, og_failure, chunk, signal, epoch, tile_m, tile_n, kind);
same_layout!(TileRecord, og_tile_record, wait_begin, ready, done, index, sm, tile_m, tile_n, chunk);
same_layout!(
    GatherWords,
    og_gather,
    words,
    own,
    ranks,
    rank,
    slots,
    share_bits,
    stop_at,
    epoch_at,
    over_at,
    last_buffer_at,
    last_use_at,
    sent_at,
    signals_at,
    toggles_at,
    consumed_at,
    torn_at,
    layouts_at,
    abort,
    failure,
    timeout_ns
);
same_layout!(Push, og_push, offset, bytes, slot);
same_layout!(PadWords, og_pad, words, own, ranks, rank, channels, abort, failure, timeout_ns);
const _: () = assert!(PadWords::HEADER == bindings::OG_PAD_HEADER);
const _: () = assert!(TOGGLE_SET == bindings::OG_TOGGLE_SET);
const _: () = {
    assert!(FailureRecord::NONE == og_failure_kind::OG_FAILURE_NONE.0);
    assert!(FailureRecord::TIMEOUT == og_failure_kind::OG_FAILURE_TIMEOUT.0);
    assert!(FailureRecord::ABORTED == og_failure_kind::OG_FAILURE_ABORTED.0);
    assert!(FailureRecord::ABSENT == og_failure_kind::OG_FAILURE_ABSENT.0);
    assert!(FailureRecord::LAYOUT == og_failure_kind::OG_FAILURE_LAYOUT.0);
    assert!(FailureRecord::LEFT == og_failure_kind::OG_FAILURE_LEFT.0);
    assert!(FailureRecord::SLICE == og_failure_kind::OG_FAILURE_SLICE.0);
    assert!(ASKED == bindings::OG_ABORT_ASKED);
    assert!(LEFT == bindings::OG_ABORT_LEFT);
};

/// What `og_gemm_prepare` found out; only [`prepare`] makes one.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Prepared(og_gemm_plan);

impl Prepared {
    /// Bytes of device memory that every enqueue needs beside the matrices.
    pub(crate) fn workspace_bytes(&self) -> u64 {
        self.0.workspace_bytes
    }

    /// SMs that the kernel may occupy.
    pub(crate) fn sm_count(&self) -> u32 {
        self.0.sm_count.unsigned_abs()
    }

    /// Tiles of D.
    pub(crate) fn tile_count(&self) -> u64 {
        self.0.tile_count.unsigned_abs()
    }
}

fn shape_of(shape: &Shape) -> og_gemm_shape {
    og_gemm_shape {
        m: shape.m.into(),
        n: shape.n.into(),
        k: shape.k.into(),
        lda: shape.lda.into(),
        ldb: shape.ldb.into(),
        ldc: shape.ldd.into(),
        ldd: shape.ldd.into(),
        kernel: int(shape.kernel),
        sm_count: int(shape.sm_limit),
        swizzle: int(shape.swizzle),
        splits: int(shape.splits),
    }
}

fn operands_of(addresses: &Addresses) -> og_gemm_operands {
    og_gemm_operands {
        a: addresses.a as *const c_void,
        b: addresses.b as *const c_void,
        c: addresses.c as *const c_void,
        d: addresses.d as *mut c_void,
        bias: addresses.bias as *const c_void,
        scale_a: addresses.scale_a as *const f32,
        scale_b: addresses.scale_b as *const f32,
        scale_a_per_row: addresses.scales_per_line.into(),
        scale_b_per_column: addresses.scales_per_line.into(),
        alpha: addresses.alpha,
        beta: addresses.beta,
        b_is_there: addresses.b_is_there.into(),
        activation: activation_of(addresses.activation),
    }
}

fn activation_of(activation: Activation) -> og_activation {
    match activation {
        Activation::None => og_activation::OG_ACTIVATION_NONE,
        Activation::Relu => og_activation::OG_ACTIVATION_RELU,
        Activation::GeluTanh => og_activation::OG_ACTIVATION_GELU_TANH,
        Activation::Silu => og_activation::OG_ACTIVATION_SILU,
    }
}

fn type_of(element: ElementType) -> og_type {
    match element {
        ElementType::Bf16 => og_type::OG_TYPE_BF16,
        ElementType::F16 => og_type::OG_TYPE_F16,
        ElementType::F32 => og_type::OG_TYPE_F32,
        ElementType::E4m3 => og_type::OG_TYPE_E4M3,
        ElementType::E5m2 => og_type::OG_TYPE_E5M2,
    }
}

fn input_of(input: &Input<'_>) -> og_gemm_input {
    og_gemm_input {
        chunks: input.chunks.as_ptr().cast::<og_chunk>(),
        chunk_count: int(input.chunks.len() as u32),
        pivot_row: input.pivot_row,
        signals: input.signals as *const u32,
        epoch: input.epoch as *const u32,
        begun: input.begun as *const u64,
        stop: input.stop as *mut bindings::og_stop,
        abort: input.abort as *const u32,
        failure: input.failure as *mut og_failure,
        timeout_ns: input.timeout_ns,
        slots_per_rank: input.slots_per_rank,
        share_bits: input.share_bits,
    }
}

/// Whether the objects in this binary were compiled from the header that Rust was compiled with.
pub(crate) fn check_abi() -> Result<()> {
    // SAFETY: takes nothing, touches nothing.
    let compiled = unsafe { bindings::og_abi_version() };
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

/// `og_kernel_count`.
pub(crate) fn kernel_count() -> u32 {
    // SAFETY: takes nothing, touches nothing.
    unsafe { bindings::og_kernel_count() }.max(0).unsigned_abs()
}

/// `og_kernel_info`.
pub(crate) fn kernel_info(index: u32) -> Result<Kernel> {
    let mut facts = og_kernel_facts::default();
    // SAFETY: the pointer is to a live struct of the declared layout.
    let status = unsafe { bindings::og_kernel_info(int(index), &mut facts) };
    outcome("og_kernel_info", status)?;
    let unknown = |what: &str, number| Error::Cuda {
        call: "og_kernel_info",
        detail: format!("kernel {index} has {what} {number}: run cargo clean and build again"),
    };
    if facts.name.is_null() {
        return Err(unknown("no name, and tile", i64::from(facts.tile_m)));
    }
    // SAFETY: not null, and the header promises a static string.
    let name = unsafe { CStr::from_ptr(facts.name) }.to_string_lossy().into_owned();
    let element = |number: og_type| match number {
        og_type::OG_TYPE_BF16 => Ok(ElementType::Bf16),
        og_type::OG_TYPE_F16 => Ok(ElementType::F16),
        og_type::OG_TYPE_F32 => Ok(ElementType::F32),
        og_type::OG_TYPE_E4M3 => Ok(ElementType::E4m3),
        og_type::OG_TYPE_E5M2 => Ok(ElementType::E5m2),
        og_type(other) => Err(unknown("element type", other.into())),
    };
    let extent = |what: &str, value: i32| match u32::try_from(value) {
        Ok(value) if value > 0 => Ok(value),
        _ => Err(unknown(what, value.into())),
    };
    Ok(Kernel {
        name,
        elements: ElementTypes {
            a: element(facts.a_type)?,
            b: element(facts.b_type)?,
            d: element(facts.d_type)?,
        },
        b_layout: match facts.b_layout {
            og_layout::OG_LAYOUT_NK => BLayout::Nk,
            og_layout::OG_LAYOUT_KN => BLayout::Kn,
            og_layout(other) => return Err(unknown("layout", other.into())),
        },
        tile: TileShape {
            m: extent("tile rows", facts.tile_m)?,
            n: extent("tile columns", facts.tile_n)?,
        },
        tile_k: extent("a step of K of", facts.tile_k)?,
        cluster: ClusterShape {
            m: extent("a cluster height", facts.cluster_m)?,
            n: extent("a cluster width", facts.cluster_n)?,
        },
        pingpong: facts.pingpong != 0,
        transposed: facts.transposed != 0,
        fast_accumulation: facts.fast_accumulation != 0,
        max_splits: extent("a number of splits of", facts.max_splits)?,
    })
}

/// `og_gemm_check`: needs no device.
pub(crate) fn check(shape: &Shape) -> Result<()> {
    // SAFETY: the pointer is to a live struct of the declared layout.
    let status = unsafe { bindings::og_gemm_check(&shape_of(shape), shape.with_c.into()) };
    outcome("og_gemm_check", status)
}

/// `og_gemm_prepare`.
///
/// # Safety
/// The CUDA context of the device is current on this thread.
pub(crate) unsafe fn prepare(shape: &Shape) -> Result<Prepared> {
    let mut plan = og_gemm_plan::default();
    // SAFETY: both pointers are to live structs of the declared layout; the context is current.
    let status = unsafe { bindings::og_gemm_prepare(&shape_of(shape), &mut plan) };
    outcome("og_gemm_prepare", status)?;
    Ok(Prepared(plan))
}

/// `og_gemm_enqueue`.
///
/// # Safety
/// The context that `prepared` was made in is current on this thread, `stream` belongs to it, the
/// addresses are of device memory as long as sizes and pitches say, those of `input` as the header
/// says, `records` (0: none) of [`Prepared::tile_count`] times the splits, `workspace` of
/// [`Prepared::workspace_bytes`] that were zero once; all of it stays valid until the product is done.
pub(crate) unsafe fn enqueue(
    prepared: &Prepared,
    rows: u32,
    addresses: &Addresses,
    input: Option<&Input<'_>>,
    records: u64,
    workspace: u64,
    stream: *mut c_void,
) -> Result<()> {
    let operands = operands_of(addresses);
    let input = input.map(input_of);
    // SAFETY: the structs are live and of the declared layout; the rest is the caller's promise.
    let status = unsafe {
        bindings::og_gemm_enqueue(
            &prepared.0,
            rows.into(),
            &operands,
            input.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
            records as *mut og_tile_record,
            workspace as *mut c_void,
            stream,
        )
    };
    outcome("og_gemm_enqueue", status)
}

/// `og_epoch_advance`.
///
/// # Safety
/// The context of `stream` is current on this thread, and `epoch` is the address of a word there
/// that stays valid until the kernel is done.
pub(crate) unsafe fn epoch_advance(epoch: u64, stream: *mut c_void) -> Result<()> {
    // SAFETY: the caller's promise.
    outcome("og_epoch_advance", unsafe { bindings::og_epoch_advance(epoch as *mut u32, stream) })
}

/// `og_signal_post`.
///
/// # Safety
/// As for [`epoch_advance`]; `count` words from `signals` on, too.
pub(crate) unsafe fn signal_post(
    signals: u64,
    count: u32,
    epoch: u64,
    stream: *mut c_void,
) -> Result<()> {
    // SAFETY: the caller's promise.
    let status = unsafe {
        bindings::og_signal_post(signals as *mut u32, int(count), epoch as *const u32, stream)
    };
    outcome("og_signal_post", status)
}

/// `og_gather_begin`.
///
/// # Safety
/// The context of `stream` is current on this thread; the words are as the header says on every rank,
/// every rank has memory where the pushes say, and all of it stays until the kernel is done.
pub(crate) unsafe fn gather_begin(
    gather: &GatherWords,
    step: &GatherStep<'_>,
    stream: *mut c_void,
) -> Result<()> {
    let gather = std::ptr::from_ref(gather).cast::<og_gather>();
    // SAFETY: live structs of the declared layouts; the rest is the caller's promise.
    outcome("og_gather_begin", unsafe { bindings::og_gather_begin(gather, &step_of(step), stream) })
}

fn step_of(step: &GatherStep<'_>) -> og_gather_step {
    og_gather_step {
        buffer: int(step.buffer),
        layout: step.layout,
        own_slot: int(step.slots.start),
        own_slots: int(step.slots.len() as u32),
        toggled: step.toggled.into(),
        product_follows: step.product_follows.into(),
        product_may_start: step.product_may_start.into(),
        senders: int(step.senders),
        pushes: step.pushes.as_ptr().cast::<og_push>(),
        push_count: count(step.pushes),
        blocks: int(step.blocks),
        counter: step.counter as *mut u32,
    }
}

/// `og_gather_await`.
///
/// # Safety
/// As for [`gather_begin`].
pub(crate) unsafe fn gather_await(
    gather: &GatherWords,
    slots: &Slots,
    stream: *mut c_void,
) -> Result<()> {
    let gather = std::ptr::from_ref(gather).cast::<og_gather>();
    // SAFETY: live structs of the declared layouts; the rest is the caller's promise.
    let status = unsafe { bindings::og_gather_await(gather, &slots_of(slots), stream) };
    outcome("og_gather_await", status)
}

fn slots_of(slots: &Slots) -> og_slots {
    let [first, count, stride, name] =
        [slots.first, slots.count, slots.stride, slots.name].map(int);
    og_slots { first, count, stride, name }
}

/// `og_reduce`.
///
/// # Safety
/// The context of `stream` is current on this thread; sums, outputs and words are as the header says, and stay until the
/// kernel is done.
pub(crate) unsafe fn reduce(sums: &Sums, totals: &Totals, stream: *mut c_void) -> Result<()> {
    // SAFETY: a live struct of the declared layout; the rest is the caller's promise.
    outcome("og_reduce", unsafe { bindings::og_reduce(&reduction_of(sums, totals), stream) })
}

fn reduction_of(sums: &Sums, totals: &Totals) -> og_reduction {
    og_reduction {
        own: sums.own as *const c_void,
        slots: sums.slots as *const c_void,
        slot_pitch: long(sums.slot_pitch),
        pitch: long(sums.pitch),
        rows: totals.rows.into(),
        n: totals.n.into(),
        ranks: int(sums.ranks),
        rank: int(sums.rank),
        sum_type: type_of(totals.reduction.partials.element()),
        d_type: type_of(totals.d_type),
        d: totals.d as *mut c_void,
        c: totals.c as *const c_void,
        bias: totals.bias as *const c_void,
        ldd: totals.ldd.into(),
        alpha: totals.alpha,
        beta: totals.beta,
        activation: activation_of(totals.activation),
        average: totals.reduction.average.into(),
        stop: sums.stop as *const bindings::og_stop,
        epoch: sums.epoch as *const u32,
    }
}

/// `og_exchange_sums`.
///
/// # Safety
/// As for [`gather_begin`] and [`reduce`]; what is sent to a rank fits where it lands.
pub(crate) unsafe fn exchange_sums(
    gather: &GatherWords,
    step: &GatherStep<'_>,
    exchange: &Exchange<'_>,
    stream: *mut c_void,
) -> Result<()> {
    let gather = std::ptr::from_ref(gather).cast::<og_gather>();
    let awaited: Vec<og_slots> = exchange.awaited.iter().map(slots_of).collect();
    let total = exchange.total.map(|(sums, totals)| reduction_of(sums, totals));
    let exchange = bindings::og_exchange {
        own: exchange.own as *const c_void,
        row_bytes: long(exchange.row_bytes),
        runs: exchange.runs.as_ptr().cast::<og_sums_run>(),
        awaited: awaited.as_ptr(),
        run_count: count(exchange.runs),
        awaited_count: count(&awaited),
        total: total.as_ref().map_or(std::ptr::null(), std::ptr::from_ref),
    };
    // SAFETY: live structs of the declared layouts; the rest is the caller's promise.
    let status = unsafe { bindings::og_exchange_sums(gather, &step_of(step), &exchange, stream) };
    outcome("og_exchange_sums", status)
}

/// Numbers of the C side are signed; what does not fit is refused there.
fn long(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

fn count<T>(list: &[T]) -> i32 {
    int(u32::try_from(list.len()).unwrap_or(u32::MAX))
}

/// `og_pad_meet`; no `peer` means all.
///
/// # Safety
/// The context of `stream` is current on this thread; the words are as the header says on every rank, and stay
/// until the kernel is done.
pub(crate) unsafe fn pad_meet(
    pad: &PadWords,
    channel: u32,
    peer: Option<u32>,
    puts: bool,
    waits: bool,
    stream: *mut c_void,
) -> Result<()> {
    let pad = std::ptr::from_ref(pad).cast::<og_pad>();
    let (channel, peer) = (int(channel), peer.map_or(-1, int));
    // SAFETY: a live struct of the declared layout; the rest is the caller's promise.
    let status =
        unsafe { bindings::og_pad_meet(pad, channel, peer, puts.into(), waits.into(), stream) };
    outcome("og_pad_meet", status)
}

/// `og_signals_prepare`.
///
/// # Safety
/// The CUDA context of the device is current on this thread.
pub(crate) unsafe fn signals_prepare() -> Result<()> {
    // SAFETY: the caller's promise.
    outcome("og_signals_prepare", unsafe { bindings::og_signals_prepare() })
}

/// Turns a status into an error with the words that the C side left behind.
fn outcome(call: &'static str, status: og_status) -> Result<()> {
    if status == og_status::OG_STATUS_OK {
        return Ok(());
    }
    // SAFETY: both functions return C strings that are never null; the message stays valid until
    // this thread's next call, and is copied before.
    let (name, message) = unsafe {
        let name = CStr::from_ptr(bindings::og_status_string(status));
        let message = CStr::from_ptr(bindings::og_last_error_message());
        (name.to_string_lossy(), message.to_string_lossy())
    };
    Err(match status {
        og_status::OG_STATUS_OUT_OF_RANGE
        | og_status::OG_STATUS_BAD_PITCH
        | og_status::OG_STATUS_MISALIGNED => Error::Unsupported {
            what: format!("this product ({name})"),
            why: message.into_owned(),
            remedy: "change the named value",
        },
        og_status::OG_STATUS_ARCHITECTURE => {
            Error::NoDevice { reason: format!("{message}; use a Hopper GPU (H100, H200, GH200)") }
        }
        // Null pointers and empty plans cannot come from this crate, nor may CUTLASS throw: all
        // faults of ours if they occur, and told apart by the name.
        _ => Error::Cuda { call, detail: format!("{name}: {message}") },
    })
}

#[cfg(test)]
#[path = "ffi_tests.rs"]
mod tests;
