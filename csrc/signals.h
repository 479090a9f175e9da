// The kernels that move the protocol forward on the device, as abi.cu calls them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

namespace overlap_gemm {

// Each throws Failure if CUDA refuses the launch.
void advance_epoch(uint32_t* epoch, cudaStream_t stream);
void post_signals(uint32_t* signals, int32_t count, uint32_t const* epoch, cudaStream_t stream);
void load_signal_kernels();

}  // namespace overlap_gemm
