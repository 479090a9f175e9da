// Search in a table whose entries rise.
//
// What belongs here: the one search that chunks and bands share. Plain C++, for both sides.
// Invariant: entry `from` is at most `value`, so that there is always an answer.
#pragma once

#include <cstdint>

#if defined(__CUDACC__)
#define OG_HOST_DEVICE __host__ __device__
#else
#define OG_HOST_DEVICE
#endif

namespace overlap_gemm {

// The last index of from ..< count whose entry, `at(index)`, is at most `value`.
template <class At>
OG_HOST_DEVICE int32_t last_at_most(int32_t value, int32_t from, int32_t count, At at) {
    int32_t low = from;
    int32_t high = count;
    while (high - low > 1) {
        int32_t middle = (low + high) >> 1;
        if (at(middle) <= value) {
            low = middle;
        } else {
            high = middle;
        }
    }
    return low;
}

}  // namespace overlap_gemm
