// The hardware's barriers, which the warps of a block meet at.
//
// What belongs here: each use's number, and how threads meet. Invariant: two uses in one kernel differ; a ping-pong and a
// cooperative kernel are two. Small numbers, written as constants: a kernel takes as many of an SM's barriers as its highest number
// says, and all sixteen if it computes one.
#pragma once

#include "cutlass/cutlass.h"

namespace overlap_gemm {

// The warp groups that share a tile, when they store it; of a ping-pong kernel, that is one group. (__syncthreads has 0.)
constexpr int kTileBarrier = 1;
// Each of these takes two numbers, one for each group of a ping-pong kernel.
constexpr int kMultiplyTurns = 2;
constexpr int kStoreTurns = 4;
// Two numbers, one for each group of a cooperative kernel: its threads meet there when it adds slices of K.
constexpr int kSliceBarriers = 2;
// Two numbers, one for each group of a cooperative kernel: its warps meet there when they fill a chunk of D together.
constexpr int kFillBarriers = 4;
// Two numbers, one for each group of any kernel: its warps meet there when they pass padding.
constexpr int kPaddingBarriers = 6;

// `kThreads` threads meet, in whole warps. `bar`, not `barrier`: where the compiler does not know that warps are whole, the
// main loop loses its uniform registers.
template <int kBarrier, int kThreads>
CUTLASS_DEVICE void meet_at() {
    asm volatile("bar.sync %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}
// The threads of a group meet at its number of two: the first group's is `kFirst`, the other's is the next.
template <int kFirst, int kThreads>
CUTLASS_DEVICE void meet_group_at(bool is_first) {
    if (is_first) {
        meet_at<kFirst, kThreads>();
    } else {
        meet_at<kFirst + 1, kThreads>();
    }
}
// Counts as one that meets, and goes on.
template <int kBarrier, int kThreads>
CUTLASS_DEVICE void arrive_at() {
    asm volatile("bar.arrive %0, %1;" ::"n"(kBarrier), "n"(kThreads) : "memory");
}

}  // namespace overlap_gemm
