// From all ranks' sums of some elements to outputs: arithmetic over memory that is available.
//
// What belongs here: loading, adding up, what follows a total, and the choice of a kernel by types. Who waits for the sums is
// up to reduce.cu and exchange.cu.
// Sums are read past the SM's own cache, which may hold lines of an earlier step.
//
// Invariant: an output depends on no order but that of the ranks: each adds its sums at its own place, in f32. Each
// operation is rounded by itself, as on the host: the compiler may not fuse a product and a sum.
#pragma once

#include <type_traits>

#include "epilogue.cuh"
#include "instance.h"

namespace overlap_gemm {

template <int kWidth>
using Values = cutlass::Array<float, kWidth>;

// The largest piece that divides the bytes of `kWidth` elements, and so their address.
template <class Element, int kWidth>
using Piece = std::conditional_t<kWidth * sizeof(Element) % sizeof(int4) == 0, int4, int2>;

template <class Element, int kWidth>
__device__ cutlass::Array<Element, kWidth> load_elements(void const* start, int64_t at) {
    using From = Piece<Element, kWidth>;
    alignas(16) cutlass::Array<Element, kWidth> elements;
    auto const* from = reinterpret_cast<From const*>(static_cast<Element const*>(start) + at);
    auto* to = reinterpret_cast<From*>(elements.data());
#pragma unroll
    for (int i = 0; i < int(sizeof(elements) / sizeof(From)); ++i) to[i] = __ldcg(from + i);
    return elements;
}

template <class Element, int kWidth>
__device__ Values<kWidth> load(void const* start, int64_t at) {
    return cutlass::NumericArrayConverter<float, Element, kWidth>{}(load_elements<Element, kWidth>(start, at));
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

// Adds up all ranks' sums at some places: those of a rank begin at `start_of(rank)`, place i at element `at(i)` from there. All
// places' loads of kRanks ranks go out together: a load takes far longer than an addition.
template <int kRanks, class Sum, int kPlaces, int kWidth, class StartOf, class At>
__device__ void add_up(int32_t ranks, StartOf start_of, At at, Values<kWidth> (&totals)[kPlaces]) {
#pragma unroll
    for (int place = 0; place < kPlaces; ++place) totals[place].fill(-0.0f);  // -0 + x is x, -0 too
#pragma unroll 1
    for (int32_t first = 0; first < ranks; first += kRanks) {
        cutlass::Array<Sum, kWidth> sums[kRanks][kPlaces];
#pragma unroll
        for (int i = 0; i < kRanks; ++i) {
            if (first + i >= ranks) break;
            void const* start = start_of(first + i);
#pragma unroll
            for (int place = 0; place < kPlaces; ++place) sums[i][place] = load_elements<Sum, kWidth>(start, at(place));
        }
#pragma unroll
        for (int i = 0; i < kRanks; ++i) {
            if (first + i >= ranks) break;
#pragma unroll
            for (int place = 0; place < kPlaces; ++place) {
                Values<kWidth> sum = cutlass::NumericArrayConverter<float, Sum, kWidth>{}(sums[i][place]);
                Values<kWidth>& total = totals[place];
#pragma unroll
                for (int k = 0; k < kWidth; ++k) total[k] = __fadd_rn(total[k], sum[k]);
            }
        }
    }
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
    with_activation(r.activation, [&](auto function) { each(values, function); });
}

// Elements that are added up at a time: 16 bytes of each rank's.
template <class Sum>
constexpr int kWidthOf = 16 / int(sizeof(Sum));

// What a step that was given up stores.
template <int kWidth>
__device__ void spoil(Values<kWidth>& values) {
    each(values, [](float) { return __int_as_float(0x7fffffff); });
}

// What `pick` returns for the types of sums and of D, of which it is handed a value each: a kernel.
template <class Pick>
auto of_types(og_type sum_type, og_type d_type, Pick pick) {
    auto of_sums = [&](auto sum) {
        switch (d_type) {
            case OG_TYPE_BF16: return pick(sum, cutlass::bfloat16_t{});
            case OG_TYPE_F16: return pick(sum, cutlass::half_t{});
            default: return pick(sum, float{});
        }
    };
    return sum_type == OG_TYPE_BF16 ? of_sums(cutlass::bfloat16_t{}) : of_sums(float{});
}

// Loads the kernels of all types.
template <class KernelOf>
void load_all_types(KernelOf kernel_of, char const* what) {
    for (og_type sum_type : {OG_TYPE_BF16, OG_TYPE_F32}) {
        for (og_type d_type : {OG_TYPE_BF16, OG_TYPE_F16, OG_TYPE_F32}) {
            cudaFuncAttributes attributes;
            check(cudaFuncGetAttributes(&attributes, kernel_of(sum_type, d_type)), what);
        }
    }
}

}  // namespace overlap_gemm
