//! Made from `csrc/overlap_gemm.h` by bindgen; do not edit. After a change there,
//! `cargo check --features bindings` prints the command that renews this file.

pub const OG_ABI_VERSION: u32 = 23;
pub const OG_ALIGNMENT_BYTES: u32 = 16;
pub const OG_GATE_COLUMNS: u32 = 8;
pub const OG_MAX_EXTENT: u32 = 2147483392;
pub const OG_MAX_PITCH_BYTES: u64 = 1099511627776;
pub const OG_MAX_CHUNKS: u32 = 256;
pub const OG_MAX_PUSHED: u32 = 32;
pub const OG_MAX_SHARE_BITS: u32 = 10;
pub const OG_MAX_SPAN_BITS: u32 = 3;
pub const OG_SPAN_UNIT_BYTES: u32 = 512;
pub const OG_MAX_RANKS: u32 = 1024;
pub const OG_MAX_SPLITS: u32 = 16;
pub const OG_ABORT_ASKED: u32 = 1;
pub const OG_ABORT_LEFT: u32 = 2;
pub const OG_TOGGLE_SET: u32 = 1;
pub const OG_PAD_HEADER: u32 = 32;
impl og_status {
    pub const OG_STATUS_OK: og_status = og_status(0);
    pub const OG_STATUS_NULL_POINTER: og_status = og_status(1);
    pub const OG_STATUS_OUT_OF_RANGE: og_status = og_status(2);
    pub const OG_STATUS_BAD_PITCH: og_status = og_status(3);
    pub const OG_STATUS_MISALIGNED: og_status = og_status(4);
    pub const OG_STATUS_ARCHITECTURE: og_status = og_status(5);
    pub const OG_STATUS_BAD_PLAN: og_status = og_status(6);
    pub const OG_STATUS_CUDA: og_status = og_status(7);
    pub const OG_STATUS_INTERNAL: og_status = og_status(8);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct og_status(pub ::core::ffi::c_uint);
impl og_type {
    pub const OG_TYPE_BF16: og_type = og_type(0);
    pub const OG_TYPE_F16: og_type = og_type(1);
    pub const OG_TYPE_F32: og_type = og_type(2);
    pub const OG_TYPE_E4M3: og_type = og_type(3);
    pub const OG_TYPE_E5M2: og_type = og_type(4);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct og_type(pub ::core::ffi::c_uint);
impl og_layout {
    pub const OG_LAYOUT_NK: og_layout = og_layout(0);
    pub const OG_LAYOUT_KN: og_layout = og_layout(1);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct og_layout(pub ::core::ffi::c_uint);
impl og_activation {
    pub const OG_ACTIVATION_NONE: og_activation = og_activation(0);
    pub const OG_ACTIVATION_RELU: og_activation = og_activation(1);
    pub const OG_ACTIVATION_GELU_TANH: og_activation = og_activation(2);
    pub const OG_ACTIVATION_SILU: og_activation = og_activation(3);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct og_activation(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_kernel_facts {
    pub name: *const ::core::ffi::c_char,
    pub a_type: og_type,
    pub b_type: og_type,
    pub d_type: og_type,
    pub b_layout: og_layout,
    pub tile_m: i32,
    pub tile_n: i32,
    pub tile_k: i32,
    pub cluster_m: i32,
    pub cluster_n: i32,
    pub pingpong: i32,
    pub transposed: i32,
    pub fast_accumulation: i32,
    pub max_splits: i32,
    pub adds_others: i32,
    pub gates: i32,
}
impl Default for og_kernel_facts {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_gemm_shape {
    pub m: i64,
    pub n: i64,
    pub k: i64,
    pub lda: i64,
    pub ldb: i64,
    pub ldc: i64,
    pub ldd: i64,
    pub kernel: i32,
    pub sm_count: i32,
    pub swizzle: i32,
    pub splits: i32,
    pub gated: i32,
    pub reserved: i32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_stop {
    pub given_up: u64,
    pub next_look_ns: u64,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_other_sums {
    pub slots: *const ::core::ffi::c_void,
    pub slot_pitch: i64,
    pub pitch: i64,
    pub count: i32,
    pub reserved: i32,
    pub stop: *const og_stop,
    pub epoch: *const u32,
}
impl Default for og_other_sums {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_gemm_operands {
    pub a: *const ::core::ffi::c_void,
    pub b: *const ::core::ffi::c_void,
    pub c: *const ::core::ffi::c_void,
    pub d: *mut ::core::ffi::c_void,
    pub bias: *const ::core::ffi::c_void,
    pub scale_a: *const f32,
    pub scale_b: *const f32,
    pub scale_d: *const f32,
    pub amax_d: *mut f32,
    pub scale_a_per_row: i32,
    pub scale_b_per_column: i32,
    pub alpha: f32,
    pub beta: f32,
    pub activation: og_activation,
    pub b_is_there: i32,
    pub others: *const og_other_sums,
}
impl Default for og_gemm_operands {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_chunk {
    pub first_row: i32,
    pub signal: i32,
}
impl og_failure_kind {
    pub const OG_FAILURE_NONE: og_failure_kind = og_failure_kind(0);
    pub const OG_FAILURE_TIMEOUT: og_failure_kind = og_failure_kind(1);
    pub const OG_FAILURE_ABORTED: og_failure_kind = og_failure_kind(2);
    pub const OG_FAILURE_ABSENT: og_failure_kind = og_failure_kind(3);
    pub const OG_FAILURE_LAYOUT: og_failure_kind = og_failure_kind(4);
    pub const OG_FAILURE_LEFT: og_failure_kind = og_failure_kind(5);
    pub const OG_FAILURE_SLICE: og_failure_kind = og_failure_kind(6);
}
#[repr(transparent)]
#[derive(Debug, Copy, Clone, Hash, PartialEq, Eq)]
pub struct og_failure_kind(pub ::core::ffi::c_uint);
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_failure {
    pub chunk: u32,
    pub signal: u32,
    pub epoch: u32,
    pub tile_m: u32,
    pub tile_n: u32,
    pub gave_up: u32,
    pub reserved: u32,
    pub kind: u32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_tile_record {
    pub wait_begin: u64,
    pub ready: u64,
    pub done: u64,
    pub index: u64,
    pub sm: u32,
    pub tile_m: u32,
    pub tile_n: u32,
    pub chunk: u32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_gemm_input {
    pub chunks: *const og_chunk,
    pub chunk_count: i32,
    pub pivot_row: i32,
    pub early_chunks: i32,
    pub signals: *const u32,
    pub epoch: *const u32,
    pub begun: *const u64,
    pub stop: *mut og_stop,
    pub abort: *const u32,
    pub failure: *mut og_failure,
    pub timeout_ns: u64,
    pub slots_per_rank: i32,
    pub share_bits: i32,
    pub span_bits: i32,
    pub span_bytes: i32,
}
impl Default for og_gemm_input {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_gather {
    pub words: *const *mut u32,
    pub own: *mut u32,
    pub ranks: i32,
    pub rank: i32,
    pub slots: i32,
    pub share_bits: i32,
    pub stop_at: i32,
    pub begun_at: i32,
    pub epoch_at: i32,
    pub over_at: i32,
    pub last_buffer_at: i32,
    pub last_use_at: i32,
    pub sent_at: i32,
    pub signals_at: i32,
    pub toggles_at: i32,
    pub consumed_at: i32,
    pub layouts_at: i32,
    pub reserved: i32,
    pub abort: *const u32,
    pub failure: *mut og_failure,
    pub timeout_ns: u64,
}
impl Default for og_gather {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_push {
    pub offset: [u64; 2usize],
    pub bytes: [u64; 2usize],
    pub slot: i32,
    pub rows: i32,
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_slots {
    pub first: i32,
    pub count: i32,
    pub stride: i32,
    pub name: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_gather_step {
    pub buffer: i32,
    pub layout: u32,
    pub own_slot: i32,
    pub own_slots: i32,
    pub toggled: i32,
    pub product_follows: i32,
    pub product_may_start: i32,
    pub awaits_beginnings: i32,
    pub senders: i32,
    pub pushes: *const og_push,
    pub push_count: i32,
    pub blocks: i32,
    pub counter: *mut u32,
    pub row_bytes: i64,
    pub row_pitch: i64,
    pub span_bits: i32,
    pub span_bytes: i32,
}
impl Default for og_gather_step {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_pad {
    pub words: *const *mut u32,
    pub own: *mut u32,
    pub ranks: i32,
    pub rank: i32,
    pub channels: i32,
    pub reserved: i32,
    pub stop: *const og_stop,
    pub abort: *const u32,
    pub failure: *mut og_failure,
    pub timeout_ns: u64,
}
impl Default for og_pad {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_reduction {
    pub words: *const *mut u32,
    pub sums_at: u64,
    pub own: *const ::core::ffi::c_void,
    pub slots: *const ::core::ffi::c_void,
    pub slot_pitch: i64,
    pub pitch: i64,
    pub rows: i64,
    pub n: i64,
    pub ranks: i32,
    pub rank: i32,
    pub sum_type: og_type,
    pub d_type: og_type,
    pub d: *mut ::core::ffi::c_void,
    pub c: *const ::core::ffi::c_void,
    pub bias: *const ::core::ffi::c_void,
    pub ldd: i64,
    pub alpha: f32,
    pub beta: f32,
    pub activation: og_activation,
    pub average: i32,
    pub stop: *const og_stop,
    pub epoch: *const u32,
}
impl Default for og_reduction {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_sums_run {
    pub to: u64,
    pub first_row: i64,
    pub rows: i64,
    pub peer: i32,
    pub slot: i32,
    pub slots: i32,
    pub reserved: i32,
}
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_exchange {
    pub sums_at: u64,
    pub row_bytes: i64,
    pub brought: *const ::core::ffi::c_void,
    pub brought_rows: i64,
    pub runs: *const og_sums_run,
    pub awaited: *const og_slots,
    pub sums_signalled: i32,
    pub totals_sent: i32,
    pub totals_stored: i32,
    pub sums_awaited: i32,
    pub totals_awaited: i32,
    pub follows_product: i32,
    pub has_begun: i32,
    pub reserved: i32,
    pub total: *const og_reduction,
}
impl Default for og_exchange {
    fn default() -> Self {
        let mut s = ::core::mem::MaybeUninit::<Self>::uninit();
        unsafe {
            ::core::ptr::write_bytes(s.as_mut_ptr(), 0, 1);
            s.assume_init()
        }
    }
}
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_gemm_plan {
    pub workspace_bytes: u64,
    pub tile_count: i64,
    pub sm_count: i32,
    pub cluster_count: i32,
    pub shape: og_gemm_shape,
}
unsafe extern "C" {
    pub fn og_abi_version() -> i32;
}
unsafe extern "C" {
    pub fn og_last_error_message() -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    pub fn og_last_cuda_error() -> i32;
}
unsafe extern "C" {
    pub fn og_kernel_count() -> i32;
}
unsafe extern "C" {
    pub fn og_kernel_info(index: i32, facts: *mut og_kernel_facts) -> og_status;
}
unsafe extern "C" {
    pub fn og_gemm_check(shape: *const og_gemm_shape, with_c: i32) -> og_status;
}
unsafe extern "C" {
    pub fn og_gemm_prepare(shape: *const og_gemm_shape, plan: *mut og_gemm_plan) -> og_status;
}
unsafe extern "C" {
    pub fn og_gemm_enqueue(
        plan: *const og_gemm_plan,
        rows: i64,
        operands: *const og_gemm_operands,
        input: *const og_gemm_input,
        records: *mut og_tile_record,
        workspace: *mut ::core::ffi::c_void,
        stream: *mut ::core::ffi::c_void,
    ) -> og_status;
}
unsafe extern "C" {
    pub fn og_epoch_advance(epoch: *mut u32, stream: *mut ::core::ffi::c_void) -> og_status;
}
unsafe extern "C" {
    pub fn og_signal_post(
        signals: *mut u32,
        count: i32,
        epoch: *const u32,
        stream: *mut ::core::ffi::c_void,
    ) -> og_status;
}
unsafe extern "C" {
    pub fn og_gather_begin(
        gather: *const og_gather,
        step: *const og_gather_step,
        stream: *mut ::core::ffi::c_void,
    ) -> og_status;
}
unsafe extern "C" {
    pub fn og_gather_await(
        gather: *const og_gather,
        slots: *const og_slots,
        stream: *mut ::core::ffi::c_void,
    ) -> og_status;
}
unsafe extern "C" {
    pub fn og_reduce(reduction: *const og_reduction, stream: *mut ::core::ffi::c_void)
    -> og_status;
}
unsafe extern "C" {
    pub fn og_exchange_sums(
        gather: *const og_gather,
        step: *const og_gather_step,
        exchange: *const og_exchange,
        stream: *mut ::core::ffi::c_void,
    ) -> og_status;
}
unsafe extern "C" {
    pub fn og_pad_meet(
        pad: *const og_pad,
        channel: i32,
        peer: i32,
        puts: i32,
        waits: i32,
        stream: *mut ::core::ffi::c_void,
    ) -> og_status;
}
unsafe extern "C" {
    pub fn og_signals_prepare() -> og_status;
}
