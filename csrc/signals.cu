// The start of a step and the arrival of chunks, as one-thread kernels: for graphs, which replay with
// an epoch that the host does not know.
//
// Invariant: a signal is written with release at system scope, after everything its stream did
// before; it pairs with the acquire in chunk_signal.cuh.
#include "chunk_signal.cuh"
#include "instance.h"
#include "signals.h"

namespace overlap_gemm {
namespace {

__global__ void advance(uint32_t* epoch) { *epoch += 1; }

__global__ void post(uint32_t* signals, int32_t count, uint32_t const* epoch) {
    uint32_t value = load_relaxed_system(epoch);
    for (int32_t i = 0; i < count; ++i) store_release_system(signals + i, value);
}

}  // namespace

void advance_epoch(uint32_t* epoch, cudaStream_t stream) {
    launch(advance, 1, 1, stream, "launch of advance", epoch);
}

void post_signals(uint32_t* signals, int32_t count, uint32_t const* epoch, cudaStream_t stream) {
    launch(post, 1, 1, stream, "launch of post", signals, count, epoch);
}

void load_signal_kernels() {
    cudaFuncAttributes attributes;
    check(cudaFuncGetAttributes(&attributes, advance), "cudaFuncGetAttributes(advance)");
    check(cudaFuncGetAttributes(&attributes, post), "cudaFuncGetAttributes(post)");
}

}  // namespace overlap_gemm
