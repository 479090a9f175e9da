// The seam between the C border (abi.cu) and the compiled kernels (instances/*.cu).
//
// What belongs here: how one compiled kernel presents itself, the list of those there are, and how
// a failure travels. No CUTLASS here, so that abi.cu compiles in a second.
// Invariant: the arguments that reach an instance have passed `og_gemm_check`.
#pragma once

#include <cuda_runtime_api.h>

#include <stdexcept>
#include <string>

#include "overlap_gemm.h"

namespace overlap_gemm {

// A failure on its way to the C border, where it becomes a status and a message.
struct Failure : std::runtime_error {
    og_status status;
    Failure(og_status s, std::string const& message) : std::runtime_error(message), status(s) {}
};

// Turns a failed CUDA call into a Failure that names it.
inline void check(cudaError_t result, char const* call) {
    if (result != cudaSuccess) {
        throw Failure(OG_STATUS_CUDA, std::string(call) + ": " + cudaGetErrorName(result) + " (" +
                                          std::to_string(int(result)) + "): " +
                                          cudaGetErrorString(result));
    }
}

// One compiled kernel. Both functions throw Failure.
struct Instance {
    char const* name;
    // The output tile of one thread block, and the blocks of a cluster.
    int tile_m;
    int tile_n;
    int cluster_size;
    // Loads the kernel and returns how many clusters fit on the device; fills in workspace_bytes.
    int (*prepare)(og_gemm_params const& params, og_gemm_plan& plan);
    void (*enqueue)(og_gemm_params const& params, og_gemm_plan const& plan, void* workspace,
                    cudaStream_t stream);
};

// One declaration per file in instances/.
extern Instance const bf16_128x256_coop_2x1;

}  // namespace overlap_gemm
