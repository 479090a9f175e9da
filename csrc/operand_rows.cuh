// Loads of an operand whose rows are K elements side by side, by one thread, tile after tile.
//
// What belongs here: TMA descriptors of such an operand, and the loads of one tile. The blocks of a cluster that need the
// same rows load a part each, for all of them. TMA fills rows outside an operand with zeros, but slowly: 16 bytes a cycle.
// A tile of 128 rows of which 104 lie outside took 1.4 times as long as a whole one, and with it all blocks that share its
// operands. So a tile that reaches beyond the last row has a descriptor of its own, for just the rows that exist.
//
// Invariant: a row that is not loaded belongs to a row (or column) of D that is not stored; what shared memory held there
// before reaches no other. A stage's barrier expects the bytes of a whole tile: a block that loads less subtracts the rest.
#pragma once

#include "cutlass/cutlass.h"

#include "chunk_signal.cuh"
#include "tma_matrix.h"

namespace overlap_gemm {

// The rows of an operand. The host fills both structs in; they are zero for an operand with another layout. They lie apart
// in the kernel's parameters (GatheringMainloop::Params).
struct RowCounts {
    int32_t rows = 0;
    // Of a tile, where launches differ in it.
    int32_t tile_rows = 0;
    // Rows that each block loads of the last tile, and the number of blocks that load any; 0 if the last tile is whole, or
    // so nearly that it is loaded like one.
    int32_t rest_rows = 0;
    int32_t rest_blocks = 0;
};
struct RowDescriptors {
    // For a whole tile, and for the last one that has any rows.
    cute::TmaDescriptor whole{};
    cute::TmaDescriptor rest{};
};

// Tiles of kRows rows and kDepth of their elements, of which each of kSharers blocks loads a part. With kVaries a launch may
// have tiles of fewer rows, in shared memory that is laid out for kRows. kTileElements: of the tile of D.
template <class Element, int kRows, int kDepth, int kSharers, int kTileElements, bool kVaries>
struct TileRows {
    // Rows of 128 bytes lie one behind the other, in the pattern that wgmma reads; deeper tiles are such parts one after
    // the other.
    static constexpr int kRowBytes = 128;
    static constexpr int kPartDepth = kRowBytes / int(sizeof(Element));
    static constexpr int kParts = kDepth / kPartDepth;
    static constexpr int kPartBytes = kRows * kRowBytes;
    static_assert(kDepth % kPartDepth == 0 && kRows % kSharers == 0);
    // Fewer rows outside cost less time than the tile's multiplications take. A small tile is multiplied in less time than
    // the loading thread needs to look up how much of the last one it loads.
    static constexpr int kFewOutside = 16;
    static constexpr bool kIsSmall = kTileElements <= 96 * 128;

    CUTLASS_HOST_DEVICE static int32_t tile_rows(RowCounts const& counts) { return kVaries ? counts.tile_rows : kRows; }

    static void encode(RowDescriptors& descriptors, RowCounts& counts, char const* name, void const* matrix, int64_t rows,
                       int64_t k, int64_t row_stride, int tile_rows, int64_t unit_rows) {
        counts.rows = int32_t(rows);
        counts.tile_rows = tile_rows;
        auto descriptor = [&](int box_rows) {
            return tma_matrix<Element>(name, matrix, rows, k, row_stride, box_rows, kPartDepth, kPartDepth);
        };
        descriptors.whole = descriptor(tile_rows / kSharers);
        int64_t padded = (rows + unit_rows - 1) / unit_rows * unit_rows;
        if (kIsSmall || padded - rows < kFewOutside) return;
        // The pattern repeats every eight rows, and each block's part begins with it.
        int last = int(rows % tile_rows);
        int each = (last + 8 * kSharers - 1) / (8 * kSharers) * 8;
        int blocks = each == 0 ? 0 : (last + each - 1) / each;
        if (each * blocks > tile_rows) return;
        counts.rest_rows = each == 0 ? 8 : each;
        counts.rest_blocks = blocks;
        descriptors.rest = descriptor(counts.rest_rows);
    }

    // This block's part of a tile: the rows before it, in all blocks, if `rest` describes the tile. Else kWhole, or kNothing:
    // this block loads no row.
    static constexpr uint16_t kWhole = UINT16_MAX;
    static constexpr uint16_t kNothing = UINT16_MAX - 1;

    CUTLASS_DEVICE static bool is_whole(RowCounts const& counts, int32_t tile) {
        return counts.rest_rows == 0 || (tile + 1) * tile_rows(counts) <= counts.rows;
    }

    // Notes this block's part, and returns the rows of the tile that no block loads.
    CUTLASS_DEVICE static int32_t begin(RowCounts const& counts, int32_t tile, uint32_t place, uint16_t volatile& part) {
        if (is_whole(counts, tile)) {
            part = kWhole;
            return 0;
        }
        int32_t blocks = tile * tile_rows(counts) < counts.rows ? counts.rest_blocks : 0;
        part = int32_t(place) < blocks ? uint16_t(int32_t(place) * counts.rest_rows) : kNothing;
        return tile_rows(counts) - blocks * counts.rest_rows;
    }

    // Both load step `k` into the stage at `to`, for all blocks of `sharers`.
    CUTLASS_DEVICE static void load_whole(RowDescriptors const& descriptors, RowCounts const& counts, int32_t tile,
                                          uint32_t place, int32_t k, uint32_t to, uint32_t barrier, uint16_t sharers) {
        uint32_t rows_before = place * uint32_t(tile_rows(counts) / kSharers);
        load(&descriptors.whole, tile * tile_rows(counts), rows_before, k, to, barrier, sharers);
    }
    CUTLASS_DEVICE static void load_part(RowDescriptors const& descriptors, RowCounts const& counts, int32_t tile,
                                         uint16_t volatile const& part, uint32_t place, int32_t k, uint32_t to,
                                         uint32_t barrier, uint16_t sharers) {
        uint32_t rows_before = part;
        if (rows_before == kWhole) {
            load_whole(descriptors, counts, tile, place, k, to, barrier, sharers);
        } else if (rows_before != kNothing) {
            load(&descriptors.rest, tile * tile_rows(counts), rows_before, k, to, barrier, sharers);
        }
    }

    // Brings step `k` of a whole tile, this block's part, from memory into the L2 cache.
    CUTLASS_DEVICE static void prefetch_whole(RowDescriptors const& descriptors, RowCounts const& counts, int32_t tile,
                                              uint32_t place, int32_t k) {
        int32_t row = tile * tile_rows(counts) + int32_t(place) * (tile_rows(counts) / kSharers);
        CUTLASS_PRAGMA_UNROLL
        for (int nth = 0; nth < kParts; ++nth) {
            asm volatile("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];" ::"l"(&descriptors.whole),
                         "r"(k * kDepth + nth * kPartDepth), "r"(row)
                         : "memory");
        }
    }

private:
    CUTLASS_DEVICE static void load(cute::TmaDescriptor const* from, int32_t first_row, uint32_t rows_before, int32_t k,
                                    uint32_t to, uint32_t barrier, uint16_t sharers) {
        int32_t row = first_row + int32_t(rows_before);
        CUTLASS_PRAGMA_UNROLL
        for (int nth = 0; nth < kParts; ++nth) {
            uint32_t place = to + nth * kPartBytes + rows_before * kRowBytes;
            int32_t column = k * kDepth + nth * kPartDepth;
            if constexpr (kSharers > 1) {
                asm volatile(
                    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                    " [%0], [%1, {%2, %3}], [%4], %5;" ::"r"(place),
                    "l"(from), "r"(column), "r"(row), "r"(barrier), "h"(sharers)
                    : "memory");
            } else {
                asm volatile(
                    "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                    " [%0], [%1, {%2, %3}], [%4];" ::"r"(place),
                    "l"(from), "r"(column), "r"(row), "r"(barrier)
                    : "memory");
            }
        }
    }
};

}  // namespace overlap_gemm
