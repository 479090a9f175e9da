/* The whole border between the device code and Rust: bindgen reads this file and nothing else.
 *
 * What belongs here: plain C types and the few functions that Rust calls. No C++, no CUDA header,
 * no CUTLASS type. Everything starts with `og_` or `OG_`; the Rust names are the same.
 *
 * Invariants of every function:
 *  - it returns a status (or a plain fact); no exception, abort or print leaves it, and arguments
 *    that the kernels cannot carry out are refused before anything is enqueued;
 *  - `og_last_error_message` says why the last call on the calling thread failed;
 *  - an error that the caller's own calls have left for `cudaGetLastError` stays there, but for
 *    `og_gemm_prepare`, in which CUDA's own `cudaFuncSetAttribute` forgets it;
 *  - the caller has made the CUDA context current (driver or runtime API: both mean the primary
 *    context of the device), and the stream belongs to it.
 *
 * Which kernel serves which problem is decided in Rust (src/cuda/product/choice.rs), from the facts that
 * `og_kernel_info` gives. Matrices here are always as the caller sees them: A is M x K, gathered
 * along M; D is M x N. That some kernels compute the transposed product is their own affair.
 */
#ifndef OVERLAP_GEMM_H
#define OVERLAP_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a declaration below changes meaning. Rust compares its own copy with
 * `og_abi_version()` before the first call, so that stale objects are noticed and not called. */
#define OG_ABI_VERSION 23

/* TMA wants addresses and row pitches to be multiples of this many bytes. */
#define OG_ALIGNMENT_BYTES 16

/* Neighbouring columns of A B that are gates, and those behind them that they gate (og_gemm_shape.gated). */
#define OG_GATE_COLUMNS 8

/* The largest M, N, K: rounding up to a tile has to stay within 31 bits. */
#define OG_MAX_EXTENT 2147483392

/* The largest row pitch in bytes (exclusive): 40 bits in a TMA descriptor. */
#define OG_MAX_PITCH_BYTES 1099511627776

/* The most chunks an input can arrive in: their first rows and signals travel as kernel
 * parameters, so that nothing is uploaded when a step is enqueued. */
#define OG_MAX_CHUNKS 256

/* The most parts that a rank's shard can be pushed in by a kernel, for the same reason. */
#define OG_MAX_PUSHED 32

/* The largest `share_bits`: a signal is `1 << share_bits` words. */
#define OG_MAX_SHARE_BITS 10

/* The most spans of columns that a chunk arrives in, as a power of two; and what their width is a multiple of. */
#define OG_MAX_SPAN_BITS 3
#define OG_SPAN_UNIT_BYTES 512

/* The most ranks. */
#define OG_MAX_RANKS 1024

/* The most slices that K can be cut into. */
#define OG_MAX_SPLITS 16

typedef enum og_status {
    OG_STATUS_OK = 0,
    /* A required pointer is null. */
    OG_STATUS_NULL_POINTER = 1,
    /* A size, count, limit or enumerator is outside its range; the message names it. */
    OG_STATUS_OUT_OF_RANGE = 2,
    /* A leading dimension is shorter than its row, or its pitch reaches OG_MAX_PITCH_BYTES. */
    OG_STATUS_BAD_PITCH = 3,
    /* An address, a row pitch or the width of D is no multiple of OG_ALIGNMENT_BYTES. */
    OG_STATUS_MISALIGNED = 4,
    /* The current device is no Hopper GPU (compute capability 9.0). */
    OG_STATUS_ARCHITECTURE = 5,
    /* The plan is empty: `og_gemm_prepare` has not filled it in. */
    OG_STATUS_BAD_PLAN = 6,
    /* A CUDA call failed; the message names the call and CUDA's words. */
    OG_STATUS_CUDA = 7,
    /* A C++ exception that is no failed check and no failed CUDA call. The message is its text, if memory sufficed. */
    OG_STATUS_INTERNAL = 8,
} og_status;

typedef enum og_type {
    OG_TYPE_BF16 = 0,
    OG_TYPE_F16 = 1,
    OG_TYPE_F32 = 2,
    OG_TYPE_E4M3 = 3,
    OG_TYPE_E5M2 = 4,
} og_type;

typedef enum og_layout {
    /* B is stored as N rows of K. */
    OG_LAYOUT_NK = 0,
    /* B is stored as K rows of N (16-bit types only: the fp8 tensor cores read K-major). */
    OG_LAYOUT_KN = 1,
} og_layout;

typedef enum og_activation {
    OG_ACTIVATION_NONE = 0,
    OG_ACTIVATION_RELU = 1,
    /* 0.5 x (1 + tanh(sqrt(2/pi) (x + 0.044715 x^3))) */
    OG_ACTIVATION_GELU_TANH = 2,
    /* x / (1 + exp(-x)) */
    OG_ACTIVATION_SILU = 3,
} og_activation;

/* What one compiled kernel is. Filled in by `og_kernel_info`. */
typedef struct og_kernel_facts {
    /* A static string: `bf16_bf16_bf16_nk_128x192x64_2x1_pingpong`. */
    const char *name;
    og_type a_type;
    og_type b_type;
    /* Also the type of C and of the bias, which are bf16 where D is fp8. */
    og_type d_type;
    og_layout b_layout;
    /* Rows and columns of D in one tile, K in one step, and tiles of one cluster along M and N. */
    int32_t tile_m;
    int32_t tile_n;
    int32_t tile_k;
    int32_t cluster_m;
    int32_t cluster_n;
    /* 1: two consumer warp groups work on different tiles in turn; 0: both on one tile. */
    int32_t pingpong;
    /* 1: computes D transposed, so that a small M lies along the narrow side of the tensor cores. */
    int32_t transposed;
    /* 1: fp8 sums stay in the tensor cores for all of K; 0: they are added up in f32 every 128. */
    int32_t fast_accumulation;
    /* The most slices of K this kernel can work on at a time (1: it cannot cut K). */
    int32_t max_splits;
    /* 1: adds other ranks' sums (og_other_sums). */
    int32_t adds_others;
    /* 1: computes gated products (og_gemm_shape). */
    int32_t gates;
} og_kernel_facts;

/* The sizes, and how the kernel is to be run. */
typedef struct og_gemm_shape {
    int64_t m;
    int64_t n;
    int64_t k;
    /* Distances between the starts of two rows, in elements. */
    int64_t lda;
    int64_t ldb;
    int64_t ldc; /* Not looked at where there is no C. */
    int64_t ldd;
    /* Which kernel: 0 ..< og_kernel_count(). */
    int32_t kernel;
    /* How many SMs the kernel may occupy; 0 means all. */
    int32_t sm_count;
    /* Unit rows that sweep over the columns together (plan::Tiling::swizzle), at least 1. */
    int32_t swizzle;
    /* Slices that K is cut into, 1 ..= max_splits: for outputs with fewer tiles than SMs. */
    int32_t splits;
    /* 1: the product is gated. Of each 16 columns of A B the first OG_GATE_COLUMNS are gates of the others, and D has N / 2
     * columns: D[m, j] = activation(x[m, g]) * x[m, g + OG_GATE_COLUMNS], where x is A B, scaled, plus the bias, and g is
     * j / OG_GATE_COLUMNS * 2 * OG_GATE_COLUMNS + j % OG_GATE_COLUMNS. N is a multiple of 16; there is no C, and no others. */
    int32_t gated;
    int32_t reserved;
} og_gemm_shape;

/* Where the blocks of a step tell each other something. Zero before first use, then left alone. */
typedef struct og_stop {
    /* The step that was given up last: 1 << 32 | epoch. */
    uint64_t given_up;
    /* When a block may look at the abort word next, in nanoseconds of the GPU's global timer: that
     * word is across the bus, and a hundred blocks looking at once would hold up all else there. */
    uint64_t next_look_ns;
} og_stop;

/* Sums of other ranks for the same rows and columns, in D's type. A product adds them to its own sums, in f32, before it
 * multiplies by alpha. */
typedef struct og_other_sums {
    /* `count` matrices, `slot_pitch` elements apart, added up in order. Their rows are `pitch` elements apart. */
    const void *slots;
    int64_t slot_pitch;
    int64_t pitch;
    int32_t count;
    int32_t reserved;
    /* This rank's words of the step: where it was given up, D is NaN. */
    const og_stop *stop;
    const uint32_t *epoch;
} og_other_sums;

/* D = activation(alpha * scale_a[m] * scale_b[n] * (A B)[m, n] + beta * C[m, n] + bias[n]), or as og_gemm_shape says of a gated
 * product.
 *
 * All pointers are to device memory, but that to `others`, whose sums are added to A B. Null scales are 1, a null bias is 0, a
 * null C is absent (beta is not looked at). Sums are in f32; D is rounded once, to nearest even. A D of fp8 is that times
 * scale_d, and what is larger than fp8's largest number becomes that. */
typedef struct og_gemm_operands {
    const void *a;
    const void *b;
    const void *c;
    void *d;
    /* N elements of C's type, wherever they start. */
    const void *bias;
    /* One f32, or one for each row of A; one f32, or one for each column of A B. */
    const float *scale_a;
    const float *scale_b;
    /* Where D is fp8, else null. One f32; and one that is raised to the largest absolute value before scale_d, to NaN if
     * an output is NaN. Kernels that run at a time may raise it together. It is not negative. */
    const float *scale_d;
    float *amax_d;
    int32_t scale_a_per_row;
    int32_t scale_b_per_column;
    float alpha;
    float beta;
    og_activation activation;
    /* 1: nothing that may still run when this kernel starts writes B, so that it is read at once. Kernels
     * start when the one before them on the stream lets them (programmatic dependent launch), or ends. */
    int32_t b_is_there;
    /* Null: none. Without scales only: it would have to be divided by them. */
    const og_other_sums *others;
} og_gemm_operands;

/* A run of rows of A that arrives, and is signalled, as one. */
typedef struct og_chunk {
    /* Chunk 0 starts at row 0; a chunk ends where the next one starts, the last at M. */
    int32_t first_row;
    /* The index of its signal, 0 ..= 65535. */
    int32_t signal;
} og_chunk;

/* Why a kernel gave up waiting. */
typedef enum og_failure_kind {
    OG_FAILURE_NONE = 0,
    /* A chunk did not arrive within the time limit. */
    OG_FAILURE_TIMEOUT = 1,
    /* The abort word was set. */
    OG_FAILURE_ABORTED = 2,
    /* A rank did not say within the time limit what `og_gather_begin` waits for. */
    OG_FAILURE_ABSENT = 3,
    /* A rank laid the step out by other rows. */
    OG_FAILURE_LAYOUT = 4,
    /* A rank left the group, and what it still owes will not come. */
    OG_FAILURE_LEFT = 5,
    /* A slice of K was not handed over, as if the blocks of a product had not started in order. The workspace of
     * that product is of no more use. */
    OG_FAILURE_SLICE = 6,
} og_failure_kind;

/* In HOST memory that the device maps. Written once by the first thread block that gives up: `kind` last, with release at system
 * scope. `gave_up` is apart: any kernel of a rank that gives up sets it, perhaps before there is a record. */
typedef struct og_failure {
    /* The chunk that was waited for, the value of the word of its signal that is missing, and the epoch that was
     * expected; where a rank is at fault, that rank, what it has announced, and the epoch that it should have. */
    uint32_t chunk;
    uint32_t signal;
    uint32_t epoch;
    /* The tile of D that needed it; UINT32_MAX where it was none. */
    uint32_t tile_m;
    uint32_t tile_n;
    /* Not 0: this rank gave up. It may have written where others still read, or sent a total of which sums are missing; or it did
     * not wait for their signals to the end. Every rank's host reads it, so it precedes, by a fence of the whole system, all that
     * this rank sends or signals from then on. */
    uint32_t gave_up;
    uint32_t reserved;
    /* An og_failure_kind. */
    uint32_t kind;
} og_failure;

/* When one tile waited and was computed, in nanoseconds of the GPU's global timer. */
typedef struct og_tile_record {
    uint64_t wait_begin;
    uint64_t ready;
    /* Written by the slice of K that stores the tile, the last one; the others leave it alone. */
    uint64_t done;
    /* The tile's place in the visiting order (plan::TileOrder::index_of), times `splits`, plus the
     * slice of K. */
    uint64_t index;
    uint32_t sm;
    uint32_t tile_m;
    uint32_t tile_n;
    /* The last chunk that the tile's rows touch; UINT32_MAX where all of A was there. */
    uint32_t chunk;
} og_tile_record;

/* What the host tells kernels that wait, in words of its memory that they look at now and then: first a word of
 * these bits, then OG_MAX_RANKS bits, rank r's in word 1 + r / 32. Bits are set with release, the first word last. */
/* Everybody gives up. */
#define OG_ABORT_ASKED 1
/* A rank has left properly: all that it will ever write is there. Who waits for more from it gives up. */
#define OG_ABORT_LEFT 2

/* How the input arrives. A signal is `1 << share_bits` words side by side in `signals`: several writers that each bring
 * a share of a chunk set one each. A chunk is there when all of them have reached the epoch, that is when
 * `(int32_t)(word - *epoch) >= 0`. Chunks may arrive in `1 << span_bits` spans of columns, one after the other. Each span
 * then has an equal number of the words, the first ones for the first span, and is there when those have reached the epoch.
 * A kernel that gives up waits no more, multiplies zeros in the place of A, and ends: D is then undefined. */
typedef struct og_gemm_input {
    /* HOST memory, `chunk_count` of them, in row order; copied by `og_gemm_enqueue`. */
    const og_chunk *chunks;
    int32_t chunk_count;
    /* The row that the visiting order starts at: the first row of some chunk. */
    int32_t pivot_row;
    /* How many chunks from there on are expected before the kernel starts; the others are then expected at least twice
     * as fast as they are multiplied (plan::Chunks::early). 0: the tiles of each chunk come before the next chunk's. */
    int32_t early_chunks;
    /* Device memory, written by producers with release at system scope after the data. */
    const uint32_t *signals;
    /* Device memory: the epoch that this step expects. The kernel looks at it only after the kernel before it on the stream
     * has ended; from then on it is constant. */
    const uint32_t *epoch;
    /* Device memory, or null. If it is there, the kernel before is the beginning of a gather's step, this kernel
     * does not wait for its end but for this word, `begun` of og_gather, and that says the epoch. */
    const uint64_t *begun;
    /* Device memory, 8-byte aligned. */
    og_stop *stop;
    /* Memory of the host that the device can read and write: OG_ABORT_ASKED (null: cannot be aborted), and the
     * record. */
    const uint32_t *abort;
    og_failure *failure;
    /* How long a block waits for one tile's chunks before it gives up. */
    uint64_t timeout_ns;
    /* Signal s is written by rank s / slots_per_rank; 0: by nobody whose departure the host tells. */
    int32_t slots_per_rank;
    int32_t share_bits;
    int32_t span_bits;
    /* With spans: bytes of each in a row, but the last, which ends with the row. A multiple of OG_SPAN_UNIT_BYTES. */
    int32_t span_bytes;
} og_gemm_input;

/* What the ranks of a gather tell each other: words in memory that all of them reach, laid out alike on
 * each. A word has one writer. At the start those that hold epochs (the upper halves of layouts, too) hold
 * the one before the first; all others are zero.
 *
 *   stop         og_stop, this rank's own
 *   begun        64 bits: 1 << 32 | what the product of this step expects of signals, once all that is older than
 *                the step has ended on this rank's stream, and 1 << 33 if the step before was in the same buffer; 0
 *                before
 *   epoch        the step that this rank is in, and may push the rows of
 *   over         not 0: this rank gave up, and takes no further part
 *   last_buffer  the buffer of the step that this rank is in
 *   last_use     for either buffer, the last epoch that lived in it
 *   sent         one for each stream that pushes: it has sent all of this epoch; in steps with toggles 1, which the
 *                step that has waited for it resets
 *   signals      `1 << share_bits` for each slot: that slot's rows are here, of this epoch, when all of them say so.
 *                Written by the slot's rank; where a kernel pushes, each of its blocks writes for its share of each
 *                span, as in og_gemm_input
 *   toggles      the same for each buffer, for who cannot know the epoch: 1 means here. The slot's rank sets
 *                it, and this rank resets it before it says that it has consumed those rows
 *   consumed     one for each rank: it reads this epoch's buffer, and older ones, no more
 *   layouts      four for each rank, 64 bits each, of epoch e in number e mod 4: e << 32 | layout */
typedef struct og_gather {
    /* DEVICE memory: where each rank's words are, as this rank reaches them; `ranks` of them. */
    uint32_t *const *words;
    /* This rank's words. */
    uint32_t *own;
    int32_t ranks;
    int32_t rank;
    /* How many slots there are, and words of each one's signal: 1 << share_bits, with toggles 1. */
    int32_t slots;
    int32_t share_bits;
    /* Where they are, in words from the start; those of 64 bits at even places. `stop_at` may be negative: operations
     * that share a workspace share one og_stop at its start. */
    int32_t stop_at;
    int32_t begun_at;
    int32_t epoch_at;
    int32_t over_at;
    int32_t last_buffer_at;
    int32_t last_use_at;
    int32_t sent_at;
    int32_t signals_at;
    int32_t toggles_at;
    int32_t consumed_at;
    int32_t layouts_at;
    int32_t reserved;
    /* As in og_gemm_input. */
    const uint32_t *abort;
    og_failure *failure;
    uint64_t timeout_ns;
} og_gather;

/* Rows that are pushed, and signalled, as one: bytes from the start of every rank's words on, the same
 * on each. The second run (row scales) may be empty. */
typedef struct og_push {
    uint64_t offset[2];
    uint64_t bytes[2];
    /* The slot of its signal. */
    int32_t slot;
    /* How many rows the first run is, as og_gather_step lays them out. */
    int32_t rows;
} og_push;

/* Slots whose signals are awaited: `first`, and each `stride`-th behind it, `count` in all. A failure record calls them
 * `name`, `name + 1`, ... */
typedef struct og_slots {
    int32_t first;
    int32_t count;
    int32_t stride;
    int32_t name;
} og_slots;

/* What a toggle is set to, and so the epoch that products which look at toggles expect. */
#define OG_TOGGLE_SET 1

/* One step of a gather on one rank. */
typedef struct og_gather_step {
    /* 0 or 1. */
    int32_t buffer;
    /* What all ranks have to have in common. */
    uint32_t layout;
    /* This rank's own slots: that its rows are here is said by the step's beginning. */
    int32_t own_slot;
    int32_t own_slots;
    /* 1: toggles say which rows are here; 0: signals. */
    int32_t toggled;
    /* 1: a product that looks at `begun` comes next on the stream; 0: what comes next starts when the step has
     * begun. */
    int32_t product_follows;
    /* 1: that product may start, and read B, at once; 0: when all that came before has ended. */
    int32_t product_may_start;
    /* 1: the beginning waits until all ranks have begun this step, not until they have consumed the step before the last. */
    int32_t awaits_beginnings;
    /* How many of the words `sent` have to say that the step before is sent. */
    int32_t senders;
    /* HOST memory, copied: what a kernel of `blocks` blocks, at most 1 << share_bits, pushes to all others; may be
     * none. */
    const og_push *pushes;
    int32_t push_count;
    int32_t blocks;
    /* A word of device memory, zero before the first use and left zero. */
    uint32_t *counter;
    /* Of rows that a kernel pushes: bytes of one, and from one to the next, a multiple of 16; and their spans, as in
     * og_gemm_input. */
    int64_t row_bytes;
    int64_t row_pitch;
    int32_t span_bits;
    int32_t span_bytes;
} og_gather_step;

/* Where ranks tell each other on their GPUs how far they have come: words in memory that all of them reach,
 * laid out alike on each, zero at the start. The first word is `over`; a rank that stops waiting, or has given up a step, sets
 * `gave_up` of its og_failure before its stream goes on. After OG_PAD_HEADER words, for each channel one word for each rank,
 * three times over:
 *
 *   received  how often that rank has signalled here; written by it
 *   sent      how often this rank has signalled there
 *   awaited   how often this rank has waited for that one */
typedef struct og_pad {
    /* DEVICE memory: where each rank's words are, as this rank reaches them; `ranks` of them. */
    uint32_t *const *words;
    /* This rank's words. */
    uint32_t *own;
    int32_t ranks;
    int32_t rank;
    int32_t channels;
    int32_t reserved;
    /* Of the steps before; null: there are none. */
    const og_stop *stop;
    /* As in og_gemm_input; a record's `chunk` is the rank that did not come, its tile none. */
    const uint32_t *abort;
    og_failure *failure;
    uint64_t timeout_ns;
} og_pad;

#define OG_PAD_HEADER 32

/* How all ranks' sums of some rows become outputs:
 *
 *   D = activation(alpha * total + beta * C[m, n] + bias[n]),
 *
 * where the total is added up in the order of the ranks, and divided by their number if `average` is 1. Everything is in
 * f32, and each operation is rounded by itself; D is rounded once, to nearest even. Where the step was given up, D is NaN.
 *
 * All pointers are to device memory. A null C or bias is absent. */
typedef struct og_reduction {
    /* The sums: BF16 or F32, rows `pitch` elements apart. Each rank's lie in its own memory, `sums_at` bytes from the start of
     * its words; or, if `words` is null, this rank's at `own`, and those of the other ranks in slots, in order, `slot_pitch`
     * elements apart. */
    uint32_t *const *words;
    uint64_t sums_at;
    const void *own;
    const void *slots;
    int64_t slot_pitch;
    int64_t pitch;
    int64_t rows;
    int64_t n;
    int32_t ranks;
    int32_t rank;
    og_type sum_type;
    /* Also the type of C and of the bias: BF16, F16 or F32. */
    og_type d_type;
    void *d;
    /* Lies as D does. */
    const void *c;
    const void *bias;
    int64_t ldd;
    float alpha;
    float beta;
    og_activation activation;
    int32_t average;
    /* This rank's words of the step: see og_gather. */
    const og_stop *stop;
    const uint32_t *epoch;
} og_reduction;

/* Rows of which a rank sends the totals to another, as one; or, without rows, words alone. */
typedef struct og_sums_run {
    /* Where they land, in bytes from the start of the receiver's words. */
    uint64_t to;
    int64_t first_row;
    int64_t rows;
    /* The other rank. */
    int32_t peer;
    /* The slots whose signals say that all is there, side by side. */
    int32_t slot;
    int32_t slots;
    int32_t reserved;
} og_sums_run;

/* What one kernel does of a reduction, behind its product or without one: it says that this rank's sums are there, adds up all
 * ranks' sums, which it reads in their memory, and may send totals and store those of other ranks. It has as many blocks as
 * og_gather_step says, at most `1 << share_bits`.
 *
 * Totals travel as values of D, in the places of as many sums: so D's type is no larger than that of sums, and D has all
 * columns of a row. */
typedef struct og_exchange {
    /* Row 0 of each rank's sums, in bytes from the start of its words; and bytes from one row to the next. */
    uint64_t sums_at;
    int64_t row_bytes;
    /* Unless null: this rank's sums, of that many rows, in any memory of its device. They are copied to where its sums lie. D may
     * lie in their place, row for row and in their type. */
    const void *brought;
    int64_t brought_rows;
    /* HOST memory, copied: at most OG_MAX_PUSHED of each. The runs of sums, of which other ranks learn that they are there,
     * then of totals that are sent, then of totals that are stored: D has their rows, too. The slots of the sums that are
     * awaited, then of the totals. */
    const og_sums_run *runs;
    const og_slots *awaited;
    int32_t sums_signalled;
    int32_t totals_sent;
    int32_t totals_stored;
    int32_t sums_awaited;
    int32_t totals_awaited;
    /* 1: the kernel before on the stream is a product of the step, which lets this one start when the step before has ended;
     * 0: it starts when all kernels before have ended. */
    int32_t follows_product;
    /* 1: og_gather_begin has begun the step; 0: this kernel does. */
    int32_t has_begun;
    int32_t reserved;
    /* HOST memory, copied: what is added up, of no row at all if only totals are stored; null if this rank gets no rows. */
    const og_reduction *total;
} og_exchange;

/* What `og_gemm_prepare` found out once, so that `og_gemm_enqueue` asks the device nothing. */
typedef struct og_gemm_plan {
    /* Device memory that the product needs beside the matrices; may be 0. The caller zeroes it
     * once; the kernel leaves the part that must be zero as it found it. */
    uint64_t workspace_bytes;
    /* The tiles of D, and the SMs and clusters of thread blocks that work at a time. */
    int64_t tile_count;
    int32_t sm_count;
    int32_t cluster_count;
    /* What was prepared. */
    og_gemm_shape shape;
} og_gemm_plan;

/* The OG_ABI_VERSION that this library was compiled with. */
int32_t og_abi_version(void);

/* Why the last call on this thread that returns a status failed: the value, the limit. Empty if it returned OG_STATUS_OK.
 * Never null; valid until the next such call on this thread. */
const char *og_last_error_message(void);

/* CUDA's error code, if that call failed because a call of CUDA's did; else 0. Driver and runtime have the same codes. */
int32_t og_last_cuda_error(void);

/* How many kernels were compiled. */
int32_t og_kernel_count(void);

/* What kernel `index` is. Needs no device. */
og_status og_kernel_info(int32_t index, og_kernel_facts *facts);

/* Whether the chosen kernel can carry out the sizes and pitches of `shape`, apart from what only a
 * device can say; `with_c` says whether there will be a C. Needs no device. The other functions
 * apply the same rule. */
og_status og_gemm_check(const og_gemm_shape *shape, int32_t with_c);

/* Loads the kernel into the current context, raises its shared memory limit, and fills in `plan`.
 * Slow (module loading): for plan time. */
og_status og_gemm_prepare(const og_gemm_shape *shape, og_gemm_plan *plan);

/* Enqueues the product on `stream` (a CUstream; null is the legacy default stream) and returns.
 *
 * `workspace` points to `plan->workspace_bytes` bytes of device memory that no other product uses
 * until this one is done (null if none are needed). `rows` is the number of rows of this step, 1 ..=
 * the planned m. A null `input` means that all of A is there. `records`, unless null, is device
 * memory for `plan->tile_count * splits` records, indexed by (row of tiles * columns of tiles +
 * column) * splits + slice. Allocates nothing, waits for nothing, can be captured into a graph. */
og_status og_gemm_enqueue(const og_gemm_plan *plan, int64_t rows, const og_gemm_operands *operands,
                          const og_gemm_input *input, og_tile_record *records, void *workspace,
                          void *stream);

/* Enqueues a one-thread kernel that adds 1 to `*epoch`: the start of a step, also in a graph. */
og_status og_epoch_advance(uint32_t *epoch, void *stream);

/* Enqueues a one-thread kernel that sets `count` words from `signals` to `*epoch`, with release at
 * system scope: what the stream did before is visible to a thread that sees the signal. Needs an SM, so it
 * goes before the product that waits for it, or that product leaves an SM free. */
og_status og_signal_post(uint32_t *signals, int32_t count, const uint32_t *epoch, void *stream);

/* Enqueues a kernel that begins this rank's next step, e, when all that is older has ended on the stream:
 *  1. a product that follows learns of it (`begun`), and this rank's own rows are signalled to itself;
 *  2. all ranks learn that this one has consumed e - 1, and how it lays e out;
 *  3. it waits until all ranks have consumed e - 2 and what else was last in that buffer, and what this
 *     rank sent of e - 1 is sent: from here on this rank may push into theirs. So no rank is ever two
 *     steps ahead of another;
 *  4. if this rank lays e out otherwise than e - 2, it waits until all ranks have said how they do, which
 *     has to be alike, and until its own word is there, before any of its rows can arrive anywhere;
 *  5. `pushes` go out, in the order in which the others need them, each with its signal after its data; and the
 *     epoch grows to e, which streams that push wait for.
 * If a rank is late or lays e out otherwise, or the host has set the abort word, the step counts as given
 * up: products that wait for it end at once, all ranks learn that their rows may be torn, and so it
 * is with every later step. Needs SMs: what waits for it comes after it. */
og_status og_gather_begin(const og_gather *gather, const og_gather_step *step, void *stream);

/* Enqueues a kernel of one warp that ends when the signals of `slots` have reached the epoch, or the step was given up. */
og_status og_gather_await(const og_gather *gather, const og_slots *slots, void *stream);

/* Enqueues a kernel that adds up sums. It waits for nothing: it starts when all that is older has ended on the stream, the
 * kernels that wait for the sums among it. */
og_status og_reduce(const og_reduction *reduction, void *stream);

/* Enqueues a kernel that begins a step as `og_gather_begin` does, but without pushes and toggles, unless `has_begun` says that the
 * step has begun. The kernel signals that this rank's sums are complete, waits for those of other ranks, and adds all up. Then it
 * sends, awaits and stores totals, if there are any.
 * Its blocks hold SMs while they wait, so ranks that share a GPU have to leave room there for each other's products. */
og_status og_exchange_sums(const og_gather *gather, const og_gather_step *step, const og_exchange *exchange, void *stream);

/* Enqueues a kernel of one warp by which ranks signal each other on a channel. If `puts` is not 0, it signals `peer` (-1: all
 * ranks, itself too). If `waits` is not 0, it then waits for the next signal of `peer` (-1: of each rank): the n-th wait waits
 * for the n-th signal. What the stream did before is visible to all that have waited for the signal. A wait that ends without
 * its signal (limit, abort word, or a rank that has left) leaves a record and sets `over`: from then on no wait of this pad
 * waits. Can be captured into a graph. */
og_status og_pad_meet(const og_pad *pad, int32_t channel, int32_t peer, int32_t puts, int32_t waits,
                      void *stream);

/* Loads the kernels above into the current context, so that their first use is not slow. */
og_status og_signals_prepare(void);

#ifdef __cplusplus
}
#endif

#endif
