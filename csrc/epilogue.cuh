// From sums to outputs: D = activation(alpha * scale_a[m] * scale_b[n] * sum + beta * C + bias[n]).
//
// What belongs here: the arithmetic between the accumulators and D, as one node of CUTLASS's
// epilogue (which moves D: registers, shared memory, TMA store). What is not asked for costs one
// uniform branch.
// Invariant: per-row and per-column values are in shared memory before the first use in a tile;
// elements of C and entries of vectors are only read inside the matrix; a block that has given up
// waiting stores NaN. C, bias and scales are read from L2: this kernel may start before the one that writes them
// has ended, and the SM's own cache may still hold lines from before they were written.
#pragma once

#include "cutlass/cutlass.h"
#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"
#include "cute/tensor.hpp"
#include "cutlass/epilogue/fusion/sm90_visitor_tma_warpspecialized.hpp"

#include "gathering_mainloop.cuh"

namespace overlap_gemm {

// Everything but the sums; kernel parameters.
template <class Element>
struct EpilogueParams {
    float const* scale_a = nullptr;
    float const* scale_b = nullptr;
    Element const* bias = nullptr;
    Element const* c = nullptr;
    int64_t ldc = 0;
    float alpha = 1;
    float beta = 0;
    int32_t activation = OG_ACTIVATION_NONE;
    bool scale_a_per_row = false;
    bool scale_b_per_column = false;
    // Whether this launch waits for chunks, and so can give up.
    bool can_stop = false;
    // Whether D is alpha times the sums and nothing else.
    bool plain = true;
    RecordTable records;
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

// `kSharers` blocks of a cluster load rows together.
template <class Element, class KernelTile, bool kTransposed, int kSharers>
struct EpilogueNode {
    static constexpr int kRows = cute::size<kTransposed ? 1 : 0>(KernelTile{});
    static constexpr int kColumns = cute::size<kTransposed ? 0 : 1>(KernelTile{});

    using Arguments = EpilogueParams<Element>;
    using Params = EpilogueParams<Element>;
    struct SharedStorage {
        float row_scale[kRows];
        float column_scale[kColumns];
        float bias[kColumns];
    };

    template <class ProblemShape>
    static Params to_underlying_arguments(ProblemShape const&, Arguments const& arguments, void*) {
        return arguments;
    }
    template <class ProblemShape>
    static bool can_implement(ProblemShape const&, Arguments const&) {
        return true;
    }
    template <class ProblemShape>
    static size_t get_workspace_size(ProblemShape const&, Arguments const&) {
        return 0;
    }
    template <class ProblemShape>
    static cutlass::Status initialize_workspace(ProblemShape const&, Arguments const&, void*,
                                                cudaStream_t, cutlass::CudaHostAdapter* = nullptr) {
        return cutlass::Status::kSuccess;
    }

    CUTLASS_HOST_DEVICE EpilogueNode() {}
    CUTLASS_HOST_DEVICE EpilogueNode(Params const& params, SharedStorage const& storage)
        : params(&params), storage(const_cast<SharedStorage*>(&storage)) {}

    // C is read by the threads that need it: no warp loads anything for the epilogue.
    CUTLASS_DEVICE bool is_producer_load_needed() const { return false; }
    CUTLASS_DEVICE bool is_C_load_needed() const { return false; }

    template <class... Args>
    CUTLASS_DEVICE auto get_producer_load_callbacks(
        cutlass::epilogue::fusion::ProducerLoadArgs<Args...> const&) {
        return cutlass::epilogue::fusion::EmptyProducerLoadCallbacks{};
    }

    // `Coords` gives each element of a thread its place relative to the thread's first.
    template <class Coords>
    struct Callbacks : cutlass::epilogue::fusion::EmptyConsumerStoreCallbacks {
        Params const& params;
        SharedStorage& storage;
        Coords coords;
        // The tile's first row and column, the thread's first within the tile, and the matrix's end.
        int row0, column0, row, column, rows, columns;
        int thread, threads;
        float alpha;

        CUTLASS_DEVICE Callbacks(Params const& p, SharedStorage& s, Coords const& c)
            : params(p), storage(s), coords(c) {}

        CUTLASS_DEVICE bool has_vectors() const {
            return params.scale_a_per_row || params.scale_b_per_column || params.bias;
        }

        CUTLASS_DEVICE void begin() {
            alpha = params.alpha;
            if (params.scale_a && !params.scale_a_per_row) alpha *= load_from_l2(params.scale_a);
            if (params.scale_b && !params.scale_b_per_column) alpha *= load_from_l2(params.scale_b);
            if (params.can_stop && is_stopped<kSharers>()) alpha = __int_as_float(0x7fffffff);
            if (!has_vectors()) return;
            for (int i = thread; i < kRows; i += threads) {
                bool given = params.scale_a_per_row && row0 + i < rows;
                storage.row_scale[i] = given ? load_from_l2(params.scale_a + row0 + i) : 1.0f;
            }
            for (int i = thread; i < kColumns; i += threads) {
                bool inside = column0 + i < columns;
                bool given = params.scale_b_per_column && inside;
                storage.column_scale[i] = given ? load_from_l2(params.scale_b + column0 + i) : 1.0f;
                storage.bias[i] =
                    params.bias && inside ? float(load_from_l2(params.bias + column0 + i)) : 0.0f;
            }
        }

        CUTLASS_DEVICE bool begin_sync_needed() const { return has_vectors(); }

        // The plain case goes straight through: this code exists once for every part of a tile, and
        // jumping over the rest of it would cost more in instruction fetches than it computes.
        template <class Accumulator, int kCount>
        CUTLASS_DEVICE cutlass::Array<Element, kCount> visit(
            cutlass::Array<Accumulator, kCount> const& sums, int epi_v, int epi_m, int epi_n) {
            cutlass::Array<float, kCount> values;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kCount; ++i) values[i] = alpha * sums[i];
            if (__builtin_expect(!params.plain, 0)) finish(values, epi_v, epi_m, epi_n);
            return cutlass::NumericArrayConverter<Element, float, kCount>{}(values);
        }

        template <int kCount>
        CUTLASS_DEVICE void finish(cutlass::Array<float, kCount>& values, int epi_v, int epi_m,
                                   int epi_n) {
            using namespace cute;
            auto place = coords(_, _, _, epi_m, epi_n);
            auto row_of = [&](int i) {
                return get<kTransposed ? 1 : 0>(place(epi_v * kCount + i)) + row;
            };
            auto column_of = [&](int i) {
                return get<kTransposed ? 0 : 1>(place(epi_v * kCount + i)) + column;
            };
            if (has_vectors()) {
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kCount; ++i) {
                    values[i] *= storage.row_scale[row_of(i)] * storage.column_scale[column_of(i)];
                }
            }
            if (params.c) {
                // One by one: this code exists once for every part of a tile, and fetching more of it costs
                // products without C a per cent.
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kCount; ++i) {
                    int m = row0 + row_of(i), n = column0 + column_of(i);
                    if (m < rows && n < columns) {
                        values[i] += params.beta * float(load_from_l2(params.c + int64_t(m) * params.ldc + n));
                    }
                }
            }
            if (params.bias) {
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kCount; ++i) values[i] += storage.bias[column_of(i)];
            }
            switch (params.activation) {
                case OG_ACTIVATION_RELU: apply(Relu{}, values); break;
                case OG_ACTIVATION_GELU_TANH: apply(GeluTanh{}, values); break;
                case OG_ACTIVATION_SILU: apply(Silu{}, values); break;
            }
        }

        template <class Function, int kCount>
        CUTLASS_DEVICE static void apply(Function f, cutlass::Array<float, kCount>& values) {
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kCount; ++i) values[i] = f(values[i]);
        }

        CUTLASS_DEVICE void end() {
            if (!params.records.records || thread != 0) return;
            og_tile_record* record = params.records.at(row0 / kRows, column0 / kColumns,
                                                       params.records.splits - 1);
            if (record) record->done = global_timer();
        }
    };

    template <bool kReferenceSource, class... Args>
    CUTLASS_DEVICE auto get_consumer_store_callbacks(
        cutlass::epilogue::fusion::ConsumerStoreArgs<Args...> const& args) {
        using namespace cute;
        auto coords = args.tCcD;
        Callbacks<decltype(coords)> callbacks(*params, *storage, coords);
        auto [kernel_m, kernel_n, kernel_k, kernel_l] = args.problem_shape_mnkl;
        auto [tile_m, tile_n, tile_k, tile_l] = args.tile_coord_mnkl;
        // The residue of the thread's first element is its distance from the matrix's end.
        int first_m = int(tile_m) * int(size<0>(KernelTile{}));
        int first_n = int(tile_n) * int(size<1>(KernelTile{}));
        int own_m = int(kernel_m) - int(get<0>(args.residue_tCcD)) - first_m;
        int own_n = int(kernel_n) - int(get<1>(args.residue_tCcD)) - first_n;
        callbacks.row0 = kTransposed ? first_n : first_m;
        callbacks.column0 = kTransposed ? first_m : first_n;
        callbacks.row = kTransposed ? own_n : own_m;
        callbacks.column = kTransposed ? own_m : own_n;
        callbacks.rows = int(kTransposed ? kernel_n : kernel_m);
        callbacks.columns = int(kTransposed ? kernel_m : kernel_n);
        callbacks.thread = args.thread_idx;
        callbacks.threads = int(size(args.tiled_mma));
        return callbacks;
    }

    Params const* params = nullptr;
    SharedStorage* storage = nullptr;
};

}  // namespace overlap_gemm
