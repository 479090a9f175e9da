// Which stage of shared memory comes next, where a launch says how many there are.
//
// What belongs here: a position in the ring of stages. A kernel of several tile widths has more stages where its tiles are
// narrower; CUTLASS's own position knows just a number that the compiler knows.
// Invariant: for the same number of stages it goes the way of CUTLASS's.
#pragma once

#include "cutlass/cutlass.h"
#include "cutlass/fast_math.h"
#include "cutlass/pipeline/sm90_pipeline.hpp"

namespace overlap_gemm {

// kMost: the stages that there are barriers for. Without kVaries there are just as many.
template <int kMost, bool kVaries>
class StageCursor {
public:
    // `phase` is 0 for who reads stages, and 1 for who fills them: at first all are free.
    CUTLASS_DEVICE StageCursor(cutlass::FastDivmod const& stages, uint32_t phase) : stages_(stages), phase_(phase) {}

    CUTLASS_DEVICE int32_t index() const { return index_; }
    CUTLASS_DEVICE int32_t count() const { return kVaries ? stages_.divisor : kMost; }

    CUTLASS_DEVICE StageCursor& operator++() {
        if (++index_ == count()) {
            index_ = 0;
            phase_ ^= 1;
        }
        return *this;
    }

    CUTLASS_DEVICE void advance(int32_t steps) {
        int32_t const to = index_ + steps;
        int32_t const laps = kVaries ? stages_.div(to) : to / kMost;
        index_ = to - laps * count();
        phase_ ^= uint32_t(laps) & 1;
    }

    // As CUTLASS's pipelines want it.
    CUTLASS_DEVICE operator cutlass::PipelineState<kMost>() const { return {index_, phase_, 0}; }

private:
    cutlass::FastDivmod const& stages_;
    int32_t index_ = 0;
    uint32_t phase_;
};

}  // namespace overlap_gemm
