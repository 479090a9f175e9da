// The kernels that move the protocol forward on the device, as abi.cu calls them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "overlap_gemm.h"

namespace overlap_gemm {

// Each throws Failure if CUDA refuses the launch.
void advance_epoch(uint32_t* epoch, cudaStream_t stream);
void post_signals(uint32_t* signals, int32_t count, uint32_t const* epoch, cudaStream_t stream);
void begin_gather(og_gather const& gather, og_gather_step const& step, cudaStream_t stream);
void await_rows(og_gather const& gather, int32_t slot, int32_t count, int32_t chunk,
                cudaStream_t stream);
void meet_on_pad(og_pad const& pad, int32_t channel, int32_t peer, bool puts, bool waits,
                 cudaStream_t stream);
void load_signal_kernels();
void load_pad_kernels();
void load_gather_kernels();

}  // namespace overlap_gemm
