// How the lanes of a warp store a chunk of elements of 8 bits.
//
// What belongs here: which 8 bytes of D each lane stores, and their way there through shared memory. TMA stores at least 16 bytes
// of a row, and a chunk's row may have only 8, so lanes store them, 8 bytes at a time. (Widths are in steps of 8, so larger pieces
// would not have the same alignment in all tiles.)
// Invariant: nothing outside D is written.
//
// Each lane gives pairs of neighbours to `stmatrix`, as if a pair were one element of 16 bits. It then reads one line of a matrix,
// 16 bytes, which hold two pieces of 8 neighbours in D, interleaved: pairs of elements of two rows 8 apart or, transposed, single
// elements of two adjacent rows.
#pragma once

#include "cutlass/array.h"
#include "cutlass/numeric_conversion.h"

#include "epilogue.cuh"
#include "shared_chunk.cuh"

namespace overlap_gemm {

// Rows and columns are the kernel's: `kChunk` of its columns are in a chunk. D has one for each `kColumnsEach` of them.
template <class Element, int kChunk, bool kTransposed, int kColumnsEach>
class LanePieces {
public:
    static constexpr int kMatrices = kChunk / 8 / kColumnsEach;
    // Of a thread, in a chunk.
    static constexpr int kOutputs = 4 * kMatrices;

    // For a warp whose first chunk begins at `first` in the tile, and has `part_width` columns from there on.
    CUTLASS_DEVICE LanePieces(int lane, Tile const& tile, Place const& first, int part_width, Element* d, int64_t ldd) {
        // Lanes whose pieces are neighbours in D store them at a time. Their lines are in different banks.
        auto line_at = [](int matrix, int line) {
            return uint32_t(matrix * 8 + (kTransposed ? line : line ^ matrix * (8 / kMatrices))) * 16;
        };
        int const matrix = kTransposed ? lane / 8 : lane % kMatrices, line = kTransposed ? lane % 8 : lane / kMatrices;
        // The first piece in the chunk.
        Place const at = !kTransposed       ? Place{line, matrix * 8 * kColumnsEach}
                         : kColumnsEach > 1 ? Place{0, matrix * 16 + line % 2 * 8 + line / 2 * 2}
                                            : Place{line % 2 * 8, matrix * 8 + line / 2 * 2};
        int const row = first.row + at.row, column = first.column + at.column;
        int const m = tile.row + (kTransposed ? column : row), n = tile.column + (kTransposed ? row : column);
        int const rows_left = tile.rows - m, columns_left = tile.columns - n;
        bool const has_line = kTransposed ? matrix < kMatrices : line < 8;
        to_chunk_ = line_at(lane / 8 % kMatrices, lane % 8);
        from_chunk_ = line_at(matrix % kMatrices, line % 8);
        to_ = d + int64_t(m) * ldd + n / kColumnsEach;
        rows_ = has_line ? (kTransposed ? columns_left : rows_left) : 0;
        columns_ = min(part_width - at.column, kTransposed ? rows_left : columns_left);
    }

    // The chunk that begins `row` and `column` behind the first one, through shared memory at `chunk`.
    CUTLASS_DEVICE void store(int row, int column, uint32_t chunk, cutlass::Array<float, kOutputs> const& outputs,
                              int64_t ldd) const {
        auto const rounded = cutlass::NumericArrayConverter<Element, float, kOutputs>{}(outputs);
        auto* words = reinterpret_cast<uint32_t const*>(rounded.data());
        SharedChunk<Element, kChunk, kTransposed>::store_matrices(chunk + to_chunk_, words[0], words[1 % kMatrices],
                                                                  words[2 % kMatrices], words[3 % kMatrices]);
        __syncwarp();
        uint4 line;
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
                     : "=r"(line.x), "=r"(line.y), "=r"(line.z), "=r"(line.w)
                     : "r"(chunk + from_chunk_)
                     : "memory");
        Element* const to = to_ + (kTransposed ? column * ldd + row / kColumnsEach : row * ldd + column / kColumnsEach);
        auto store_piece = [&](int apart, uint32_t which) {
            if (row + (kTransposed ? 0 : apart) >= rows_ || column + (kTransposed ? apart : 0) >= columns_) return;
            *reinterpret_cast<uint2*>(to + apart * ldd) =
                make_uint2(__byte_perm(line.x, line.y, which), __byte_perm(line.z, line.w, which));
        };
        store_piece(0, kTransposed ? 0x6420 : 0x5410);
        store_piece(kTransposed ? 1 : 8, kTransposed ? 0x7531 : 0x7632);
    }

private:
    // Where in a chunk this lane's row of a matrix goes, and where its line comes from.
    uint32_t to_chunk_, from_chunk_;
    // Where the first piece of the first chunk goes; how many rows and columns there are from there on.
    Element* to_;
    int rows_, columns_;
};

}  // namespace overlap_gemm
