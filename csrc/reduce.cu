// The sum of all ranks' sums, and what follows it: how the rows that a rank gets become D.
//
// What belongs here: the kernel that adds up sums which are complete. It also stores a total that has arrived: one rank's sums.
// Earlier kernels on the stream have waited for the words of other ranks (`await` in gather.cu, or exchange.cu). So no block of
// this kernel waits, and none holds an SM in vain that another rank needs.
#include "instance.h"
#include "signals.h"
#include "totals.cuh"

namespace overlap_gemm {
namespace {

constexpr int kThreads = 256;
// As many as an H100 holds at a time. More would only come later.
constexpr int kBlocksOfSm = 6;
constexpr int64_t kMostBlocks = 132 * kBlocksOfSm;

// `kInSlots`: the other ranks' sums have come here; else each rank's are in its own memory.
template <bool kInSlots, class Sum, class Output>
__global__ void __launch_bounds__(kThreads, kBlocksOfSm) reduce(__grid_constant__ og_reduction const r) {
    constexpr int kWidth = kWidthOf<Sum>;
    bool const is_given_up = load_relaxed_gpu(&r.stop->given_up) == given_up_at(load_relaxed_system(r.epoch));
    auto start_of = [&](int32_t rank) -> void const* {
        if constexpr (!kInSlots) return reinterpret_cast<char const*>(r.words[rank]) + r.sums_at;
        // This rank has no slot of its own.
        int32_t slot = rank < r.rank ? rank : rank - 1;
        return rank == r.rank ? r.own : static_cast<Sum const*>(r.slots) + slot * r.slot_pitch;
    };
    int64_t const in_row = r.n / kWidth, all = r.rows * in_row;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < all; i += int64_t(gridDim.x) * kThreads) {
        int64_t const row = i / in_row, column = (i - row * in_row) * kWidth;
        Values<kWidth> totals[1];
        add_up<2, Sum>(r.ranks, start_of, [&](int) { return row * r.pitch + column; }, totals);
        Values<kWidth>& values = totals[0];
        if (is_given_up) spoil(values);
        finish<Output, kWidth>(r, values, row * r.ldd + column, column);
        store<Output, kWidth>(r.d, row * r.ldd + column, values);
    }
}

using Kernel = void (*)(og_reduction);

template <bool kInSlots>
Kernel kernel_of(og_type sum_type, og_type d_type) {
    return of_types(sum_type, d_type,
                    [](auto sum, auto d) -> Kernel { return reduce<kInSlots, decltype(sum), decltype(d)>; });
}

}  // namespace

void reduce_sums(og_reduction const& r, cudaStream_t stream) {
    int64_t width = r.sum_type == OG_TYPE_BF16 ? kWidthOf<cutlass::bfloat16_t> : kWidthOf<float>;
    int64_t blocks = UnitGrid::ceil_div(r.rows * (r.n / width), kThreads);
    Kernel kernel = (r.words ? kernel_of<false> : kernel_of<true>)(r.sum_type, r.d_type);
    launch(kernel, int(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, stream,
           "launch of reduce", r);
}

void load_reduce_kernels() {
    load_all_types(kernel_of<true>, "cudaFuncGetAttributes(reduce)");
    load_all_types(kernel_of<false>, "cudaFuncGetAttributes(reduce)");
}

}  // namespace overlap_gemm
