// Loads of an operand by a warp of which one lane issues them, tile after tile. Its rows are K elements side by side; or they
// lie across K, side by side for each element of K: a row of such an operand is what others call its column.
//
// What belongs here: TMA descriptors of such an operand, and the loads of one tile. The blocks of a cluster that need the
// same rows load a part each, for all of them. TMA fills rows outside an operand with zeros, but slowly: 16 bytes a cycle.
// A tile of 128 rows of which 104 lie outside took 1.4 times as long as a whole one, and with it all blocks that share its
// operands. So a tile that reaches beyond the last row has a descriptor of its own, for just the rows that exist. An operand
// across K has none: there TMA fills what is missing.
//
// Invariant: a row that is not loaded belongs to a row (or column) of D that is not stored; what shared memory held there
// before reaches no other. A stage's barrier expects the bytes that all blocks load of that tile, no more. Where clusters have
// blocks along both sides, every block loads rows of the other operand in every step: the barrier that says that a stage is
// free counts how many blocks have released it, not which. A block that waited for nobody's load could release the next lap's
// stage before others have released this one's, be counted in their place, and let a third block overwrite what they still
// read.
#pragma once

#include "cutlass/cutlass.h"

#include "chunk_signal.cuh"
#include "one_lane.h"
#include "tma_matrix.h"

namespace overlap_gemm {

struct Operand {
    // For errors.
    char const* name;
    void const* matrix;
    int64_t rows;
    // In elements; across K, from one element of K to the next.
    int64_t stride;
};

// The rows of an operand. The host fills both structs in. They lie apart in the kernel's parameters
// (GatheringMainloop::Params).
struct RowCounts {
    int32_t rows = 0;
    // Of a tile, where launches differ in it.
    int32_t tile_rows = 0;
    // Rows that each block loads of the last tile, and the number of blocks that load any; 0 if the last tile is whole, or
    // nearly, and across K.
    int32_t rest_rows = 0;
    int32_t rest_blocks = 0;
};
struct RowDescriptors {
    // For a whole tile, and for the last one that has any rows.
    cute::TmaDescriptor whole{};
    cute::TmaDescriptor rest{};
};

// Tiles of kRows rows and kDepth of their elements, of which each of kSharers blocks loads a part. With kVaries a launch may
// have tiles of fewer rows. With kByAll each block loads rows of each tile, those of zeros where it has no others.
template <class Element, bool kAcross, int kRows, int kDepth, int kSharers, bool kVaries, bool kByAll>
struct TileRows {
    // Rows of 128 bytes lie one behind the other, in the pattern that wgmma reads; what is deeper or, across K, has more rows
    // is such parts one after the other.
    static constexpr int kRowBytes = 128;
    static constexpr int kPartElements = kRowBytes / int(sizeof(Element));
    static constexpr int kParts = (kAcross ? kRows / kSharers : kDepth) / kPartElements;
    static_assert(kDepth % kPartElements == 0 && kRows % kSharers == 0);
    static_assert(!kAcross || (!kVaries && kDepth == kPartElements && kRows / kSharers % kPartElements == 0));
    // Tiles that vary have any multiple of eight rows.
    static_assert(!kVaries || 8 % kSharers == 0);
    // Fewer rows outside are filled with zeros: that costs less time than the tile's multiplications take.
    static constexpr int kFewOutside = 8;

    CUTLASS_HOST_DEVICE static int32_t tile_rows(RowCounts const& counts) { return kVaries ? counts.tile_rows : kRows; }

    static void encode(RowDescriptors& descriptors, RowCounts& counts, Operand const& operand, int64_t k, int tile_rows,
                       int64_t unit_rows) {
        int64_t const rows = operand.rows;
        counts.rows = int32_t(rows);
        counts.tile_rows = tile_rows;
        if constexpr (kAcross) {
            descriptors.whole = tma_matrix<Element>(operand.name, operand.matrix, k, rows, operand.stride, kDepth,
                                                    kPartElements, kPartElements);
            return;
        }
        auto descriptor = [&](int box_rows) {
            return tma_matrix<Element>(operand.name, operand.matrix, rows, k, operand.stride, box_rows, kPartElements,
                                       kPartElements);
        };
        descriptors.whole = descriptor(tile_rows / kSharers);
        int64_t padded = (rows + unit_rows - 1) / unit_rows * unit_rows;
        if (padded - rows < kFewOutside) return;
        // Each block's part of the last tile is a multiple of the eight rows in which the pattern repeats.
        int last = int(rows % tile_rows);
        int each = (last + 8 * kSharers - 1) / (8 * kSharers) * 8;
        int blocks = kByAll ? kSharers : each == 0 ? 0 : (last + each - 1) / each;
        if (each == 0) each = 8;
        if (each * blocks > tile_rows) return;
        counts.rest_rows = each;
        counts.rest_blocks = blocks;
        descriptors.rest = descriptor(counts.rest_rows);
    }

    // This block's part of a tile.
    struct Part {
        cute::TmaDescriptor const* descriptor;
        int32_t first_row;
        // In shared memory, from the tile's first row on.
        uint32_t rows_before;
        bool is_loaded;
    };

    // The part of block `place` of those that load the tile.
    CUTLASS_DEVICE static Part part(RowDescriptors const& descriptors, RowCounts const& counts, int32_t tile, uint32_t place) {
        int32_t const first_row = tile * tile_rows(counts);
        bool const is_rest = counts.rest_rows != 0 && first_row + tile_rows(counts) > counts.rows;
        Part part;
        part.descriptor = is_rest ? &descriptors.rest : &descriptors.whole;
        part.rows_before = place * uint32_t(is_rest ? counts.rest_rows : tile_rows(counts) / kSharers);
        part.first_row = first_row + int32_t(part.rows_before);
        part.is_loaded = kByAll || !is_rest || part.first_row < counts.rows;
        return part;
    }

    // Rows of a tile that no block loads.
    CUTLASS_DEVICE static int32_t missing(RowCounts const& counts, int32_t tile) {
        int32_t const first_row = tile * tile_rows(counts);
        if (counts.rest_rows == 0 || first_row + tile_rows(counts) <= counts.rows) return 0;
        return tile_rows(counts) - (kByAll || first_row < counts.rows ? counts.rest_blocks * counts.rest_rows : 0);
    }

    // Whether a tile lies outside the operand.
    CUTLASS_DEVICE static bool is_outside(RowCounts const& counts, int32_t tile) {
        return tile * tile_rows(counts) >= counts.rows;
    }

    // Loads step `k` of a part for all blocks of `sharers`, into the stage whose rows begin at `to`. All lanes of a warp call
    // it together.
    CUTLASS_DEVICE static void load(Part const& part, RowCounts const& counts, int32_t k, uint32_t to, uint32_t barrier,
                                    uint16_t sharers) {
        if (!part.is_loaded) return;
        CUTLASS_PRAGMA_UNROLL
        for (int nth = 0; nth < kParts; ++nth) {
            uint32_t const rows_before = nth * uint32_t(kAcross ? kPartElements : tile_rows(counts)) + part.rows_before;
            uint32_t const place = to + rows_before * kRowBytes;
            Corner const corner = corner_of(part, k, nth);
            if constexpr (kSharers > 1) {
                asm volatile(
                    OG_BY_ONE_LANE(
                        "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"
                        " [%0], [%1, {%2, %3}], [%4], %5;")::"r"(place),
                    "l"(part.descriptor), "r"(corner.column), "r"(corner.row), "r"(barrier), "h"(sharers)
                    : "memory");
            } else {
                asm volatile(
                    OG_BY_ONE_LANE("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes"
                                   " [%0], [%1, {%2, %3}], [%4];")::"r"(place),
                    "l"(part.descriptor), "r"(corner.column), "r"(corner.row), "r"(barrier)
                    : "memory");
            }
        }
    }

    // Brings step `k` of a part from memory into the L2 cache. All lanes of a warp call it together.
    CUTLASS_DEVICE static void prefetch(Part const& part, int32_t k) {
        if (!part.is_loaded) return;
        CUTLASS_PRAGMA_UNROLL
        for (int nth = 0; nth < kParts; ++nth) {
            Corner const corner = corner_of(part, k, nth);
            asm volatile(OG_BY_ONE_LANE("cp.async.bulk.prefetch.tensor.2d.L2.global [%0, {%1, %2}];")::"l"(part.descriptor),
                         "r"(corner.column), "r"(corner.row)
                         : "memory");
        }
    }

private:
    // In memory, where the box of a load begins.
    struct Corner {
        int32_t column, row;
    };
    CUTLASS_DEVICE static Corner corner_of(Part const& part, int32_t k, int nth) {
        if constexpr (kAcross) return {part.first_row + nth * kPartElements, k * kDepth};
        return {k * kDepth + nth * kPartElements, part.first_row};
    }
};

}  // namespace overlap_gemm
