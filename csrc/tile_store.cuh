// How a tile of D leaves the registers of the warps that multiply it, and how C and other ranks' sums get into them before.
//
// What belongs here: which element of D each sum is, and its way to and from memory. Elements of 16 bits go chunk by chunk
// through shared memory, from where TMA stores them. Each warp does so for itself, and waits for no other: it has two to four
// chunks of shared memory, and fills one while TMA reads the others. Elements of 8 bits go through shared memory, too, but the
// warp's lanes store them, 8 bytes at a time: TMA stores no less than 16 in a row, and those of a chunk may be 8. Elements of 32 bits
// go straight to memory: four or eight neighbouring threads fill a sector of 32 bytes.
// Where the product is gated, both of a pair of columns are in one thread's sums, and a chunk has half as many columns of D.
// Invariant: a chunk of shared memory is written only after what was in it has been read; nothing outside D is written.
//
// Terms: a *strip* is 64 rows of the kernel's tile, what one warp group multiplies at a time, 16 in each warp; a chunk is some
// columns of a warp's rows. Transposed, the kernel's rows are D's columns.
#pragma once

#include <algorithm>

#include "cutlass/cutlass.h"
#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/tensor.hpp"

#include "epilogue.cuh"
#include "named_barriers.h"
#include "tma_matrix.h"

namespace overlap_gemm {

// kGroupsM warp groups share a tile's rows, or kGroupsN its columns; the other is 1. `kSharers` blocks of a cluster load rows
// together. There are `kBuffers` chunks of shared memory for each warp. A launch may have narrower tiles, but not below
// `kLeast`.
template <class Element, class KernelTile, bool kTransposed, int kLeast, int kGroupsM, int kGroupsN, int kSharers, int kBuffers>
class TileStore {
public:
    static constexpr int kStripRows = 64;
    static constexpr int kWarpRows = 16;
    static constexpr int kGroupWarps = kStripRows / kWarpRows;
    static constexpr int kTileM = cute::size<0>(KernelTile{});
    static constexpr int kTileN = cute::size<1>(KernelTile{});
    static constexpr int kGroups = kGroupsM * kGroupsN;
    static_assert(kGroupsM == 1 || kGroupsN == 1);
    static constexpr int kStrips = kTileM / (kStripRows * kGroupsM);
    static constexpr int kPartN = kTileN / kGroupsN;
    static_assert(kTileM % (kStripRows * kGroupsM) == 0 && kTileN % kGroupsN == 0);
    static constexpr int kRows = kTransposed ? kTileN : kTileM;
    static constexpr int kColumns = kTransposed ? kTileM : kTileN;

    static constexpr bool kVaries = kLeast != kTileN;
    static constexpr bool kByTma = sizeof(Element) == 2;
    // Columns of a chunk as the kernel sees them. Where tiles differ in width, the last chunk may have fewer.
    static constexpr int kChunk = sizeof(Element) <= 2 && kPartN % 32 == 0 ? 32 : 16;
    static_assert(kPartN % kChunk == 0);
    // Four 8 x 8 matrices of 16 bits for `stmatrix`, at least.
    static constexpr int kChunkBytes = sizeof(Element) <= 2 ? std::max(kChunk * kWarpRows * int(sizeof(Element)), 512) : 0;
    // The columns of D in a chunk.
    static constexpr int kChunkColumns = kTransposed ? kWarpRows : kChunk;
    static constexpr int kChunkRowBytes = kChunkColumns * int(sizeof(Element));
    static constexpr int kPairColumns = 2 * OG_GATE_COLUMNS;
    // How far apart a thread's sums of a gate and of what it gates are: `place` says where each is.
    static constexpr int kGateApart = kTransposed ? OG_GATE_COLUMNS / 4 : OG_GATE_COLUMNS / 2;
    static_assert(kBuffers >= 2);
    static_assert(sizeof(Element) <= 2 || !kVaries, "elements of 32 bits are stored as wide as the widest tile");

    // Whether other ranks' sums can be added to tiles of that width: with more sums a thread, too few registers are left.
    static constexpr bool adds_others(int width) { return kByTma && kTileM * width <= 128 * 128 * kGroups; }

    // Whether products can be gated with tiles of that width: then no pair of columns is cut apart.
    static constexpr bool gates(int width) { return kTransposed || width / kGroupsN % kPairColumns == 0; }

    using Epilogue = TileEpilogue<Element, kRows, kColumns, kGroups * 128, kSharers>;
    // Matrices that are added to the sums: those of og_other_sums, `slots` of them, then C times beta, if it can be.
    struct Addends {
        int32_t count = 0;
        int32_t slots = 0;
        Element const* first_slot = nullptr;
        int64_t slot_pitch = 0;
        int64_t pitch = 0;
        og_stop const* stop = nullptr;
        uint32_t const* epoch = nullptr;
        AddendOf<Element> const* c = nullptr;
        int64_t ldc = 0;
        float beta = 0;
    };
    struct Params {
        // Only with `kByTma`: of a chunk, and of the last one where that has fewer columns.
        cute::TmaDescriptor whole;
        cute::TmaDescriptor rest;
        EpilogueParams<Element> epilogue;
        Element* d;
        int64_t ldd;
        int32_t rows;
        int32_t columns;
        Addends addends;
    };
    struct SharedStorage {
        // Where a pattern begins follows from the address.
        alignas(1024) char chunks[kGroups][kGroupWarps][kBuffers][kChunkBytes == 0 ? 1 : kChunkBytes];
    };
    using Vectors = typename Epilogue::Vectors;
    using Factors = typename Epilogue::Factors;

    // `rows` and `columns` of A B.
    static Params encode(EpilogueParams<Element> const& epilogue, og_other_sums const* others, void* d, int64_t ldd, int64_t rows,
                         int64_t columns) {
        Params params{{}, {}, epilogue, static_cast<Element*>(d), ldd, int32_t(rows), int32_t(columns), {}};
        Addends& addends = params.addends;
        if (others) {
            addends.count = addends.slots = others->count;
            addends.first_slot = static_cast<Element const*>(others->slots);
            addends.slot_pitch = others->slot_pitch;
            addends.pitch = others->pitch;
            addends.stop = others->stop;
            addends.epoch = others->epoch;
        }
        // Far faster than element by element behind the sums, and the same where these are not scaled.
        if (adds_others(kLeast) && epilogue.c && epilogue.alpha == 1 && !epilogue.scale_a && !epilogue.scale_b) {
            ++addends.count;
            addends.c = epilogue.c;
            addends.ldc = epilogue.ldc;
            addends.beta = epilogue.beta;
            params.epilogue.c = nullptr;
        }
        params.epilogue.settle();
        if constexpr (kByTma) {
            int const columns_each = epilogue.gated ? 2 : 1;
            auto descriptor = [&](int chunk) {
                return tma_matrix<Element>("D", d, rows, columns / columns_each, ldd, kTransposed ? chunk : kWarpRows,
                                           kChunkColumns, (kTransposed ? kWarpRows : chunk) / columns_each);
            };
            params.whole = descriptor(kChunk);
            int const rest = epilogue.width / kGroupsN % kChunk;
            if (rest != 0) params.rest = descriptor(rest);
        }
        return params;
    }

    // Called by one thread of a block.
    CUTLASS_DEVICE static void prefetch(Params const& params) {
        if constexpr (kByTma) cute::prefetch_tma_descriptor(&params.whole);
    }

    CUTLASS_DEVICE TileStore(Params const& params, SharedStorage& storage, Vectors& vectors)
        : params_(params), storage_(storage), vectors_(vectors) {}

    // What `store` needs from L2 for that tile. Called once the tile's last step has been waited for: then the kernels before
    // have ended.
    CUTLASS_DEVICE Factors factors(int32_t m_tile, int32_t n_tile, int thread) const {
        return Factors(params_.epilogue, tile_at(m_tile, n_tile), thread);
    }

    // Stores tile (m_tile, n_tile) of the kernel's tiles, with what is added to its sums. Called by the threads of all warp
    // groups that share it; `thread` counts them as the multiplication did.
    template <class Sums>
    CUTLASS_DEVICE void store(int32_t m_tile, int32_t n_tile, Sums& sums, Factors const& factors, int thread) {
        static_assert(cute::size(Sums{}) == kStrips * kPartN / 2);
        Tile const tile = tile_at(m_tile, n_tile);
        bool const leads = is_leader();
        wait_for_reads();
        Epilogue epilogue(params_.epilogue, vectors_, tile, factors);
        if (epilogue.has_vectors()) {
            epilogue.share_vectors(factors, thread);
            sync_tile();
        }
        // Behind the leader's wait.
        __syncwarp();
        int const part_width = width() / kGroupsN;
        Place const first = first_of(thread);
        uint32_t const chunks = cute::cast_smem_ptr_to_uint(storage_.chunks[part_of(thread)][warp()]);
        if constexpr (adds_others(kLeast)) {
            if (params_.addends.count > 0) add(tile, first, chunks, sums);
        }
        epilogue.with_finish([&](auto finish) {
            uint32_t chunk = chunks;
            auto store_chunk = [&](int strip, int column) {
                int const row = first.row + strip * kGroupsM * kStripRows;
                cutlass::Array<float, kChunk / 2> values;
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kChunk / 2; ++i) values[i] = sums(strip * kPartN / 2 + column / 2 + i);
                constexpr bool kGated = decltype(finish)::value == Finish::kGated;
                epilogue.template apply<decltype(finish)::value>(
                    values, [&](int i) { return place(row, first.column + column, i); });
                auto pass_on = [&](auto outputs) {
                    Place const at{row, first.column + column};
                    if constexpr (kByTma) {
                        auto const rounded = cutlass::NumericArrayConverter<Element, float, decltype(outputs)::kElements>{}(outputs);
                        if constexpr (kGated) {
                            fill_gated(chunk, rounded);
                        } else {
                            fill(chunk, rounded);
                        }
                    } else if constexpr (kChunkBytes != 0) {
                        store_by_lanes<kGated>(epilogue, tile, at, part_width - column, chunk, outputs);
                    } else {
                        store<kGated>(tile, row, first.column + column, outputs);
                    }
                };
                if constexpr (kGated) {
                    pass_on(epilogue.template gated<kGateApart>(values));
                } else {
                    pass_on(values);
                }
                if constexpr (kByTma) {
                    cute::tma_store_fence();
                    // All but the last chunks have left the next buffer, which the warp fills behind this.
                    cute::tma_store_wait<kBuffers - 2>();
                    __syncwarp();
                    auto const& descriptor = column + kChunk <= part_width ? params_.whole : params_.rest;
                    if (leads) store(descriptor, tile, row, first.column + column, chunk, kGated ? 2 : 1);
                }
                if constexpr (kChunkBytes != 0) {
                    chunk = chunk + kChunkBytes == chunks + kBuffers * kChunkBytes ? chunks : chunk + kChunkBytes;
                }
            };
            CUTLASS_PRAGMA_UNROLL
            for (int strip = 0; strip < kStrips; ++strip) {
                CUTLASS_PRAGMA_UNROLL
                for (int column = 0; column < kPartN; column += kChunk) {
                    if (column < kLeast / kGroupsN || column < part_width) store_chunk(strip, column);
                }
            }
        });
        if constexpr (Epilogue::kIsFp8) epilogue.note_amax();
        // All have read the vectors, and the next tile's may come: this group's or the other's. For the other's the end of this
        // turn would do, but racecheck does not follow `bar.arrive`.
        if (epilogue.has_vectors()) sync_tile();
        if (thread == 0) epilogue.end(kTransposed ? n_tile : m_tile, kTransposed ? m_tile : n_tile);
    }

    // Until TMA has read all that this thread gave to it: nothing, if it is not the leader.
    CUTLASS_DEVICE static void wait_for_reads() {
        if constexpr (kByTma) cute::tma_store_wait<0>();
    }

private:
    // Always the same thread of a warp: who waits for the reads is who began them.
    CUTLASS_DEVICE static bool is_leader() { return kByTma && cute::elect_one_sync(); }
    CUTLASS_DEVICE int width() const { return kVaries ? params_.epilogue.width : kTileN; }
    CUTLASS_DEVICE Tile tile_at(int32_t m_tile, int32_t n_tile) const {
        int const kernel_row = m_tile * kTileM, kernel_column = n_tile * width();
        return {kTransposed ? kernel_column : kernel_row, kTransposed ? kernel_row : kernel_column, params_.rows, params_.columns};
    }
    // Which part of a shared tile is this thread's group's.
    CUTLASS_DEVICE static int part_of(int thread) { return kGroups == 1 ? 0 : __shfl_sync(0xffffffff, thread / 128, 0); }
    // The kernel's row and column where its warp's part begins.
    CUTLASS_DEVICE Place first_of(int thread) const {
        int const part = part_of(thread);
        return {(kGroupsM == 1 ? 0 : part * kStripRows) + warp() * kWarpRows, kGroupsN == 1 ? 0 : part * (width() / kGroupsN)};
    }
    // The warp's place in its group.
    CUTLASS_DEVICE static int warp() { return cutlass::canonical_warp_idx_sync() % kGroupWarps; }

    CUTLASS_DEVICE static void sync_tile() { meet_at<kTileBarrier, kGroups * 128>(); }

    // The place in the tile of D of a thread's sum `i` from the kernel's row and column on: what the PTX manual says of wgmma.
    CUTLASS_DEVICE static Place place(int row, int column, int i, int lane = int(threadIdx.x) % 32) {
        row += lane / 4 + (i & 2) * 4;
        column += i / 4 * 8 + lane % 4 * 2 + i % 2;
        return kTransposed ? Place{column, row} : Place{row, column};
    }

    // Calls `f` with the four-matrix pieces of a chunk in shared memory, 8 x 8 elements each, two along the kernel's rows, two
    // along its columns: the piece's first value of a thread, and where this lane's row of one of the four lies.
    template <class F>
    CUTLASS_DEVICE static void each_piece(uint32_t chunk, F f) {
        int lane = int(threadIdx.x) % 32;
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < kChunk; column += 16) {
            int along_rows = lane / 8 % 2, along_columns = column / 8 + lane / 16;
            int row = (kTransposed ? along_columns : along_rows) * 8 + lane % 8;
            f(column / 2, chunk + unit_at(row, kTransposed ? along_rows : along_columns));
        }
    }
    // Where 16 bytes of a chunk's row lie.
    CUTLASS_DEVICE static uint32_t unit_at(int row, int unit) {
        int swizzled = unit ^ (row * kChunkRowBytes / 128 % (kChunkRowBytes / 16));
        return uint32_t(row * kChunkRowBytes + swizzled * 16);
    }

    CUTLASS_DEVICE static void fill(uint32_t chunk, cutlass::Array<Element, kChunk / 2> const& values) {
        auto* pairs = reinterpret_cast<uint32_t const*>(values.data());
        each_piece(chunk, [&](int first, uint32_t to) {
            uint32_t const* from = pairs + first / 2;
            store_matrices(to, from[0], from[1], from[2], from[3]);
        });
    }

    // The same of a gated product: rows are as far apart, and have half as many columns. TMA does not store the other half, in
    // which values are written again.
    CUTLASS_DEVICE static void fill_gated(uint32_t chunk, cutlass::Array<Element, kChunk / 4> const& values) {
        auto* pairs = reinterpret_cast<uint32_t const*>(values.data());
        each_piece(chunk, [&](int first, uint32_t to) {
            if constexpr (kTransposed) {
                uint32_t const* from = pairs + first / 4;
                store_matrices(to, from[0], from[0], from[1], from[1]);
            } else {
                constexpr int kOther = kChunk == 32 ? 2 : 0;
                if (first == 0) store_matrices(to, pairs[0], pairs[1], pairs[kOther], pairs[kOther + 1]);
            }
        });
    }

    CUTLASS_DEVICE static void store_matrices(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
        if constexpr (kTransposed) {
            asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b),
                         "r"(c), "r"(d)
                         : "memory");
        } else {
            asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(a), "r"(b), "r"(c),
                         "r"(d)
                         : "memory");
        }
    }

    // The other way round than `fill`.
    CUTLASS_DEVICE static cutlass::Array<Element, kChunk / 2> taken_from(uint32_t chunk) {
        cutlass::Array<Element, kChunk / 2> values;
        auto* pairs = reinterpret_cast<uint32_t*>(values.data());
        each_piece(chunk, [&](int first, uint32_t from) {
            uint32_t* to = pairs + first / 2;
            if constexpr (kTransposed) {
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                             : "r"(from)
                             : "memory");
            } else {
                asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                             : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
                             : "r"(from)
                             : "memory");
            }
        });
        return values;
    }

    // Adds the addends, chunk by chunk through the shared memory that D's chunks take later: while one is added, the next ones
    // arrive. They are read from L2: this kernel may have begun before they were written (epilogue.cuh).
    template <class Sums>
    CUTLASS_DEVICE void add(Tile const& tile, Place first, uint32_t chunks, Sums& sums) const {
        constexpr int kInRow = kPartN / kChunk, kChunks = kStrips * kInRow;
        Addends const& addends = params_.addends;
        int const part_width = width() / kGroupsN;
        bool const is_given_up =
            addends.stop && load_relaxed_gpu(&addends.stop->given_up) == given_up_at(load_relaxed_system(addends.epoch));
        float const nothing_or_nan = is_given_up ? __int_as_float(0x7fffffff) : 0.0f;
        CUTLASS_PRAGMA_NO_UNROLL
        for (int32_t nth_addend = 0; nth_addend < addends.count; ++nth_addend) {
            // Else the compiler keeps every chunk's place for the next addend, and registers spill.
            asm volatile("" : "+r"(first.row), "+r"(first.column));
            bool const is_c = nth_addend == addends.slots;
            Element const* from = is_c ? addends.c : addends.first_slot + nth_addend * addends.slot_pitch;
            int64_t const pitch = is_c ? addends.ldc : addends.pitch;
            float const factor = is_c ? addends.beta : 1.0f;
            auto exists = [&](int nth) {
                int const at = nth % kInRow * kChunk;
                return nth < kChunks && (at < kLeast / kGroupsN || at < part_width);
            };
            auto row_of = [&](int nth) { return first.row + nth / kInRow * kGroupsM * kStripRows; };
            auto column_of = [&](int nth) { return first.column + nth % kInRow * kChunk; };
            auto fetch = [&](int nth) {
                if (exists(nth)) fetch_chunk(from, pitch, tile, row_of(nth), column_of(nth), chunks + nth % kBuffers * kChunkBytes);
                asm volatile("cp.async.commit_group;" ::: "memory");
            };
            CUTLASS_PRAGMA_UNROLL
            for (int nth = 0; nth < kBuffers - 1; ++nth) fetch(nth);
            CUTLASS_PRAGMA_UNROLL
            for (int nth = 0; nth < kChunks; ++nth) {
                fetch(nth + kBuffers - 1);
                asm volatile("cp.async.wait_group %0;" ::"n"(kBuffers - 1) : "memory");
                __syncwarp();
                if (exists(nth)) {
                    auto theirs = taken_from(chunks + nth % kBuffers * kChunkBytes);
                    CUTLASS_PRAGMA_UNROLL
                    for (int i = 0; i < kChunk / 2; ++i) {
                        sums(nth / kInRow * kPartN / 2 + nth % kInRow * kChunk / 2 + i) += factor * float(theirs[i]) + nothing_or_nan;
                    }
                }
                // Before another fetches into this buffer.
                __syncwarp();
            }
        }
    }

    // Lets a chunk of a matrix that lies as D does come to shared memory, zeros where D has no elements. Row and column are the
    // kernel's, in its tile.
    CUTLASS_DEVICE static void fetch_chunk(Element const* from, int64_t pitch, Tile const& tile, int kernel_row, int kernel_column,
                                           uint32_t chunk) {
        constexpr int kUnits = kChunkRowBytes / 16, kElements = 16 / int(sizeof(Element));
        int lane = int(threadIdx.x) % 32;
        // Computed again for each chunk: the places of all would take too many registers.
        asm volatile("" : "+r"(lane));
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kChunkBytes / 16 / 32; ++i) {
            int const row = (i * 32 + lane) / kUnits, unit = (i * 32 + lane) % kUnits;
            int const m = tile.row + (kTransposed ? kernel_column : kernel_row) + row;
            int const n = tile.column + (kTransposed ? kernel_row : kernel_column) + unit * kElements;
            bool const exists = m < tile.rows && n < tile.columns;
            auto const* address = exists ? from + m * pitch + n : from;
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(chunk + unit_at(row, unit)), "l"(address),
                         "r"(exists ? 16 : 0)
                         : "memory");
        }
    }

    // Row and column are the kernel's, in its tile; of `columns_each` of them D has one. TMA leaves out what lies outside D.
    CUTLASS_DEVICE static void store(cute::TmaDescriptor const& descriptor, Tile const& tile, int kernel_row, int kernel_column,
                                     uint32_t chunk, int columns_each) {
        int const row = tile.row + (kTransposed ? kernel_column : kernel_row);
        int const column = (tile.column + (kTransposed ? kernel_row : kernel_column)) / columns_each;
        asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %2}], [%3];" ::"l"(&descriptor),
                     "r"(column), "r"(row), "r"(chunk)
                     : "memory");
        cute::tma_store_arrive();
    }

    template <bool kGated, int kCount>
    CUTLASS_DEVICE void store(Tile const& tile, int row, int column, cutlass::Array<float, kCount> const& values) const {
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kCount; ++i) {
            // Of a pair of columns, the gate's place.
            Place at = place(row, column, kGated ? nth_gate<kGateApart>(i) : i);
            at.row += tile.row;
            at.column += tile.column;
            if (at.row < tile.rows && at.column < tile.columns) {
                params_.d[int64_t(at.row) * params_.ldd + column_of_d<kGated>(at.column)] = Element(values[i]);
            }
        }
    }

    // Of a column of A B; of a gate's, where the product is gated.
    template <bool kGated>
    CUTLASS_DEVICE static int column_of_d(int column) {
        return kGated ? column / kPairColumns * OG_GATE_COLUMNS + column % OG_GATE_COLUMNS : column;
    }

    // Elements of 8 bits: each lane gives pairs of neighbours, those of two blocks of 8 of the kernel's columns at a time. It gets
    // 16 bytes back, a line of a matrix, and stores half of them: one of two blocks of D's columns or, transposed, of two rows.
    // Lanes store neighbouring pieces at a time, so that a row's are written together. (Where widths are in steps of 8, no larger
    // pieces have the same alignment in all tiles.) The chunk begins at the kernel's row and column `first` in its tile; its part
    // has `columns` columns from there on.
    template <bool kGated, int kCount>
    CUTLASS_DEVICE void store_by_lanes(Epilogue& epilogue, Tile const& tile, Place first, int columns, uint32_t chunk,
                                       cutlass::Array<float, kCount> outputs) const {
        constexpr int kColumnsEach = kGated ? 2 : 1, kPiece = 8;
        // A thread has outputs in two of the kernel's rows 8 apart, unless these are gates and what they gate.
        constexpr int kHalves = kGated && kTransposed ? 1 : 2;
        constexpr int kBlocks = kCount / 2 / kHalves, kPieces = kBlocks * kHalves * 8;
        int lane = int(threadIdx.x) % 32;
        // Computed again for each chunk: the places of all would take too many registers.
        asm volatile("" : "+r"(lane), "+r"(first.row), "+r"(first.column));
        int const row = tile.row + (kTransposed ? first.column : first.row);
        int const column = tile.column + (kTransposed ? first.row : first.column);
        auto exists = [&](Place at) {
            return row + at.row < tile.rows && column + at.column < tile.columns && (kTransposed ? at.row : at.column) < columns;
        };
        constexpr int kChunkRows = kTransposed ? kChunk : kWarpRows;
        epilogue.quantize(outputs, exists({kChunkRows - 1, kChunkColumns - 1}),
                          [&](int i) { return exists(place(0, 0, kGated ? nth_gate<kGateApart>(i) : i, lane)); });
        auto const rounded = cutlass::NumericArrayConverter<Element, float, kCount>{}(outputs);
        auto* pairs = reinterpret_cast<uint16_t const*>(rounded.data());
        // The matrix's pairs of two blocks; what there is not is written, but not stored.
        auto matrix = [&](int nth) -> uint32_t {
            int const block = nth / kHalves * 2, half = nth % kHalves, last = kBlocks - 1;
            int const even = std::min(block, last) * kHalves + half, odd = std::min(block + 1, last) * kHalves + half;
            return uint32_t(pairs[even]) | uint32_t(pairs[odd]) << 16;
        };
        store_matrices(chunk + lane * 16, matrix(0), matrix(1), matrix(2), matrix(3));
        __syncwarp();
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kPieces; i += 32) {
            int const piece = i + lane, half = piece % kHalves, block = piece % kBlocks;
            // Of D, in the chunk.
            Place const at = kTransposed ? Place{piece / kHalves, half * kPiece} : Place{piece / kBlocks, block * kPiece};
            if ((kPieces % 32 != 0 && piece >= kPieces) || !exists({at.row, at.column * kColumnsEach})) continue;
            int const nth = kTransposed ? at.row / 16 * kHalves + half : block / 2 * kHalves + at.row / 8;
            int const line = kTransposed ? at.row % 8 / 2 * 2 + at.row / 8 % 2 : at.row % 8;
            uint4 words;
            asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                         : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
                         : "r"(chunk + (nth * 8 + line) * 16)
                         : "memory");
            // The first or second byte of each pair, or pair of each two.
            bool const second = (kTransposed ? at.row : block) % 2 != 0;
            uint32_t const which = kTransposed ? (second ? 0x7531 : 0x6420) : (second ? 0x7632 : 0x5410);
            auto* to = params_.d + int64_t(row + at.row) * params_.ldd + column / kColumnsEach + at.column;
            *reinterpret_cast<uint2*>(to) = make_uint2(__byte_perm(words.x, words.y, which), __byte_perm(words.z, words.w, which));
        }
    }

    Params const& params_;
    SharedStorage& storage_;
    Vectors& vectors_;
};

}  // namespace overlap_gemm
