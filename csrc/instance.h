// The seam between the C border (abi.cu) and the compiled kernels (gemm_sm90.cuh).
//
// What belongs here: how one compiled kernel presents itself, what a launch is made of, and how a
// failure travels. No CUTLASS here, so that abi.cu compiles in a second.
// Invariant: a launch that reaches an instance has passed every check of argument_checks.h.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "overlap_gemm.h"

namespace overlap_gemm {

// A failure on its way to the C border, where it becomes a status and a message.
struct Failure : std::runtime_error {
    og_status status;
    // CUDA's code; 0 where no call of CUDA's failed.
    int32_t cuda_error;
    Failure(og_status s, std::string const& message, int32_t code = 0)
        : std::runtime_error(message), status(s), cuda_error(code) {}
};

// Turns a failed CUDA call into a Failure that names it.
inline void check(cudaError_t result, char const* call) {
    if (result != cudaSuccess) {
        throw Failure(OG_STATUS_CUDA, std::string(call) + ": " + cudaGetErrorName(result) + " (" +
                                          std::to_string(int(result)) + "): " +
                                          cudaGetErrorString(result),
                      int32_t(result));
    }
}

// One product to enqueue. `input` is null where all of A is there.
struct Launch {
    og_gemm_plan const& plan;
    int64_t rows;
    og_gemm_operands const& operands;
    og_gemm_input const* input;
    og_tile_record* records;
    void* workspace;
    cudaStream_t stream;
};

// One compiled kernel. Both functions throw Failure.
struct Instance {
    og_kernel_facts facts;
    // Loads the kernel and returns how many clusters fit on the device at a time.
    int (*prepare)();
    void (*enqueue)(Launch const& launch);
};

// How a problem is cut into units (what one cluster computes at a time).
struct UnitGrid {
    int64_t m;
    int64_t n;

    UnitGrid(og_kernel_facts const& k, int64_t rows, int64_t columns)
        : m(ceil_div(rows, int64_t(k.tile_m) * k.cluster_m)),
          n(ceil_div(columns, int64_t(k.tile_n) * k.cluster_n)) {}

    int64_t count() const { return m * n; }
    static int64_t ceil_div(int64_t a, int64_t b) { return (a + b - 1) / b; }
};

// The workspace of a product that cuts K: counters, then partial sums. Two warp groups share a tile;
// each has a counter, and all slices but the last leave their sums.
struct SplitWorkspace {
    uint64_t counter_bytes = 0;
    uint64_t bytes = 0;

    SplitWorkspace(og_kernel_facts const& k, UnitGrid const& units, int32_t splits) {
        if (splits <= 1) return;
        uint64_t tiles = uint64_t(units.count()) * uint64_t(k.cluster_m) * uint64_t(k.cluster_n);
        counter_bytes = (tiles * 2 * sizeof(uint32_t) + 255) / 256 * 256;
        uint64_t sums = tiles * uint64_t(k.tile_m) * uint64_t(k.tile_n) * sizeof(float);
        bytes = counter_bytes + sums * uint64_t(splits - 1);
    }
};

// All compiled kernels, in the order of csrc/kernels.txt (the build writes the definition).
extern Instance const* const kInstances[];
extern int32_t const kInstanceCount;

}  // namespace overlap_gemm
