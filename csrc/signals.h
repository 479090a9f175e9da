// The kernels that move the protocol forward on the device, as abi.cu calls them.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "instance.h"
#include "overlap_gemm.h"

namespace overlap_gemm {

#if defined(__CUDACC__)
// Launches a kernel that starts when all that is older has ended on the stream. What the launch itself returns says
// whether it failed: the runtime's last error may be one that the caller has yet to look at, and stays.
template <class... Parameters, class... Arguments>
void launch(void (*kernel)(Parameters...), int blocks, int threads, cudaStream_t stream, char const* what,
            Arguments const&... arguments) {
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(unsigned(blocks));
    config.blockDim = dim3(unsigned(threads));
    config.stream = stream;
    check(cudaLaunchKernelEx(&config, kernel, Parameters(arguments)...), what);
}
#endif

// Each throws Failure if CUDA refuses the launch.
void advance_epoch(uint32_t* epoch, cudaStream_t stream);
void post_signals(uint32_t* signals, int32_t count, uint32_t const* epoch, cudaStream_t stream);
void begin_gather(og_gather const& gather, og_gather_step const& step, cudaStream_t stream);
void await_slots(og_gather const& gather, og_slots const& slots, cudaStream_t stream);
void reduce_sums(og_reduction const& reduction, cudaStream_t stream);
void exchange(og_gather const& gather, og_gather_step const& step, og_exchange const& given, cudaStream_t stream);
void meet_on_pad(og_pad const& pad, int32_t channel, int32_t peer, bool puts, bool waits,
                 cudaStream_t stream);
void load_signal_kernels();
void load_pad_kernels();
void load_gather_kernels();
void load_reduce_kernels();
void load_exchange_kernels();

}  // namespace overlap_gemm
