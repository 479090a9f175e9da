// From sums to outputs: D = activation(alpha * scale_a[m] * scale_b[n] * sum + beta * C + bias[n]); where the product is gated,
// D = activation(x) * y, x and y being two columns' alpha * scale_a[m] * scale_b[n] * sum + bias[n]. A D of fp8 is that times its
// scale, and the largest output before is noted.
//
// What belongs here: the arithmetic between the sums and D; tile_store.cuh moves D.
// Invariant: per-row and per-column values are in shared memory before the first use in a tile;
// elements of C and entries of vectors are only read inside the matrix; a block that has given up
// waiting stores NaN. C, bias and scales are read from L2: this kernel may start before the one that writes them
// has ended, and the SM's own cache may still hold lines from before they were written.
#pragma once

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"

#include "gathering_mainloop.cuh"

namespace overlap_gemm {

// What becomes of a tile's sums. Each is code of its own, which skips as little as may be: fetching instructions takes longer
// than executing them, and with one code for all, a tile with scales of rows could take twice as long to store as to multiply
// (benches/results/2026-11-27-h200-scaled-rows.txt).
enum class Finish : int32_t {
    // D is the sums. The host never chooses it: scales of a whole matrix, which alpha is multiplied by, are in device memory.
    kNothing,
    // D is alpha times the sums.
    kScale,
    // Each row and column is scaled, and the bias is added.
    kVectors,
    // As kVectors, then each output is made of a gate and what it gates.
    kGated,
    // As kVectors, then the activation.
    kActivation,
    // As kVectors, then C is added, then the activation.
    kAll,
};

// The type of C and of the bias.
template <class Element>
using AddendOf = cute::conditional_t<sizeof(Element) == 1, cutlass::bfloat16_t, Element>;

// Everything but the sums. All but what C and a D of fp8 need is in one line of kernel parameters, as in OrderParams.
template <class Element>
struct alignas(kLineBytes) EpilogueParams {
    using Addend = AddendOf<Element>;
    float alpha = 1;
    int32_t activation = OG_ACTIVATION_NONE;
    bool scale_a_per_row = false;
    bool scale_b_per_column = false;
    // Whether this launch waits for chunks, and so can give up.
    bool can_stop = false;
    bool gated = false;
    Finish finish = Finish::kScale;
    // Columns of the kernel's tiles.
    int32_t width = 0;
    float const* scale_a = nullptr;
    float const* scale_b = nullptr;
    Addend const* bias = nullptr;
    Addend const* c = nullptr;
    RecordTable records;
    int64_t ldc = 0;
    float beta = 0;
    float const* scale_d = nullptr;
    // The bits of a float that is not negative: these are ordered as it is, and those of NaN are the largest.
    uint32_t* amax_d = nullptr;

    // Once all else is known.
    void settle() {
        bool const has_vectors = scale_a_per_row || scale_b_per_column || bias;
        finish = gated                              ? Finish::kGated
                 : c                                ? Finish::kAll
                 : activation != OG_ACTIVATION_NONE ? Finish::kActivation
                 : has_vectors                      ? Finish::kVectors
                                                    : Finish::kScale;
    }
};

// Past the SM's own cache. (`__ldcg` knows CUDA's types alone.)
template <class T>
CUTLASS_DEVICE T load_from_l2(T const* from) {
    using Bits = cute::uint_bit_t<8 * int(sizeof(T))>;
    Bits bits = __ldcg(reinterpret_cast<Bits const*>(from));
    return reinterpret_cast<T const&>(bits);
}

struct Relu {
    // Not fmaxf: a NaN stays a NaN.
    CUTLASS_DEVICE float operator()(float x) const { return x < 0.0f ? 0.0f : x; }
};

// x / (1 + exp(-y)), by the fast division: the exact one would add a subroutine to every use.
CUTLASS_DEVICE float times_sigmoid(float x, float y) { return __fdividef(x, 1.0f + __expf(-y)); }

struct GeluTanh {
    // (1 + tanh(y)) / 2 is the logistic function of 2y.
    CUTLASS_DEVICE float operator()(float x) const {
        return times_sigmoid(x, 1.5957691216057308f * (x + 0.044715f * x * x * x));
    }
};

struct Silu {
    CUTLASS_DEVICE float operator()(float x) const { return times_sigmoid(x, x); }
};

// Calls `f` with the function of an activation; without one, not at all.
template <class F>
CUTLASS_DEVICE void with_activation(int32_t activation, F f) {
    switch (activation) {
        case OG_ACTIVATION_RELU: f(Relu{}); break;
        case OG_ACTIVATION_GELU_TANH: f(GeluTanh{}); break;
        case OG_ACTIVATION_SILU: f(Silu{}); break;
    }
}

// A tile's first row and column in A B, and the extents of A B: those of D, but for the columns of a gated product.
struct Tile {
    int row, column, rows, columns;
};

// A place in a tile.
struct Place {
    int row, column;
};

// Which of a thread's values is gate `i`: `kApart` gates, then what they gate, and so on.
template <int kApart>
CUTLASS_DEVICE constexpr int nth_gate(int i) {
    return i / kApart * 2 * kApart + i % kApart;
}

// One thread's view of a tile, which `kThreads` threads share. `kSharers` blocks of a cluster load rows together.
template <class Element, int kRows, int kColumns, int kThreads, int kSharers>
class TileEpilogue {
public:
    static constexpr bool kIsFp8 = sizeof(Element) == 1;

    // In shared memory. A row's factor is alpha times its scale.
    struct Vectors {
        float row_factor[kRows];
        float column_scale[kColumns];
        float bias[kColumns];
    };

    // A thread's part of what a tile needs from L2. Read while the tile's last multiplications run, which takes as long; in
    // slices of K later.
    class Factors {
    public:
        Factors() = default;
        CUTLASS_DEVICE Factors(EpilogueParams<Element> const& params, Tile const& tile, int thread) : alpha_(params.alpha) {
            if (params.scale_a && !params.scale_a_per_row) alpha_ *= load_from_l2(params.scale_a);
            if (params.scale_b && !params.scale_b_per_column) alpha_ *= load_from_l2(params.scale_b);
            if (kIsFp8 && params.scale_d) scale_d_ = load_from_l2(params.scale_d);
            if (params.finish < Finish::kVectors) return;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kRowsEach; ++i) {
                int row = tile.row + thread + i * kThreads;
                bool given = params.scale_a_per_row && row < tile.rows;
                row_scale_[i] = given ? load_from_l2(params.scale_a + row) : 1.0f;
            }
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kColumnsEach; ++i) {
                int column = tile.column + thread + i * kThreads;
                bool inside = column < tile.columns;
                column_scale_[i] = params.scale_b_per_column && inside ? load_from_l2(params.scale_b + column) : 1.0f;
                bias_[i] = params.bias && inside ? float(load_from_l2(params.bias + column)) : 0.0f;
            }
        }

    private:
        friend class TileEpilogue;
        static constexpr int kRowsEach = (kRows + kThreads - 1) / kThreads;
        static constexpr int kColumnsEach = (kColumns + kThreads - 1) / kThreads;
        float alpha_;
        float scale_d_ = 1;
        float row_scale_[kRowsEach], column_scale_[kColumnsEach], bias_[kColumnsEach];
    };

    CUTLASS_DEVICE TileEpilogue(EpilogueParams<Element> const& params, Vectors& vectors, Tile const& tile, Factors const& factors)
        : params_(params), vectors_(vectors), tile_(tile), alpha_(factors.alpha_), scale_d_(factors.scale_d_) {
        if (params.can_stop && is_stopped<kSharers>()) alpha_ = __int_as_float(0x7fffffff);
    }

    CUTLASS_DEVICE bool has_vectors() const { return params_.finish >= Finish::kVectors; }

    // This thread's part.
    CUTLASS_DEVICE void share_vectors(Factors const& factors, int thread) {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Factors::kRowsEach; ++i) {
            int row = thread + i * kThreads;
            if (row < kRows) vectors_.row_factor[row] = alpha_ * factors.row_scale_[i];
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < Factors::kColumnsEach; ++i) {
            int column = thread + i * kThreads;
            if (column >= kColumns) continue;
            vectors_.column_scale[column] = factors.column_scale_[i];
            vectors_.bias[column] = factors.bias_[i];
        }
    }

    // Calls `f` with what this tile asks for, as a type. All lanes of a warp agree, and the compiler sees that they do.
    template <class F>
    CUTLASS_DEVICE void with_finish(F f) const {
        switch (params_.finish) {
            case Finish::kVectors: return f(cute::C<Finish::kVectors>{});
            case Finish::kActivation: return f(cute::C<Finish::kActivation>{});
            case Finish::kAll: return f(cute::C<Finish::kAll>{});
            case Finish::kGated: return f(cute::C<Finish::kGated>{});
            default:
                if (__all_sync(0xffffffff, alpha_ == 1.0f)) return f(cute::C<Finish::kNothing>{});
                f(cute::C<Finish::kScale>{});
        }
    }

    // From sums to D's values; `place_of` says where each belongs.
    template <Finish kFinish, int kCount, class PlaceOf>
    CUTLASS_DEVICE void apply(cutlass::Array<float, kCount>& values, PlaceOf const& place_of) const {
        if constexpr (kFinish == Finish::kScale) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kCount; ++i) values[i] *= alpha_;
        }
        if constexpr (kFinish >= Finish::kVectors) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kCount; ++i) {
                Place at = place_of(i);
                values[i] = values[i] * vectors_.row_factor[at.row] * vectors_.column_scale[at.column] + vectors_.bias[at.column];
            }
        }
        if constexpr (kFinish == Finish::kAll) {
            // It is given. But where the compiler knows that, it begins the loads of all elements at once, and registers spill.
            if (params_.c) add_c(values, place_of);
        }
        if constexpr (kFinish >= Finish::kActivation) {
            with_activation(params_.activation, [&](auto function) {
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kCount; ++i) values[i] = function(values[i]);
            });
        }
    }

    // The outputs of a gated product: `values` are `kApart` gates, then what they gate, and so on.
    template <int kApart, int kCount>
    CUTLASS_DEVICE cutlass::Array<float, kCount / 2> gated(cutlass::Array<float, kCount> values) const {
        with_activation(params_.activation, [&](auto function) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kCount / 2; ++i) values[nth_gate<kApart>(i)] = function(values[nth_gate<kApart>(i)]);
        });
        cutlass::Array<float, kCount / 2> outputs;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kCount / 2; ++i) outputs[i] = values[nth_gate<kApart>(i)] * values[nth_gate<kApart>(i) + kApart];
        return outputs;
    }

    // Outputs as a D of fp8 takes them. It has all of them, or those that `exists` says.
    template <int kCount, class Exists>
    CUTLASS_DEVICE void quantize(cutlass::Array<float, kCount>& outputs, bool all, Exists const& exists) {
        if (params_.amax_d) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kCount; ++i) {
                if (all || exists(i)) amax_ = cutlass::maximum<float, true>{}(amax_, fabsf(outputs[i]));
            }
        }
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kCount; ++i) outputs[i] *= scale_d_;
    }

    // Called by whole warps.
    CUTLASS_DEVICE void note_amax() const {
        if (!params_.amax_d) return;
        uint32_t const largest = __reduce_max_sync(0xffffffff, __float_as_uint(amax_));
        if (threadIdx.x % 32 == 0) atomicMax(params_.amax_d, largest);
    }

    // Notes the time; the tile's place among all tiles.
    CUTLASS_DEVICE void end(int tile_m, int tile_n) const {
        if (!params_.records.records) return;
        og_tile_record* record = params_.records.at(tile_m, tile_n, params_.records.splits - 1);
        if (record) record->done = global_timer();
    }

private:
    // One by one: this code exists once for every part of a tile.
    template <int kCount, class PlaceOf>
    CUTLASS_DEVICE void add_c(cutlass::Array<float, kCount>& values, PlaceOf const& place_of) const {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kCount; ++i) {
            Place at = place_of(i);
            int m = tile_.row + at.row, n = tile_.column + at.column;
            if (m < tile_.rows && n < tile_.columns) {
                values[i] += params_.beta * float(load_from_l2(params_.c + int64_t(m) * params_.ldc + n));
            }
        }
    }

    EpilogueParams<Element> const& params_;
    Vectors& vectors_;
    Tile const& tile_;
    float alpha_;
    float scale_d_;
    float amax_ = 0;
};

}  // namespace overlap_gemm
