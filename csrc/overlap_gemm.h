/* The whole border between the device code and Rust: bindgen reads this file and nothing else.
 *
 * What belongs here: plain C types and the few functions that Rust calls. No C++, no CUDA header,
 * no CUTLASS type. Everything starts with `og_` or `OG_`; the Rust names are the same.
 *
 * Invariants of every function:
 *  - it returns a status; no exception, abort or print leaves it, and nothing is garbage in, garbage
 *    out: arguments the kernels cannot carry out are refused before anything is enqueued;
 *  - `og_last_error_message` says on the calling thread what the last non-zero status meant;
 *  - the caller has made the CUDA context current (driver or runtime API: both mean the primary
 *    context of the device), and the stream belongs to it.
 */
#ifndef OVERLAP_GEMM_H
#define OVERLAP_GEMM_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Changes whenever a declaration below changes meaning. Rust compares its own copy with
 * `og_abi_version()` before the first call, so that stale objects are noticed and not called. */
#define OG_ABI_VERSION 1

/* TMA wants addresses and row pitches to be multiples of this many bytes. */
#define OG_ALIGNMENT_BYTES 16

/* The largest M, N, K: rounding up to a tile has to stay within 31 bits. */
#define OG_MAX_EXTENT 2147483392

/* The largest row pitch in bytes (exclusive): 40 bits in a TMA descriptor. */
#define OG_MAX_PITCH_BYTES 1099511627776

/* The fewest SMs a kernel runs on: one cluster of two thread blocks. */
#define OG_MIN_SM_COUNT 2

typedef enum og_status {
    OG_STATUS_OK = 0,
    /* A required pointer is null. */
    OG_STATUS_NULL_POINTER = 1,
    /* M, N or K is below 1 or above OG_MAX_EXTENT, there are more output tiles than 31 bits count,
     * or `sm_count` is neither 0 nor in OG_MIN_SM_COUNT ..= the SMs of the device. */
    OG_STATUS_OUT_OF_RANGE = 2,
    /* A leading dimension is shorter than its row, or its pitch reaches OG_MAX_PITCH_BYTES. */
    OG_STATUS_BAD_PITCH = 3,
    /* An address, a row pitch or the width of D is no multiple of OG_ALIGNMENT_BYTES. */
    OG_STATUS_MISALIGNED = 4,
    /* The current device is no Hopper GPU (compute capability 9.0). */
    OG_STATUS_ARCHITECTURE = 5,
    /* The plan is not one that `og_gemm_prepare` filled in. */
    OG_STATUS_BAD_PLAN = 6,
    /* A CUDA call failed; the message names the call and CUDA's words. */
    OG_STATUS_CUDA = 7,
    /* CUTLASS refused or threw; the message says what. A bug of this library. */
    OG_STATUS_INTERNAL = 8,
} og_status;

/* D = A * B^T for bf16 matrices, accumulated in f32, rounded once to bf16.
 *
 * A is M x K, B is N x K, D is M x N; all three are row-major, and `ld*` is the distance between the
 * starts of two rows in elements (K and N where rows follow each other without a gap). The pitches
 * and the width of D must be multiples of 16 bytes (N a multiple of 8): TMA stores write whole
 * 16-byte pieces, and would write zeros behind a ragged end. M and K need not be multiples of
 * anything. What lies between the end of a row of D and the start of the next is not written. */
typedef struct og_gemm_params {
    int64_t m;
    int64_t n;
    int64_t k;
    int64_t lda;
    int64_t ldb;
    int64_t ldd;
    const void *a;
    const void *b;
    void *d;
    /* How many SMs the kernel may occupy; 0 means all. */
    int32_t sm_count;
} og_gemm_params;

/* What `og_gemm_prepare` found out once, so that `og_gemm_enqueue` asks the device nothing. */
typedef struct og_gemm_plan {
    /* Device memory that `og_gemm_enqueue` needs beside the matrices; may be 0. */
    uint64_t workspace_bytes;
    /* How many SMs, and how many clusters of thread blocks at a time, the kernel occupies. */
    int32_t sm_count;
    int32_t cluster_count;
} og_gemm_plan;

/* The OG_ABI_VERSION that this library was compiled with. */
int32_t og_abi_version(void);

/* A short English name for a status; never null, also for values that are none. */
const char *og_status_string(og_status status);

/* What the last call on this thread that did not return OG_STATUS_OK had to say: the value, the
 * limit. Never null; valid until the next call on this thread. */
const char *og_last_error_message(void);

/* Whether the sizes, pitches and (if not null) addresses of `params` can be carried out, apart from
 * what only a device can say. Needs no device. The other functions apply the same rule. */
og_status og_gemm_check(const og_gemm_params *params);

/* Loads the kernel into the current context, raises its shared memory limit, and fills in `plan`.
 * The addresses in `params` are not looked at. Slow (module loading): for plan time. */
og_status og_gemm_prepare(const og_gemm_params *params, og_gemm_plan *plan);

/* Enqueues the product on `stream` (a CUstream; null is the legacy default stream) and returns.
 * `params` has the sizes that `plan` was prepared with; addresses may differ from call to call.
 * `workspace` points to `plan->workspace_bytes` bytes of device memory that no other product uses
 * until this one is done (null if none are needed). Allocates nothing, waits for nothing, and can be
 * captured into a graph. */
og_status og_gemm_enqueue(const og_gemm_params *params, const og_gemm_plan *plan, void *workspace,
                          void *stream);

#ifdef __cplusplus
}
#endif

#endif
