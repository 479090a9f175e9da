// How a tile of D leaves the registers of the warps that multiply it, and how C and other ranks' sums get into them before.
//
// What belongs here: which element of D each sum is, its way to and from memory, and the order in which the epilogue changes it.
// Elements of 16 bits go chunk by chunk through shared memory (shared_chunk.cuh), from where TMA stores them. Each warp does so for
// itself, and waits for no other; transposed, the four warps of a group do so together. A warp, or such a group, has two to four
// chunks of shared memory: it fills one while TMA reads the others. Elements of 8 bits go through shared memory too, but the warp's
// lanes store them (lane_pieces.cuh). Elements of 32 bits go straight to memory: four or eight neighbouring threads fill a sector
// of 32 bytes.
// Where the product is gated, both of a pair of columns are in one thread's sums, and a chunk has half as many columns of D.
// Invariant: a chunk of shared memory is written only after what was in it has been read; nothing outside D is written.
//
// Terms: a *strip* is 64 rows of the kernel's tile, what one warp group multiplies at a time, 16 in each warp; a chunk is some
// columns of a warp's rows, or of a strip's. Transposed, the kernel's rows are D's columns.
#pragma once

#include "cutlass/cutlass.h"
#include "cute/arch/cluster_sm90.hpp"
#include "cute/arch/copy_sm90_tma.hpp"
#include "cute/layout.hpp"

#include "epilogue.cuh"
#include "lane_pieces.cuh"
#include "named_barriers.h"
#include "shared_chunk.cuh"
#include "tma_matrix.h"

namespace overlap_gemm {

// kGroupsM warp groups share a tile's rows, or kGroupsN its columns; the other is 1. `kSharers` blocks of a cluster load rows
// together. A warp, or the group whose warps fill chunks together, has `kBuffers` chunks of shared memory. A launch may have
// narrower tiles, but not below `kLeast`.
template <class Element, class KernelTile, bool kTransposed, int kLeast, int kGroupsM, int kGroupsN, int kSharers, int kBuffers>
class TileStore {
public:
    static constexpr int kStripRows = 64;
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
    using Shared = SharedChunk<Element, kChunk, kTransposed>;
    static constexpr int kWarpRows = Shared::kWarpRows;
    static constexpr int kGroupWarps = kStripRows / kWarpRows;
    static constexpr int kChunkBytes = sizeof(Element) <= 2 ? Shared::kBytes : 0;
    // Warps that fill a chunk together.
    static constexpr int kFillers = Shared::kWarps;
    static_assert(kFillers == 1 || (kFillers == kGroupWarps && kChunkBytes % 1024 == 0));
    // The columns of D in a chunk.
    static constexpr int kChunkColumns = Shared::kRowBytes / int(sizeof(Element));
    static constexpr int kPairColumns = 2 * OG_GATE_COLUMNS;
    // How far apart a thread's sums of a gate and of what it gates are: `place` says where each is.
    static constexpr int kGateApart = kTransposed ? OG_GATE_COLUMNS / 4 : OG_GATE_COLUMNS / 2;
    static_assert(kBuffers >= 2);
    static_assert(sizeof(Element) <= 2 || !kVaries, "elements of 32 bits are stored as wide as the widest tile");

    // Whether other ranks' sums can be added to tiles of that width: with more sums a thread, too few registers are left. C is then
    // added in the same way; else element by element.
    static constexpr bool adds_others(int width) { return kByTma && kTileM * width <= 128 * 128 * kGroups; }

    // Whether products can be gated with tiles of that width: then no pair of columns is cut apart.
    static constexpr bool gates(int width) { return kTransposed || width / kGroupsN % kPairColumns == 0; }

    using Epilogue = TileEpilogue<Element, kRows, kColumns, kGroups * 128, kSharers>;
    struct Params {
        // Only with `kByTma`: of a chunk, and of the last one where that has fewer columns.
        cute::TmaDescriptor whole;
        cute::TmaDescriptor rest;
        EpilogueParams<Element> epilogue;
        Element* d;
        int64_t ldd;
        int32_t rows;
        int32_t columns;
        // `count` is 0 where there are none.
        og_other_sums others;
    };
    struct SharedStorage {
        // Where a pattern begins follows from the address.
        alignas(1024) char chunks[kGroups][kGroupWarps / kFillers][kBuffers][kChunkBytes == 0 ? 1 : kChunkBytes];
    };
    using Vectors = typename Epilogue::Vectors;
    using Factors = typename Epilogue::Factors;

    // `rows` and `columns` of A B.
    static Params encode(EpilogueParams<Element> const& epilogue, og_other_sums const* others, void* d, int64_t ldd, int64_t rows,
                         int64_t columns) {
        Params params{{}, {}, epilogue, static_cast<Element*>(d), ldd, int32_t(rows), int32_t(columns), {}};
        if (others) params.others = *others;
        params.epilogue.changes_sums = epilogue.has_vectors || epilogue.c || epilogue.activation != OG_ACTIVATION_NONE ||
                                       epilogue.gated || params.others.count > 0;
        if constexpr (kByTma) {
            int const columns_each = epilogue.gated ? 2 : 1;
            auto descriptor = [&](int chunk) {
                return tma_matrix<Element>("D", d, rows, columns / columns_each, ldd, kTransposed ? chunk : kWarpRows,
                                           kChunkColumns, (kTransposed ? kChunkColumns : chunk) / columns_each);
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
        static_assert(Sums::kElements == kStrips * kPartN / 2);
        Tile const tile = tile_at(m_tile, n_tile);
        wait_for_reads();
        Epilogue epilogue(params_.epilogue, vectors_, tile, factors);
        if (params_.epilogue.has_vectors) {
            epilogue.share_vectors(factors, thread);
            sync_tile();
        }
        int const part = part_of(thread);
        // No chunk is filled before the leader has waited for TMA's reads of the tile before.
        sync_fillers();
        int const part_width = width() / kGroupsN;
        Place const first = first_of(part);
        uint32_t const chunks = cute::cast_smem_ptr_to_uint(storage_.chunks[part][warp() / kFillers]);
        finish(epilogue, tile, first, part_width, chunks, sums);
        if (params_.epilogue.gated) {
            store_chunks<true>(epilogue, tile, first, part_width, chunks, sums);
        } else {
            store_chunks<false>(epilogue, tile, first, part_width, chunks, sums);
        }
        if constexpr (Epilogue::kIsFp8) epilogue.note_amax();
        // The next tile, of this group or of the other, may overwrite the vectors only after all threads have read them. For the
        // other group's tile the end of this turn would suffice, but racecheck does not follow `bar.arrive`.
        if (params_.epilogue.has_vectors) sync_tile();
        if (thread == 0) epilogue.end(kTransposed ? n_tile : m_tile, kTransposed ? m_tile : n_tile);
    }

    // Until TMA has read all that this thread gave to it: nothing, if it is not the leader.
    CUTLASS_DEVICE static void wait_for_reads() {
        if constexpr (kByTma) cute::tma_store_wait<0>();
    }

private:
    // Always the same thread of those that fill a chunk: who waits for the reads is who began them.
    CUTLASS_DEVICE static bool is_leader() { return kByTma && warp() % kFillers == 0 && cute::elect_one_sync(); }
    CUTLASS_DEVICE int width() const { return kVaries ? params_.epilogue.width : kTileN; }
    CUTLASS_DEVICE Tile tile_at(int32_t m_tile, int32_t n_tile) const {
        int const kernel_row = m_tile * kTileM, kernel_column = n_tile * width();
        return {kTransposed ? kernel_column : kernel_row, kTransposed ? kernel_row : kernel_column, params_.rows, params_.columns};
    }
    // Which part of a shared tile is this thread's group's.
    CUTLASS_DEVICE static int part_of(int thread) { return kGroups == 1 ? 0 : __shfl_sync(0xffffffff, thread / 128, 0); }
    // The kernel's row and column where its warp's part begins.
    CUTLASS_DEVICE Place first_of(int part) const {
        return {(kGroupsM == 1 ? 0 : part * kStripRows) + warp() * kWarpRows, kGroupsN == 1 ? 0 : part * (width() / kGroupsN)};
    }
    // The warp's place in its group.
    CUTLASS_DEVICE static int warp() { return cutlass::canonical_warp_idx_sync() % kGroupWarps; }

    CUTLASS_DEVICE static void sync_tile() { meet_at<kTileBarrier, kGroups * 128>(); }
    // The warps that fill a chunk together meet.
    CUTLASS_DEVICE static void sync_fillers() {
        if constexpr (kFillers == 1) {
            __syncwarp();
        } else if constexpr (kGroups == 1) {
            sync_tile();
        } else if (cutlass::canonical_warp_idx_sync() < 2 * kGroupWarps) {
            // The first group, behind the loading warps. Asked each time: an answer that is kept takes a register, and some spill.
            meet_at<kFillBarriers, 128>();
        } else {
            meet_at<kFillBarriers + 1, 128>();
        }
    }
    // Counted in its group. Computed again in each place: kept, it takes registers.
    CUTLASS_DEVICE static int thread_in_group() {
        uint32_t thread = threadIdx.x % 128;
        asm volatile("" : "+r"(thread));
        __builtin_assume(thread < 128);
        return int(thread);
    }

    // The place in the tile of D of a thread's sum `i` from the kernel's row and column on: what the PTX manual says of wgmma.
    CUTLASS_DEVICE static Place place(int row, int column, int i) {
        int const lane = int(threadIdx.x) % 32;
        row += lane / 4 + (i & 2) * 4;
        column += i / 4 * 8 + lane % 4 * 2 + i % 2;
        return kTransposed ? Place{column, row} : Place{row, column};
    }

    // Calls `f` with each chunk's strip and the kernel's column where it begins.
    template <class F>
    CUTLASS_DEVICE static void each_chunk(int part_width, F f) {
        CUTLASS_PRAGMA_UNROLL
        for (int strip = 0; strip < kStrips; ++strip) {
            CUTLASS_PRAGMA_UNROLL
            for (int column = 0; column < kPartN; column += kChunk) {
                if (column < kLeast / kGroupsN || column < part_width) f(strip, column);
            }
        }
    }

    // Which of a thread's sums in a chunk is gate `i`: `kGateApart` gates, then what they gate, and so on.
    static constexpr int nth_gate(int i) { return i / kGateApart * 2 * kGateApart + i % kGateApart; }

    // Which of a thread's sums is the first of a chunk.
    static constexpr int first_sum(int strip, int column) { return strip * kPartN / 2 + column / 2; }

    // From sums to outputs; of a gated product they take the first half of each chunk's sums. Each thing that a product may ask
    // for is a pass over the tile's sums, so that code which it does not need is skipped at once: fetching instructions takes
    // longer than executing them (benches/results/2026-11-27-h200-scaled-rows.txt). A product that asks for none skips all by one
    // jump. (A block that has given up asks: its factor is NaN.)
    template <class Sums>
    CUTLASS_DEVICE void finish(Epilogue const& epilogue, Tile const& tile, Place const& first, int part_width, uint32_t chunks,
                               Sums& sums) const {
        if (!params_.epilogue.changes_sums && !epilogue.is_scaled()) return;
        auto each_sum = [&](int strip, int column, auto change) {
            int const row = first.row + strip * kGroupsM * kStripRows;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < kChunk / 2; ++i) {
                float& sum = sums[first_sum(strip, column) + i];
                sum = change(sum, place(row, first.column + column, i));
            }
        };
        auto const& params = params_.epilogue;
        auto scale = [&] {
            if (params.has_vectors) {
                each_chunk(part_width, [&](int strip, int column) {
                    // Else the compiler keeps what it has loaded for one strip for the next, and registers spill.
                    asm volatile("" ::: "memory");
                    each_sum(strip, column, [&](float sum, Place at) { return epilogue.scale_by_vectors(sum, at); });
                });
            } else if (epilogue.is_scaled()) {
                each_chunk(part_width, [&](int strip, int column) {
                    each_sum(strip, column, [&](float sum, Place) { return epilogue.scale(sum); });
                });
            }
        };
        if constexpr (adds_others(kLeast)) {
            // First other ranks' sums, which are scaled with this rank's, then C: one loop, so that there is one copy of the code.
            og_other_sums const& others = params_.others;
            int32_t const count = others.count + (params.c ? 1 : 0);
            bool const is_given_up =
                others.stop && load_relaxed_gpu(&others.stop->given_up) == given_up_at(load_relaxed_system(others.epoch));
            float const nothing_or_nan = is_given_up ? __int_as_float(0x7fffffff) : 0.0f;
            CUTLASS_PRAGMA_NO_UNROLL
            for (int32_t nth = 0;; ++nth) {
                if (nth == others.count) scale();
                if (nth == count) break;
                bool const is_c = nth == others.count;
                auto const* from = is_c ? params.c : static_cast<Element const*>(others.slots) + nth * others.slot_pitch;
                int64_t const pitch = is_c ? params.ldc : others.pitch;
                add(tile, first, part_width, chunks, from, pitch, is_c ? params.beta : 1.0f, nothing_or_nan, sums);
            }
        } else {
            scale();
        }
        bool const c_is_left = !adds_others(kLeast) && params.c;
        if (c_is_left || params.activation != OG_ACTIVATION_NONE) {
            // Asked chunk by chunk: where the compiler need not, it begins with all elements at once, and registers spill.
            each_chunk(part_width, [&](int strip, int column) {
                if (c_is_left) each_sum(strip, column, [&](float sum, Place at) { return epilogue.add_c(sum, at); });
                with_activation(params.activation, [&](auto function) {
                    // To gates (0), or to what they gate; of a product that is not gated, these are all sums.
                    auto apply = [&](int behind_gates) {
                        CUTLASS_PRAGMA_UNROLL
                        for (int i = 0; i < kChunk / 4; ++i) {
                            float& sum = sums[first_sum(strip, column) + nth_gate(i) + behind_gates];
                            sum = function(sum);
                        }
                    };
                    apply(0);
                    if (!params.gated) apply(kGateApart);
                });
            });
        }
        if (params.gated) {
            each_chunk(part_width, [&](int strip, int column) {
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kChunk / 4; ++i) {
                    int const gate = first_sum(strip, column) + nth_gate(i);
                    sums[first_sum(strip, column) + i] = sums[gate] * sums[gate + kGateApart];
                }
            });
        }
    }

    // From outputs to D.
    template <bool kGated, class Sums>
    CUTLASS_DEVICE void store_chunks(Epilogue& epilogue, Tile const& tile, Place const& first, int part_width,
                                     uint32_t const chunks, Sums const& sums) const {
        bool const leads = is_leader();
        int const thread = thread_in_group();
        auto const pieces = [&] {
            if constexpr (sizeof(Element) == 1) {
                return LanePieces<Element, kChunk, kTransposed, kGated ? 2 : 1>(thread % 32, tile, first, part_width, params_.d,
                                                                                params_.ldd);
            } else {
                return 0;
            }
        }();
        uint32_t chunk = chunks;
        each_chunk(part_width, [&](int strip, int column) {
            int const row = first.row + strip * kGroupsM * kStripRows;
            cutlass::Array<float, kChunk / (kGated ? 4 : 2)> outputs;
            CUTLASS_PRAGMA_UNROLL
            for (int i = 0; i < int(outputs.size()); ++i) outputs[i] = sums[first_sum(strip, column) + i];
            if constexpr (kChunkBytes == 0) {
                store<kGated>(tile, row, first.column + column, outputs);
            } else if constexpr (kByTma) {
                auto const rounded = cutlass::NumericArrayConverter<Element, float, decltype(outputs)::kElements>{}(outputs);
                if constexpr (kGated) {
                    Shared::fill_gated(chunk, thread, rounded);
                } else {
                    Shared::fill(chunk, thread, rounded);
                }
                cute::tma_store_fence();
                // TMA still reads at most kBuffers - 2 earlier chunks, so the next buffer, which is filled after this, is free.
                cute::tma_store_wait<kBuffers - 2>();
                sync_fillers();
                auto const& descriptor = column + kChunk <= part_width ? params_.whole : params_.rest;
                if (leads) store(descriptor, tile, row, first.column + column, chunk, kGated ? 2 : 1);
            } else {
                if (epilogue.notes()) note<kGated>(epilogue, tile, row, first.column + column, part_width - column, outputs);
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < int(outputs.size()); ++i) outputs[i] = epilogue.quantize(outputs[i]);
                pieces.store(strip * kGroupsM * kStripRows, column, chunk, outputs, params_.ldd);
            }
            if constexpr (kChunkBytes != 0) {
                chunk = chunk + kChunkBytes == chunks + kBuffers * kChunkBytes ? chunks : chunk + kChunkBytes;
            }
        });
    }

    // Adds a matrix times `factor`, and `nothing_or_nan`, to the sums. The matrix comes chunk by chunk through the shared memory
    // that D's chunks take later: while one chunk is added, the next ones arrive. They are read from L2, because this kernel may
    // have begun before they were written (epilogue.cuh).
    template <class Sums>
    CUTLASS_DEVICE static void add(Tile const& tile, Place first, int part_width, uint32_t chunks, Element const* from,
                                   int64_t pitch, float factor, float nothing_or_nan, Sums& sums) {
        constexpr int kInRow = kPartN / kChunk, kChunks = kStrips * kInRow;
        // Else the compiler keeps every chunk's place for the next matrix, and registers spill.
        asm volatile("" : "+r"(first.row), "+r"(first.column));
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
                auto theirs = Shared::taken_from(chunks + nth % kBuffers * kChunkBytes, int(threadIdx.x) % 128);
                CUTLASS_PRAGMA_UNROLL
                for (int i = 0; i < kChunk / 2; ++i) {
                    float& sum = sums[first_sum(nth / kInRow, nth % kInRow * kChunk) + i];
                    sum += factor * float(theirs[i]) + nothing_or_nan;
                }
            }
            // Before another fetches into this buffer.
            __syncwarp();
        }
    }

    // Starts the copy of a warp's part of a chunk into shared memory, with zeros where D has no elements. The matrix has D's
    // layout. Row and column are the kernel's, in its tile.
    CUTLASS_DEVICE static void fetch_chunk(Element const* from, int64_t pitch, Tile const& tile, int kernel_row, int kernel_column,
                                           uint32_t chunk) {
        constexpr int kUnits = Shared::kUnits, kElements = 16 / int(sizeof(Element));
        int const thread = thread_in_group(), lane = thread % 32, first_unit = thread / 32 % kFillers * kUnits;
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kChunkBytes / kFillers / 16 / 32; ++i) {
            // Eight lanes at a time write to different banks.
            int const row = kFillers == 1 ? (i * 32 + lane) / kUnits : i * 16 + lane / 16 * 8 + lane % 8;
            int const unit = kFillers == 1 ? lane % kUnits : lane / 8 % 2;
            int const m = tile.row + (kTransposed ? kernel_column : kernel_row) + row;
            int const n = tile.column + (kTransposed ? kernel_row : kernel_column) + unit * kElements;
            bool const exists = m < tile.rows && n < tile.columns;
            auto const* address = exists ? from + m * pitch + n : from;
            uint32_t const to = chunk + Shared::unit_at(row, first_unit + unit);
            asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(address), "r"(exists ? 16 : 0)
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
            Place at = place(row, column, kGated ? nth_gate(i) : i);
            at.row += tile.row;
            at.column += tile.column;
            if (at.row < tile.rows && at.column < tile.columns) {
                int const column_of_d =
                    kGated ? at.column / kPairColumns * OG_GATE_COLUMNS + at.column % OG_GATE_COLUMNS : at.column;
                params_.d[int64_t(at.row) * params_.ldd + column_of_d] = Element(values[i]);
            }
        }
    }

    // Outputs that D has, from the kernel's row and column on; its part has `columns` columns from there on.
    template <bool kGated, int kCount>
    CUTLASS_DEVICE static void note(Epilogue& epilogue, Tile const& tile, int row, int column, int columns,
                                    cutlass::Array<float, kCount> const& outputs) {
        // Computed again for each chunk: the places of all would take too many registers.
        asm volatile("" : "+r"(row), "+r"(column));
        CUTLASS_PRAGMA_UNROLL
        for (int i = 0; i < kCount; ++i) {
            int const sum = kGated ? nth_gate(i) : i;
            Place const at = place(row, column, sum);
            if (sum / 4 * 8 < columns && tile.row + at.row < tile.rows && tile.column + at.column < tile.columns) {
                epilogue.note(outputs[i]);
            }
        }
    }

    Params const& params_;
    SharedStorage& storage_;
    Vectors& vectors_;
};

}  // namespace overlap_gemm
