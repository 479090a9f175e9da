// The sum of all ranks' sums, and what follows it: how a rank's own rows of a reduce-scatter become D.
//
// What belongs here: arithmetic over memory that is there. Kernels before it on the stream have waited for the words of
// other ranks (`await` in gather.cu), so no block holds an SM that another rank needs while it waits. Sums are read from L2: a
// peer's copies go there, and the SM's own cache may hold lines of an earlier step.
//
// Invariant: an output depends on no order but that of the ranks: each adds its sums at its own place, in f32. Each
// operation is rounded by itself, as on the host: the compiler may not fuse a product and a sum.
#include <type_traits>

// What epilogue.cuh expects to be there.
#include "cutlass/pipeline/pipeline.hpp"

#include "epilogue.cuh"
#include "instance.h"
#include "signals.h"

namespace overlap_gemm {
namespace {

constexpr int kThreads = 256;
// As many as an H100 holds at a time. More would only come later.
constexpr int64_t kMostBlocks = 132 * 8;

template <int kWidth>
using Values = cutlass::Array<float, kWidth>;

// The largest piece that divides the bytes of so many elements, and so their address.
template <class Element, int kWidth>
using Piece = std::conditional_t<kWidth * sizeof(Element) % sizeof(int4) == 0, int4, int2>;

template <class Element, int kWidth>
__device__ Values<kWidth> load(void const* start, int64_t at) {
    using From = Piece<Element, kWidth>;
    alignas(16) cutlass::Array<Element, kWidth> elements;
    auto const* from = reinterpret_cast<From const*>(static_cast<Element const*>(start) + at);
    auto* to = reinterpret_cast<From*>(elements.data());
#pragma unroll
    for (int i = 0; i < int(sizeof(elements) / sizeof(From)); ++i) to[i] = __ldcg(from + i);
    return cutlass::NumericArrayConverter<float, Element, kWidth>{}(elements);
}

template <class Element, int kWidth>
__device__ void store(void* start, int64_t at, Values<kWidth> const& values) {
    using To = Piece<Element, kWidth>;
    alignas(16) cutlass::Array<Element, kWidth> elements =
        cutlass::NumericArrayConverter<Element, float, kWidth>{}(values);
    auto const* from = reinterpret_cast<To const*>(elements.data());
    auto* to = reinterpret_cast<To*>(static_cast<Element*>(start) + at);
#pragma unroll
    for (int i = 0; i < int(sizeof(elements) / sizeof(To)); ++i) to[i] = from[i];
}

// All ranks' sums from element `at` of a slot on.
template <class Sum, int kWidth>
__device__ Values<kWidth> add_up(og_reduction const& r, int64_t at) {
    auto const* slots = static_cast<Sum const*>(r.slots);
    Values<kWidth> total;
#pragma unroll 4
    for (int32_t rank = 0; rank < r.ranks; ++rank) {
        // This rank has no slot of its own.
        int32_t slot = rank < r.rank ? rank : rank - 1;
        void const* start = rank == r.rank ? r.own : slots + slot * r.slot_pitch;
        Values<kWidth> sums = load<Sum, kWidth>(start, at);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) total[i] = rank == 0 ? sums[i] : __fadd_rn(total[i], sums[i]);
    }
    return total;
}

template <class Function, int kWidth>
__device__ void each(Values<kWidth>& values, Function f) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] = f(values[i]);
}

// From totals to D's values; element `at` of C belongs to the first, and that of the bias to `column`.
template <class Output, int kWidth>
__device__ void finish(og_reduction const& r, Values<kWidth>& values, int64_t at, int64_t column) {
    if (r.average) each(values, [&](float x) { return __fdiv_rn(x, float(r.ranks)); });
    each(values, [&](float x) { return __fmul_rn(r.alpha, x); });
    if (r.c) {
        Values<kWidth> c = load<Output, kWidth>(r.c, at);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] = __fadd_rn(values[i], __fmul_rn(r.beta, c[i]));
    }
    if (r.bias) {
        Values<kWidth> bias = load<Output, kWidth>(r.bias, column);
#pragma unroll
        for (int i = 0; i < kWidth; ++i) values[i] = __fadd_rn(values[i], bias[i]);
    }
    switch (r.activation) {
        case OG_ACTIVATION_NONE: break;
        case OG_ACTIVATION_RELU: each(values, Relu{}); break;
        case OG_ACTIVATION_GELU_TANH: each(values, GeluTanh{}); break;
        case OG_ACTIVATION_SILU: each(values, Silu{}); break;
    }
}

// Elements that a thread adds up at a time: 16 bytes of each rank's.
template <class Sum>
constexpr int kWidthOf = 16 / int(sizeof(Sum));

template <class Sum, class Output>
__global__ void __launch_bounds__(kThreads) reduce(__grid_constant__ og_reduction const r) {
    constexpr int kWidth = kWidthOf<Sum>;
    bool const is_given_up = load_relaxed_gpu(&r.stop->given_up) == given_up_at(load_relaxed_system(r.epoch));
    int64_t const in_row = r.n / kWidth, all = r.rows * in_row;
    for (int64_t i = int64_t(blockIdx.x) * kThreads + threadIdx.x; i < all; i += int64_t(gridDim.x) * kThreads) {
        int64_t const row = i / in_row, column = (i - row * in_row) * kWidth;
        Values<kWidth> values = add_up<Sum, kWidth>(r, row * r.pitch + column);
        if (is_given_up) each(values, [](float) { return __int_as_float(0x7fffffff); });
        finish<Output, kWidth>(r, values, row * r.ldd + column, column);
        store<Output, kWidth>(r.d, row * r.ldd + column, values);
    }
}

using Kernel = void (*)(og_reduction);

template <class Sum>
Kernel kernel_of(og_type d_type) {
    switch (d_type) {
        case OG_TYPE_BF16: return reduce<Sum, cutlass::bfloat16_t>;
        case OG_TYPE_F16: return reduce<Sum, cutlass::half_t>;
        default: return reduce<Sum, float>;
    }
}

Kernel kernel_of(og_type sum_type, og_type d_type) {
    return sum_type == OG_TYPE_BF16 ? kernel_of<cutlass::bfloat16_t>(d_type) : kernel_of<float>(d_type);
}

}  // namespace

void reduce_sums(og_reduction const& r, cudaStream_t stream) {
    int64_t width = r.sum_type == OG_TYPE_BF16 ? kWidthOf<cutlass::bfloat16_t> : kWidthOf<float>;
    int64_t blocks = UnitGrid::ceil_div(r.rows * (r.n / width), kThreads);
    launch(kernel_of(r.sum_type, r.d_type), int(blocks < kMostBlocks ? blocks : kMostBlocks), kThreads, stream,
           "launch of reduce", r);
}

void load_reduce_kernels() {
    for (og_type sum_type : {OG_TYPE_BF16, OG_TYPE_F32}) {
        for (og_type d_type : {OG_TYPE_BF16, OG_TYPE_F16, OG_TYPE_F32}) {
            cudaFuncAttributes attributes;
            check(cudaFuncGetAttributes(&attributes, kernel_of(sum_type, d_type)), "cudaFuncGetAttributes(reduce)");
        }
    }
}

}  // namespace overlap_gemm
