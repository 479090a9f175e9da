//! Made from `csrc/overlap_gemm.h` by bindgen; do not edit. After a change there,
//! `cargo check --features bindings` prints the command that renews this file.

pub const OG_ABI_VERSION: u32 = 11;
pub const OG_ALIGNMENT_BYTES: u32 = 16;
pub const OG_MAX_EXTENT: u32 = 2147483392;
pub const OG_MAX_PITCH_BYTES: u64 = 1099511627776;
pub const OG_MAX_CHUNKS: u32 = 256;
pub const OG_MAX_PUSHED: u32 = 32;
pub const OG_MAX_SHARE_BITS: u32 = 7;
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
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_kernel_facts"][::core::mem::size_of::<og_kernel_facts>() - 64usize];
    ["Alignment of og_kernel_facts"][::core::mem::align_of::<og_kernel_facts>() - 8usize];
    ["Offset of field: og_kernel_facts::name"]
        [::core::mem::offset_of!(og_kernel_facts, name) - 0usize];
    ["Offset of field: og_kernel_facts::a_type"]
        [::core::mem::offset_of!(og_kernel_facts, a_type) - 8usize];
    ["Offset of field: og_kernel_facts::b_type"]
        [::core::mem::offset_of!(og_kernel_facts, b_type) - 12usize];
    ["Offset of field: og_kernel_facts::d_type"]
        [::core::mem::offset_of!(og_kernel_facts, d_type) - 16usize];
    ["Offset of field: og_kernel_facts::b_layout"]
        [::core::mem::offset_of!(og_kernel_facts, b_layout) - 20usize];
    ["Offset of field: og_kernel_facts::tile_m"]
        [::core::mem::offset_of!(og_kernel_facts, tile_m) - 24usize];
    ["Offset of field: og_kernel_facts::tile_n"]
        [::core::mem::offset_of!(og_kernel_facts, tile_n) - 28usize];
    ["Offset of field: og_kernel_facts::tile_k"]
        [::core::mem::offset_of!(og_kernel_facts, tile_k) - 32usize];
    ["Offset of field: og_kernel_facts::cluster_m"]
        [::core::mem::offset_of!(og_kernel_facts, cluster_m) - 36usize];
    ["Offset of field: og_kernel_facts::cluster_n"]
        [::core::mem::offset_of!(og_kernel_facts, cluster_n) - 40usize];
    ["Offset of field: og_kernel_facts::pingpong"]
        [::core::mem::offset_of!(og_kernel_facts, pingpong) - 44usize];
    ["Offset of field: og_kernel_facts::transposed"]
        [::core::mem::offset_of!(og_kernel_facts, transposed) - 48usize];
    ["Offset of field: og_kernel_facts::fast_accumulation"]
        [::core::mem::offset_of!(og_kernel_facts, fast_accumulation) - 52usize];
    ["Offset of field: og_kernel_facts::max_splits"]
        [::core::mem::offset_of!(og_kernel_facts, max_splits) - 56usize];
};
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
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_gemm_shape"][::core::mem::size_of::<og_gemm_shape>() - 72usize];
    ["Alignment of og_gemm_shape"][::core::mem::align_of::<og_gemm_shape>() - 8usize];
    ["Offset of field: og_gemm_shape::m"][::core::mem::offset_of!(og_gemm_shape, m) - 0usize];
    ["Offset of field: og_gemm_shape::n"][::core::mem::offset_of!(og_gemm_shape, n) - 8usize];
    ["Offset of field: og_gemm_shape::k"][::core::mem::offset_of!(og_gemm_shape, k) - 16usize];
    ["Offset of field: og_gemm_shape::lda"][::core::mem::offset_of!(og_gemm_shape, lda) - 24usize];
    ["Offset of field: og_gemm_shape::ldb"][::core::mem::offset_of!(og_gemm_shape, ldb) - 32usize];
    ["Offset of field: og_gemm_shape::ldc"][::core::mem::offset_of!(og_gemm_shape, ldc) - 40usize];
    ["Offset of field: og_gemm_shape::ldd"][::core::mem::offset_of!(og_gemm_shape, ldd) - 48usize];
    ["Offset of field: og_gemm_shape::kernel"]
        [::core::mem::offset_of!(og_gemm_shape, kernel) - 56usize];
    ["Offset of field: og_gemm_shape::sm_count"]
        [::core::mem::offset_of!(og_gemm_shape, sm_count) - 60usize];
    ["Offset of field: og_gemm_shape::swizzle"]
        [::core::mem::offset_of!(og_gemm_shape, swizzle) - 64usize];
    ["Offset of field: og_gemm_shape::splits"]
        [::core::mem::offset_of!(og_gemm_shape, splits) - 68usize];
};
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
    pub scale_a_per_row: i32,
    pub scale_b_per_column: i32,
    pub alpha: f32,
    pub beta: f32,
    pub activation: og_activation,
    pub b_is_there: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_gemm_operands"][::core::mem::size_of::<og_gemm_operands>() - 80usize];
    ["Alignment of og_gemm_operands"][::core::mem::align_of::<og_gemm_operands>() - 8usize];
    ["Offset of field: og_gemm_operands::a"][::core::mem::offset_of!(og_gemm_operands, a) - 0usize];
    ["Offset of field: og_gemm_operands::b"][::core::mem::offset_of!(og_gemm_operands, b) - 8usize];
    ["Offset of field: og_gemm_operands::c"]
        [::core::mem::offset_of!(og_gemm_operands, c) - 16usize];
    ["Offset of field: og_gemm_operands::d"]
        [::core::mem::offset_of!(og_gemm_operands, d) - 24usize];
    ["Offset of field: og_gemm_operands::bias"]
        [::core::mem::offset_of!(og_gemm_operands, bias) - 32usize];
    ["Offset of field: og_gemm_operands::scale_a"]
        [::core::mem::offset_of!(og_gemm_operands, scale_a) - 40usize];
    ["Offset of field: og_gemm_operands::scale_b"]
        [::core::mem::offset_of!(og_gemm_operands, scale_b) - 48usize];
    ["Offset of field: og_gemm_operands::scale_a_per_row"]
        [::core::mem::offset_of!(og_gemm_operands, scale_a_per_row) - 56usize];
    ["Offset of field: og_gemm_operands::scale_b_per_column"]
        [::core::mem::offset_of!(og_gemm_operands, scale_b_per_column) - 60usize];
    ["Offset of field: og_gemm_operands::alpha"]
        [::core::mem::offset_of!(og_gemm_operands, alpha) - 64usize];
    ["Offset of field: og_gemm_operands::beta"]
        [::core::mem::offset_of!(og_gemm_operands, beta) - 68usize];
    ["Offset of field: og_gemm_operands::activation"]
        [::core::mem::offset_of!(og_gemm_operands, activation) - 72usize];
    ["Offset of field: og_gemm_operands::b_is_there"]
        [::core::mem::offset_of!(og_gemm_operands, b_is_there) - 76usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_chunk"][::core::mem::size_of::<og_chunk>() - 8usize];
    ["Alignment of og_chunk"][::core::mem::align_of::<og_chunk>() - 4usize];
    ["Offset of field: og_chunk::first_row"][::core::mem::offset_of!(og_chunk, first_row) - 0usize];
    ["Offset of field: og_chunk::signal"][::core::mem::offset_of!(og_chunk, signal) - 4usize];
};
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
    pub reserved: [u32; 2usize],
    pub kind: u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_failure"][::core::mem::size_of::<og_failure>() - 32usize];
    ["Alignment of og_failure"][::core::mem::align_of::<og_failure>() - 4usize];
    ["Offset of field: og_failure::chunk"][::core::mem::offset_of!(og_failure, chunk) - 0usize];
    ["Offset of field: og_failure::signal"][::core::mem::offset_of!(og_failure, signal) - 4usize];
    ["Offset of field: og_failure::epoch"][::core::mem::offset_of!(og_failure, epoch) - 8usize];
    ["Offset of field: og_failure::tile_m"][::core::mem::offset_of!(og_failure, tile_m) - 12usize];
    ["Offset of field: og_failure::tile_n"][::core::mem::offset_of!(og_failure, tile_n) - 16usize];
    ["Offset of field: og_failure::reserved"]
        [::core::mem::offset_of!(og_failure, reserved) - 20usize];
    ["Offset of field: og_failure::kind"][::core::mem::offset_of!(og_failure, kind) - 28usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_tile_record"][::core::mem::size_of::<og_tile_record>() - 48usize];
    ["Alignment of og_tile_record"][::core::mem::align_of::<og_tile_record>() - 8usize];
    ["Offset of field: og_tile_record::wait_begin"]
        [::core::mem::offset_of!(og_tile_record, wait_begin) - 0usize];
    ["Offset of field: og_tile_record::ready"]
        [::core::mem::offset_of!(og_tile_record, ready) - 8usize];
    ["Offset of field: og_tile_record::done"]
        [::core::mem::offset_of!(og_tile_record, done) - 16usize];
    ["Offset of field: og_tile_record::index"]
        [::core::mem::offset_of!(og_tile_record, index) - 24usize];
    ["Offset of field: og_tile_record::sm"][::core::mem::offset_of!(og_tile_record, sm) - 32usize];
    ["Offset of field: og_tile_record::tile_m"]
        [::core::mem::offset_of!(og_tile_record, tile_m) - 36usize];
    ["Offset of field: og_tile_record::tile_n"]
        [::core::mem::offset_of!(og_tile_record, tile_n) - 40usize];
    ["Offset of field: og_tile_record::chunk"]
        [::core::mem::offset_of!(og_tile_record, chunk) - 44usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_stop {
    pub given_up: u64,
    pub next_look_ns: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_stop"][::core::mem::size_of::<og_stop>() - 16usize];
    ["Alignment of og_stop"][::core::mem::align_of::<og_stop>() - 8usize];
    ["Offset of field: og_stop::given_up"][::core::mem::offset_of!(og_stop, given_up) - 0usize];
    ["Offset of field: og_stop::next_look_ns"]
        [::core::mem::offset_of!(og_stop, next_look_ns) - 8usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_gemm_input {
    pub chunks: *const og_chunk,
    pub chunk_count: i32,
    pub pivot_row: i32,
    pub signals: *const u32,
    pub epoch: *const u32,
    pub begun: *const u64,
    pub stop: *mut og_stop,
    pub abort: *const u32,
    pub failure: *mut og_failure,
    pub timeout_ns: u64,
    pub slots_per_rank: i32,
    pub share_bits: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_gemm_input"][::core::mem::size_of::<og_gemm_input>() - 80usize];
    ["Alignment of og_gemm_input"][::core::mem::align_of::<og_gemm_input>() - 8usize];
    ["Offset of field: og_gemm_input::chunks"]
        [::core::mem::offset_of!(og_gemm_input, chunks) - 0usize];
    ["Offset of field: og_gemm_input::chunk_count"]
        [::core::mem::offset_of!(og_gemm_input, chunk_count) - 8usize];
    ["Offset of field: og_gemm_input::pivot_row"]
        [::core::mem::offset_of!(og_gemm_input, pivot_row) - 12usize];
    ["Offset of field: og_gemm_input::signals"]
        [::core::mem::offset_of!(og_gemm_input, signals) - 16usize];
    ["Offset of field: og_gemm_input::epoch"]
        [::core::mem::offset_of!(og_gemm_input, epoch) - 24usize];
    ["Offset of field: og_gemm_input::begun"]
        [::core::mem::offset_of!(og_gemm_input, begun) - 32usize];
    ["Offset of field: og_gemm_input::stop"]
        [::core::mem::offset_of!(og_gemm_input, stop) - 40usize];
    ["Offset of field: og_gemm_input::abort"]
        [::core::mem::offset_of!(og_gemm_input, abort) - 48usize];
    ["Offset of field: og_gemm_input::failure"]
        [::core::mem::offset_of!(og_gemm_input, failure) - 56usize];
    ["Offset of field: og_gemm_input::timeout_ns"]
        [::core::mem::offset_of!(og_gemm_input, timeout_ns) - 64usize];
    ["Offset of field: og_gemm_input::slots_per_rank"]
        [::core::mem::offset_of!(og_gemm_input, slots_per_rank) - 72usize];
    ["Offset of field: og_gemm_input::share_bits"]
        [::core::mem::offset_of!(og_gemm_input, share_bits) - 76usize];
};
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
    pub torn_at: i32,
    pub layouts_at: i32,
    pub abort: *const u32,
    pub failure: *mut og_failure,
    pub timeout_ns: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_gather"][::core::mem::size_of::<og_gather>() - 104usize];
    ["Alignment of og_gather"][::core::mem::align_of::<og_gather>() - 8usize];
    ["Offset of field: og_gather::words"][::core::mem::offset_of!(og_gather, words) - 0usize];
    ["Offset of field: og_gather::own"][::core::mem::offset_of!(og_gather, own) - 8usize];
    ["Offset of field: og_gather::ranks"][::core::mem::offset_of!(og_gather, ranks) - 16usize];
    ["Offset of field: og_gather::rank"][::core::mem::offset_of!(og_gather, rank) - 20usize];
    ["Offset of field: og_gather::slots"][::core::mem::offset_of!(og_gather, slots) - 24usize];
    ["Offset of field: og_gather::share_bits"]
        [::core::mem::offset_of!(og_gather, share_bits) - 28usize];
    ["Offset of field: og_gather::stop_at"][::core::mem::offset_of!(og_gather, stop_at) - 32usize];
    ["Offset of field: og_gather::begun_at"]
        [::core::mem::offset_of!(og_gather, begun_at) - 36usize];
    ["Offset of field: og_gather::epoch_at"]
        [::core::mem::offset_of!(og_gather, epoch_at) - 40usize];
    ["Offset of field: og_gather::over_at"][::core::mem::offset_of!(og_gather, over_at) - 44usize];
    ["Offset of field: og_gather::last_buffer_at"]
        [::core::mem::offset_of!(og_gather, last_buffer_at) - 48usize];
    ["Offset of field: og_gather::last_use_at"]
        [::core::mem::offset_of!(og_gather, last_use_at) - 52usize];
    ["Offset of field: og_gather::sent_at"][::core::mem::offset_of!(og_gather, sent_at) - 56usize];
    ["Offset of field: og_gather::signals_at"]
        [::core::mem::offset_of!(og_gather, signals_at) - 60usize];
    ["Offset of field: og_gather::toggles_at"]
        [::core::mem::offset_of!(og_gather, toggles_at) - 64usize];
    ["Offset of field: og_gather::consumed_at"]
        [::core::mem::offset_of!(og_gather, consumed_at) - 68usize];
    ["Offset of field: og_gather::torn_at"][::core::mem::offset_of!(og_gather, torn_at) - 72usize];
    ["Offset of field: og_gather::layouts_at"]
        [::core::mem::offset_of!(og_gather, layouts_at) - 76usize];
    ["Offset of field: og_gather::abort"][::core::mem::offset_of!(og_gather, abort) - 80usize];
    ["Offset of field: og_gather::failure"][::core::mem::offset_of!(og_gather, failure) - 88usize];
    ["Offset of field: og_gather::timeout_ns"]
        [::core::mem::offset_of!(og_gather, timeout_ns) - 96usize];
};
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
    pub reserved: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_push"][::core::mem::size_of::<og_push>() - 40usize];
    ["Alignment of og_push"][::core::mem::align_of::<og_push>() - 8usize];
    ["Offset of field: og_push::offset"][::core::mem::offset_of!(og_push, offset) - 0usize];
    ["Offset of field: og_push::bytes"][::core::mem::offset_of!(og_push, bytes) - 16usize];
    ["Offset of field: og_push::slot"][::core::mem::offset_of!(og_push, slot) - 32usize];
    ["Offset of field: og_push::reserved"][::core::mem::offset_of!(og_push, reserved) - 36usize];
};
#[repr(C)]
#[derive(Debug, Default, Copy, Clone)]
pub struct og_slots {
    pub first: i32,
    pub count: i32,
    pub stride: i32,
    pub name: i32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_slots"][::core::mem::size_of::<og_slots>() - 16usize];
    ["Alignment of og_slots"][::core::mem::align_of::<og_slots>() - 4usize];
    ["Offset of field: og_slots::first"][::core::mem::offset_of!(og_slots, first) - 0usize];
    ["Offset of field: og_slots::count"][::core::mem::offset_of!(og_slots, count) - 4usize];
    ["Offset of field: og_slots::stride"][::core::mem::offset_of!(og_slots, stride) - 8usize];
    ["Offset of field: og_slots::name"][::core::mem::offset_of!(og_slots, name) - 12usize];
};
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
    pub senders: i32,
    pub pushes: *const og_push,
    pub push_count: i32,
    pub blocks: i32,
    pub counter: *mut u32,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_gather_step"][::core::mem::size_of::<og_gather_step>() - 56usize];
    ["Alignment of og_gather_step"][::core::mem::align_of::<og_gather_step>() - 8usize];
    ["Offset of field: og_gather_step::buffer"]
        [::core::mem::offset_of!(og_gather_step, buffer) - 0usize];
    ["Offset of field: og_gather_step::layout"]
        [::core::mem::offset_of!(og_gather_step, layout) - 4usize];
    ["Offset of field: og_gather_step::own_slot"]
        [::core::mem::offset_of!(og_gather_step, own_slot) - 8usize];
    ["Offset of field: og_gather_step::own_slots"]
        [::core::mem::offset_of!(og_gather_step, own_slots) - 12usize];
    ["Offset of field: og_gather_step::toggled"]
        [::core::mem::offset_of!(og_gather_step, toggled) - 16usize];
    ["Offset of field: og_gather_step::product_follows"]
        [::core::mem::offset_of!(og_gather_step, product_follows) - 20usize];
    ["Offset of field: og_gather_step::product_may_start"]
        [::core::mem::offset_of!(og_gather_step, product_may_start) - 24usize];
    ["Offset of field: og_gather_step::senders"]
        [::core::mem::offset_of!(og_gather_step, senders) - 28usize];
    ["Offset of field: og_gather_step::pushes"]
        [::core::mem::offset_of!(og_gather_step, pushes) - 32usize];
    ["Offset of field: og_gather_step::push_count"]
        [::core::mem::offset_of!(og_gather_step, push_count) - 40usize];
    ["Offset of field: og_gather_step::blocks"]
        [::core::mem::offset_of!(og_gather_step, blocks) - 44usize];
    ["Offset of field: og_gather_step::counter"]
        [::core::mem::offset_of!(og_gather_step, counter) - 48usize];
};
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
    pub abort: *const u32,
    pub failure: *mut og_failure,
    pub timeout_ns: u64,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_pad"][::core::mem::size_of::<og_pad>() - 56usize];
    ["Alignment of og_pad"][::core::mem::align_of::<og_pad>() - 8usize];
    ["Offset of field: og_pad::words"][::core::mem::offset_of!(og_pad, words) - 0usize];
    ["Offset of field: og_pad::own"][::core::mem::offset_of!(og_pad, own) - 8usize];
    ["Offset of field: og_pad::ranks"][::core::mem::offset_of!(og_pad, ranks) - 16usize];
    ["Offset of field: og_pad::rank"][::core::mem::offset_of!(og_pad, rank) - 20usize];
    ["Offset of field: og_pad::channels"][::core::mem::offset_of!(og_pad, channels) - 24usize];
    ["Offset of field: og_pad::reserved"][::core::mem::offset_of!(og_pad, reserved) - 28usize];
    ["Offset of field: og_pad::abort"][::core::mem::offset_of!(og_pad, abort) - 32usize];
    ["Offset of field: og_pad::failure"][::core::mem::offset_of!(og_pad, failure) - 40usize];
    ["Offset of field: og_pad::timeout_ns"][::core::mem::offset_of!(og_pad, timeout_ns) - 48usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_reduction"][::core::mem::size_of::<og_reduction>() - 128usize];
    ["Alignment of og_reduction"][::core::mem::align_of::<og_reduction>() - 8usize];
    ["Offset of field: og_reduction::own"][::core::mem::offset_of!(og_reduction, own) - 0usize];
    ["Offset of field: og_reduction::slots"][::core::mem::offset_of!(og_reduction, slots) - 8usize];
    ["Offset of field: og_reduction::slot_pitch"]
        [::core::mem::offset_of!(og_reduction, slot_pitch) - 16usize];
    ["Offset of field: og_reduction::pitch"]
        [::core::mem::offset_of!(og_reduction, pitch) - 24usize];
    ["Offset of field: og_reduction::rows"][::core::mem::offset_of!(og_reduction, rows) - 32usize];
    ["Offset of field: og_reduction::n"][::core::mem::offset_of!(og_reduction, n) - 40usize];
    ["Offset of field: og_reduction::ranks"]
        [::core::mem::offset_of!(og_reduction, ranks) - 48usize];
    ["Offset of field: og_reduction::rank"][::core::mem::offset_of!(og_reduction, rank) - 52usize];
    ["Offset of field: og_reduction::sum_type"]
        [::core::mem::offset_of!(og_reduction, sum_type) - 56usize];
    ["Offset of field: og_reduction::d_type"]
        [::core::mem::offset_of!(og_reduction, d_type) - 60usize];
    ["Offset of field: og_reduction::d"][::core::mem::offset_of!(og_reduction, d) - 64usize];
    ["Offset of field: og_reduction::c"][::core::mem::offset_of!(og_reduction, c) - 72usize];
    ["Offset of field: og_reduction::bias"][::core::mem::offset_of!(og_reduction, bias) - 80usize];
    ["Offset of field: og_reduction::ldd"][::core::mem::offset_of!(og_reduction, ldd) - 88usize];
    ["Offset of field: og_reduction::alpha"]
        [::core::mem::offset_of!(og_reduction, alpha) - 96usize];
    ["Offset of field: og_reduction::beta"][::core::mem::offset_of!(og_reduction, beta) - 100usize];
    ["Offset of field: og_reduction::activation"]
        [::core::mem::offset_of!(og_reduction, activation) - 104usize];
    ["Offset of field: og_reduction::average"]
        [::core::mem::offset_of!(og_reduction, average) - 108usize];
    ["Offset of field: og_reduction::stop"][::core::mem::offset_of!(og_reduction, stop) - 112usize];
    ["Offset of field: og_reduction::epoch"]
        [::core::mem::offset_of!(og_reduction, epoch) - 120usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_sums_run"][::core::mem::size_of::<og_sums_run>() - 40usize];
    ["Alignment of og_sums_run"][::core::mem::align_of::<og_sums_run>() - 8usize];
    ["Offset of field: og_sums_run::to"][::core::mem::offset_of!(og_sums_run, to) - 0usize];
    ["Offset of field: og_sums_run::first_row"]
        [::core::mem::offset_of!(og_sums_run, first_row) - 8usize];
    ["Offset of field: og_sums_run::rows"][::core::mem::offset_of!(og_sums_run, rows) - 16usize];
    ["Offset of field: og_sums_run::peer"][::core::mem::offset_of!(og_sums_run, peer) - 24usize];
    ["Offset of field: og_sums_run::slot"][::core::mem::offset_of!(og_sums_run, slot) - 28usize];
    ["Offset of field: og_sums_run::slots"][::core::mem::offset_of!(og_sums_run, slots) - 32usize];
    ["Offset of field: og_sums_run::reserved"]
        [::core::mem::offset_of!(og_sums_run, reserved) - 36usize];
};
#[repr(C)]
#[derive(Debug, Copy, Clone)]
pub struct og_exchange {
    pub own: *const ::core::ffi::c_void,
    pub row_bytes: i64,
    pub runs: *const og_sums_run,
    pub awaited: *const og_slots,
    pub run_count: i32,
    pub awaited_count: i32,
    pub total: *const og_reduction,
}
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_exchange"][::core::mem::size_of::<og_exchange>() - 48usize];
    ["Alignment of og_exchange"][::core::mem::align_of::<og_exchange>() - 8usize];
    ["Offset of field: og_exchange::own"][::core::mem::offset_of!(og_exchange, own) - 0usize];
    ["Offset of field: og_exchange::row_bytes"]
        [::core::mem::offset_of!(og_exchange, row_bytes) - 8usize];
    ["Offset of field: og_exchange::runs"][::core::mem::offset_of!(og_exchange, runs) - 16usize];
    ["Offset of field: og_exchange::awaited"]
        [::core::mem::offset_of!(og_exchange, awaited) - 24usize];
    ["Offset of field: og_exchange::run_count"]
        [::core::mem::offset_of!(og_exchange, run_count) - 32usize];
    ["Offset of field: og_exchange::awaited_count"]
        [::core::mem::offset_of!(og_exchange, awaited_count) - 36usize];
    ["Offset of field: og_exchange::total"][::core::mem::offset_of!(og_exchange, total) - 40usize];
};
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
#[allow(clippy::unnecessary_operation, clippy::identity_op)]
const _: () = {
    ["Size of og_gemm_plan"][::core::mem::size_of::<og_gemm_plan>() - 96usize];
    ["Alignment of og_gemm_plan"][::core::mem::align_of::<og_gemm_plan>() - 8usize];
    ["Offset of field: og_gemm_plan::workspace_bytes"]
        [::core::mem::offset_of!(og_gemm_plan, workspace_bytes) - 0usize];
    ["Offset of field: og_gemm_plan::tile_count"]
        [::core::mem::offset_of!(og_gemm_plan, tile_count) - 8usize];
    ["Offset of field: og_gemm_plan::sm_count"]
        [::core::mem::offset_of!(og_gemm_plan, sm_count) - 16usize];
    ["Offset of field: og_gemm_plan::cluster_count"]
        [::core::mem::offset_of!(og_gemm_plan, cluster_count) - 20usize];
    ["Offset of field: og_gemm_plan::shape"]
        [::core::mem::offset_of!(og_gemm_plan, shape) - 24usize];
};
unsafe extern "C" {
    pub fn og_abi_version() -> i32;
}
unsafe extern "C" {
    pub fn og_status_string(status: og_status) -> *const ::core::ffi::c_char;
}
unsafe extern "C" {
    pub fn og_last_error_message() -> *const ::core::ffi::c_char;
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
