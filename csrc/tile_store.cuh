// How a tile of D leaves the registers of the warps that multiplied it.
//
// What belongs here: which element of D each sum is, and its way to memory. Elements of 16 bits go chunk by chunk through
// shared memory, from where TMA stores them; a warp group has two to four chunks of shared memory, and fills one while TMA
// reads the others. Elements of 32 bits go straight to memory: four or eight neighbouring threads fill a sector of 32 bytes.
// Invariant: a chunk of shared memory is written only after TMA has read what was in it; nothing outside D is written.
//
// Terms: a *strip* is 64 rows of the kernel's tile, what one warp group multiplies at a time; a chunk is some columns of a
// strip. Transposed, the kernel's rows are D's columns.
#pragma once

#include "cutlass/cutlass.h"
#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/tensor.hpp"
#include "cutlass/arch/barrier.h"
#include "cutlass/epilogue/collective/detail.hpp"

#include "epilogue.cuh"
#include "tma_matrix.h"

namespace overlap_gemm {

// `kGroups` warp groups share a tile, and `kSharers` blocks of a cluster load rows together. There are `kBuffers` chunks of
// shared memory for each group. A launch may have narrower tiles, by some 16 columns of the kernel, but not below `kLeast`.
template <class Element, class KernelTile, bool kTransposed, int kLeast, int kGroups, int kSharers, int kBuffers>
class TileStore {
public:
    static constexpr int kStripRows = 64;
    static constexpr int kTileM = cute::size<0>(KernelTile{});
    static constexpr int kTileN = cute::size<1>(KernelTile{});
    static constexpr int kStrips = kTileM / (kStripRows * kGroups);
    static_assert(kTileM % (kStripRows * kGroups) == 0);
    static constexpr int kRows = kTransposed ? kTileN : kTileM;
    static constexpr int kColumns = kTransposed ? kTileM : kTileN;

    // Columns of a chunk as the kernel sees them. Where tiles differ in width, the last chunk may be a half.
    static constexpr int kChunk = kTileN % 32 == 0 ? 32 : 16;
    static constexpr int kHalf = 16;
    static_assert(kTileN % kChunk == 0);
    static constexpr bool kVaries = kLeast != kTileN;
    static constexpr bool kHasHalves = kVaries && kChunk == 2 * kHalf;
    static constexpr bool kByTma = sizeof(Element) == 2;
    static constexpr int kChunkBytes = kByTma ? kChunk * kStripRows * 2 : 0;
    static_assert(kBuffers >= 2);

    // The columns of a row of D in a chunk of `columns` of the kernel's columns.
    static constexpr int columns_in_d(int columns) { return kTransposed ? kStripRows : columns; }

    using Epilogue = TileEpilogue<Element, kRows, kColumns, kSharers>;
    // What CUTLASS's kernels ask for. They move no C.
    using ElementC = void;
    using StrideC = cute::Stride<int64_t, cute::_1, int64_t>;
    using ElementD = Element;
    using StrideD = StrideC;

    struct Arguments {
        void* d = nullptr;
        int64_t ldd = 0;
        EpilogueParams<Element> epilogue;
    };
    struct Params {
        // Only with `kByTma`: of a chunk, and of half a chunk.
        cute::TmaDescriptor descriptor;
        cute::TmaDescriptor of_half;
        EpilogueParams<Element> epilogue;
        Element* d;
        int64_t ldd;
    };
    struct SharedStorage {
        // The swizzle pattern repeats every 1024 bytes.
        alignas(1024) char chunks[kGroups][kBuffers][kChunkBytes == 0 ? 1 : kChunkBytes];
    };
    using Vectors = typename Epilogue::Vectors;

    template <class ProblemShape>
    static Params to_underlying_arguments(ProblemShape const& shape, Arguments const& arguments, void*) {
        auto [m, n, k, l] = shape;
        Params params{{}, {}, arguments.epilogue, static_cast<Element*>(arguments.d), arguments.ldd};
        if constexpr (kByTma) {
            auto descriptor = [&](int columns) {
                return tma_matrix<Element>("D", arguments.d, kTransposed ? n : m, kTransposed ? m : n, arguments.ldd,
                                           kTransposed ? columns : kStripRows, columns_in_d(columns));
            };
            params.descriptor = descriptor(kChunk);
            if (arguments.epilogue.width % kChunk != 0) params.of_half = descriptor(kHalf);
        }
        return params;
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
    static cutlass::Status initialize_workspace(ProblemShape const&, Arguments const&, void*, cudaStream_t,
                                                cutlass::CudaHostAdapter* = nullptr) {
        return cutlass::Status::kSuccess;
    }

    CUTLASS_DEVICE explicit TileStore(Params const& params) : params_(params) {}

    // Called by the threads of all warp groups that share the tile; `thread` counts them as the multiplication did.
    template <class ProblemShape, class BlockCoord, class Sums, class TiledMma, class Residue>
    CUTLASS_DEVICE void operator()(ProblemShape const& shape, KernelTile const&, BlockCoord const& block, Sums const& sums,
                                   TiledMma const&, Residue const&, int thread, char* shared) {
        static_assert(cute::size(Sums{}) == kStrips * kTileN / 2);
        auto& storage = *reinterpret_cast<SharedStorage*>(shared);
        auto [m_tile, n_tile, k_all, l_tile] = block;
        auto [m, n, k, l] = shape;
        int const width = kVaries ? params_.epilogue.width : kTileN;
        int const tile_m = int(kTransposed ? n_tile : m_tile), tile_n = int(kTransposed ? m_tile : n_tile);
        Tile tile;
        tile.row = tile_m * (kTransposed ? width : kTileM);
        tile.column = tile_n * (kTransposed ? kTileM : width);
        tile.rows = int(kTransposed ? n : m);
        tile.columns = int(kTransposed ? m : n);

        int const group = cutlass::canonical_warp_group_idx() - 1;
        bool const leads = is_leader();
        if (leads) wait_for_reads<0>();
        Epilogue epilogue(params_.epilogue, vectors(), tile);
        if (epilogue.has_vectors()) {
            // The vectors may still be read by the other group, for the tile before.
            sync_tile();
            epilogue.read_vectors(thread, kGroups * 128);
            sync_tile();
        } else {
            sync_group(group);
        }
        // Ping-pong's groups store one after the other, from the same shared memory. Groups that share a tile are not in the
        // order of their strips.
        int const part = kGroups == 1 ? 0 : __shfl_sync(0xffffffff, thread / 128, 0);
        auto store_all = [&](auto is_plain) {
            int buffer = 0;
            auto store_chunk = [&](auto columns, int strip, int column) {
                constexpr int kWidth = decltype(columns)::value;
                int const row = (strip * kGroups + part) * kStripRows;
                cutlass::Array<float, kWidth / 2> values;
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kWidth / 2; ++i) values[i] = sums(strip * kTileN / 2 + column / 2 + i);
                epilogue.apply(is_plain, values, [&](int i) { return place(row, column, i); });
                if constexpr (kByTma) {
                    char* to = storage.chunks[part][buffer];
                    buffer = buffer + 1 == kBuffers ? 0 : buffer + 1;
                    fill<kWidth>(to, cutlass::NumericArrayConverter<Element, float, kWidth / 2>{}(values));
                    // Behind the barrier the others fill the next buffer, which all but the last chunks have left.
                    if (leads) wait_for_reads<kBuffers - 2>();
                    cute::tma_store_fence();
                    sync_group(group);
                    auto const& descriptor = kWidth == kChunk ? params_.descriptor : params_.of_half;
                    if (leads) store(descriptor, tile, kTransposed ? column : row, kTransposed ? row : column, to);
                } else {
                    store(tile, row, column, values);
                }
            };
            CUTLASS_PRAGMA_UNROLL
            for (int strip = 0; strip < kStrips; ++strip) {
                CUTLASS_PRAGMA_UNROLL
                for (int column = 0; column < kTileN; column += kChunk) {
                    if (column + kChunk <= kLeast || column + kChunk <= width) {
                        store_chunk(cute::Int<kChunk>{}, strip, column);
                    } else if (kHasHalves && column < width) {
                        store_chunk(cute::Int<kHalf>{}, strip, column);
                    }
                }
            }
        };
        // Twice, so that the usual tile's code is short: fetching instructions takes longer than they do.
        if (epilogue.is_plain()) store_all(cute::true_type{}); else store_all(cute::false_type{});
        if (thread == 0) epilogue.end(tile_m, tile_n);
    }

    // That what was stored has left shared memory.
    CUTLASS_DEVICE static void finish() {
        if (is_leader()) wait_for_reads<0>();
    }

private:
    // Not in `SharedStorage`: rounded up to its alignment, that would take a stage from some kernels.
    CUTLASS_DEVICE static Vectors& vectors() {
        return *reinterpret_cast<Vectors*>(reinterpret_cast<char*>(&block_waits()) - sizeof(Vectors));
    }

    // Always the same thread of a group: who waits for the reads is who began them.
    CUTLASS_DEVICE static bool is_leader() {
        return kByTma && cutlass::canonical_warp_idx_sync() % 4 == 0 && cute::elect_one_sync();
    }
    // Waits until TMA has read all chunks but the last `kUnread` that were given to it.
    template <int kUnread>
    CUTLASS_DEVICE static void wait_for_reads() {
        cute::tma_store_wait<kUnread>();
    }

    CUTLASS_DEVICE static void sync_tile() {
        cutlass::arch::NamedBarrier::sync(kGroups * 128, cutlass::arch::ReservedNamedBarriers::EpilogueBarrier);
    }
    // CUTLASS's barriers for sums of slices, which are added before.
    CUTLASS_DEVICE static void sync_group(int group) {
        if constexpr (kByTma) {
            using cutlass::arch::ReservedNamedBarriers;
            int first = int(ReservedNamedBarriers::StreamkBarrier0);
            cutlass::arch::NamedBarrier::sync(128, static_cast<ReservedNamedBarriers>(first + group));
        }
    }

    // The place in the tile of D of a thread's sum `i` from the kernel's row and column on: what the PTX manual says of wgmma.
    CUTLASS_DEVICE static Place place(int row, int column, int i) {
        int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
        row += 16 * warp + lane / 4 + (i & 2) * 4;
        column += i / 4 * 8 + lane % 4 * 2 + i % 2;
        return kTransposed ? Place{column, row} : Place{row, column};
    }

    // Four matrices of 8 x 8 at a time: two along the kernel's rows, two along its columns.
    template <int kWidth>
    CUTLASS_DEVICE static void fill(char* chunk, cutlass::Array<Element, kWidth / 2> const& values) {
        constexpr int kRowBytes = columns_in_d(kWidth) * 2;
        int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32 % 4;
        auto* pairs = reinterpret_cast<uint32_t const*>(values.data());
        uint32_t base = cute::cast_smem_ptr_to_uint(chunk);
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < kWidth; column += 16) {
            // This lane says where a row of one of the four lies.
            int along_rows = lane / 8 % 2, along_columns = column / 8 + lane / 16;
            int row = kTransposed ? along_columns * 8 + lane % 8 : warp * 16 + along_rows * 8 + lane % 8;
            int unit = kTransposed ? warp * 2 + along_rows : along_columns;
            int swizzled = unit ^ (row * kRowBytes / 128 % (kRowBytes / 16));
            uint32_t to = base + uint32_t(row * kRowBytes + swizzled * 16);
            uint32_t const* from = pairs + column / 4;
            if constexpr (kTransposed) {
                asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                             "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                             : "memory");
            } else {
                asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to),
                             "r"(from[0]), "r"(from[1]), "r"(from[2]), "r"(from[3])
                             : "memory");
            }
        }
    }

    CUTLASS_DEVICE static void store(cute::TmaDescriptor const& descriptor, Tile const& tile, int row, int column,
                                     char const* from) {
        row += tile.row;
        column += tile.column;
        if (row < tile.rows && column < tile.columns) {
            cute::SM90_TMA_STORE_2D::copy(&descriptor, from, column, row);
        }
        cute::tma_store_arrive();
    }

    template <int kCount>
    CUTLASS_DEVICE void store(Tile const& tile, int row, int column, cutlass::Array<float, kCount> const& values) const {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kCount; ++i) {
            Place at = place(row, column, i);
            at.row += tile.row;
            at.column += tile.column;
            if (at.row < tile.rows && at.column < tile.columns) {
                params_.d[int64_t(at.row) * params_.ldd + at.column] = Element(values[i]);
            }
        }
    }

    Params const& params_;
};

// The same, as CUTLASS's kernels call it.
template <class Store>
class StoreForCutlass : public cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<Store> {
public:
    using Base = cutlass::epilogue::collective::detail::Sm90TmaWarpSpecializedAdapter<Store>;
    using Base::Base;

    CUTLASS_DEVICE static void prefetch_tma_descriptors(typename Store::Params const& params) {
        if constexpr (Store::kByTma) cute::prefetch_tma_descriptor(&params.descriptor);
    }

    // Before another group's tile takes the shared memory, and before the block ends.
    template <class LoadState, class StoreState>
    CUTLASS_DEVICE auto store_tail(typename Base::LoadPipeline, LoadState load, typename Base::StorePipeline,
                                   StoreState store) {
        Store::finish();
        return cute::make_tuple(load, store);
    }
};

}  // namespace overlap_gemm
