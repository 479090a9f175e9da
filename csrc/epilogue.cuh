// From sums to outputs: D = activation(alpha * scale_a[m] * scale_b[n] * sum + beta * C + bias[n]). Where the product is gated,
// D = activation(x) * y, where x and y are alpha * scale_a[m] * scale_b[n] * sum + bias[n] of two columns. In fp8, D is that value
// times scale_d, and the largest absolute value before scale_d is recorded (amax_d).
//
// What belongs here: the arithmetic of single values between the sums and D; tile_store.cuh says in which order, and moves D.
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
    // Whether rows or columns are scaled, or a bias is added.
    bool has_vectors = false;
    // Whether anything but a factor for all sums is asked for.
    bool changes_sums = false;
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
    // The bits of a float that is not negative. As integers, such bits have the order of the floats, and those of NaN are the
    // largest: so an integer's atomicMax suffices.
    uint32_t* amax_d = nullptr;
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

// x / (1 + 2^y). Denormals become zero: so small a power adds nothing to 1, and the reciprocal of so large a one, times x, is below
// 1e-35. Keeping them would take ten instructions in the place of two.
CUTLASS_DEVICE float over_one_and_power_of_two(float x, float y) {
    float power, reciprocal;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(power) : "f"(y));
    asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(reciprocal) : "f"(1.0f + power));
    return x * reciprocal;
}

constexpr float kLog2OfE = 1.4426950408889634f;

struct GeluTanh {
    // x (1 + tanh(y)) / 2 is x / (1 + exp(-2 y)), with y = sqrt(2 / pi) (x + 0.044715 x^3).
    CUTLASS_DEVICE float operator()(float x) const {
        constexpr float kFactor = -1.5957691216057308f * kLog2OfE;
        return over_one_and_power_of_two(x, x * (kFactor + kFactor * 0.044715f * (x * x)));
    }
};

struct Silu {
    CUTLASS_DEVICE float operator()(float x) const { return over_one_and_power_of_two(x, -kLog2OfE * x); }
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

    // What one thread loads from L2 for a tile. The constructor runs while the tile's last multiplications do, which take as long.
    // If K is cut into slices, it runs after the slices have been added.
    class Factors {
    public:
        Factors() = default;
        CUTLASS_DEVICE Factors(EpilogueParams<Element> const& params, Tile const& tile, int thread) : alpha_(params.alpha) {
            if (params.scale_a && !params.scale_a_per_row) alpha_ *= load_from_l2(params.scale_a);
            if (params.scale_b && !params.scale_b_per_column) alpha_ *= load_from_l2(params.scale_b);
            if (kIsFp8 && params.scale_d) scale_d_ = load_from_l2(params.scale_d);
            if (!params.has_vectors) return;
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

    // Whether `scale` would change anything. The compiler sees that all lanes of a warp agree.
    CUTLASS_DEVICE bool is_scaled() const { return !__all_sync(0xffffffff, alpha_ == 1.0f); }

    CUTLASS_DEVICE float scale(float sum) const { return alpha_ * sum; }

    // Where there are vectors, in place of `scale`.
    CUTLASS_DEVICE float scale_by_vectors(float sum, Place at) const {
        return sum * vectors_.row_factor[at.row] * vectors_.column_scale[at.column] + vectors_.bias[at.column];
    }

    CUTLASS_DEVICE float add_c(float value, Place at) const {
        int const m = tile_.row + at.row, n = tile_.column + at.column;
        if (m >= tile_.rows || n >= tile_.columns) return value;
        return value + params_.beta * float(load_from_l2(params_.c + int64_t(m) * params_.ldc + n));
    }

    // Whether the largest output is asked for; then each that D has is noted, before it is quantized.
    CUTLASS_DEVICE bool notes() const { return params_.amax_d != nullptr; }
    CUTLASS_DEVICE void note(float output) { amax_ = cutlass::maximum<float, true>{}(amax_, fabsf(output)); }

    // An output as a D of fp8 takes it.
    CUTLASS_DEVICE float quantize(float output) const { return output * scale_d_; }

    // Called by whole warps.
    CUTLASS_DEVICE void note_amax() const {
        if (!params_.amax_d) return;
        uint32_t const largest = __reduce_max_sync(0xffffffff, __float_as_uint(amax_));
        if (threadIdx.x % 32 == 0) atomicMax(params_.amax_d, largest);
    }

    // Records when the tile was done; (tile_m, tile_n) is its place among D's tiles.
    CUTLASS_DEVICE void end(int tile_m, int tile_n) const {
        if (!params_.records.records) return;
        og_tile_record* record = params_.records.at(tile_m, tile_n, params_.records.splits - 1);
        if (record) record->done = global_timer();
    }

private:
    EpilogueParams<Element> const& params_;
    Vectors& vectors_;
    Tile const& tile_;
    float alpha_;
    float scale_d_;
    float amax_ = 0;
};

}  // namespace overlap_gemm
