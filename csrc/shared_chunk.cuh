// A chunk of D in shared memory: 16 of the kernel's rows, those of a warp, and some of its columns, between a warp's registers and
// rows that TMA or the warp's lanes move.
//
// What belongs here: where elements of 16 bits lie in it (those of 8 bits: `line_at` in tile_store.cuh), and the instructions that
// move 8 x 8 of them at a time.
// Invariant: lanes that write or read at a time use different banks.
#pragma once

#include <algorithm>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"

namespace overlap_gemm {

// `kColumns` as the kernel sees them. Transposed, the kernel's rows are D's columns.
template <class Element, int kColumns, bool kTransposed>
struct SharedChunk {
    static constexpr int kRows = 16;
    static_assert(kColumns % 16 == 0);
    // Of D.
    static constexpr int kRowBytes = (kTransposed ? kRows : kColumns) * int(sizeof(Element));
    // Room for four matrices of 8 x 8 elements of 16 bits, at least.
    static constexpr int kBytes = std::max(kRows * kColumns * int(sizeof(Element)), 512);

    // Calls `f` with the four-matrix pieces of a chunk in shared memory, 8 x 8 elements each, two along the kernel's rows, two
    // along its columns: the piece's first value of a thread, and where this lane's row of one of the four lies.
    template <class F>
    CUTLASS_DEVICE static void each_piece(uint32_t chunk, int lane, F f) {
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < kColumns; column += 16) {
            int along_rows = lane / 8 % 2, along_columns = column / 8 + lane / 16;
            int row = (kTransposed ? along_columns : along_rows) * 8 + lane % 8;
            f(column / 2, chunk + unit_at(row, kTransposed ? along_rows : along_columns));
        }
    }
    // Where 16 bytes of a chunk's row lie.
    CUTLASS_DEVICE static uint32_t unit_at(int row, int unit) {
        int swizzled = unit ^ (row * kRowBytes / 128 % (kRowBytes / 16));
        return uint32_t(row * kRowBytes + swizzled * 16);
    }

    CUTLASS_DEVICE static void fill(uint32_t chunk, int lane, cutlass::Array<Element, kColumns / 2> const& values) {
        auto* pairs = reinterpret_cast<uint32_t const*>(values.data());
        each_piece(chunk, lane, [&](int first, uint32_t to) {
            uint32_t const* from = pairs + first / 2;
            store_matrices(to, from[0], from[1], from[2], from[3]);
        });
    }

    // The same of a gated product: rows are as far apart, and have half as many columns. TMA does not store the other half, in
    // which values are written again.
    CUTLASS_DEVICE static void fill_gated(uint32_t chunk, int lane, cutlass::Array<Element, kColumns / 4> const& values) {
        auto* pairs = reinterpret_cast<uint32_t const*>(values.data());
        each_piece(chunk, lane, [&](int first, uint32_t to) {
            if constexpr (kTransposed) {
                uint32_t const* from = pairs + first / 4;
                store_matrices(to, from[0], from[0], from[1], from[1]);
            } else {
                constexpr int kOther = kColumns == 32 ? 2 : 0;
                if (first == 0) store_matrices(to, pairs[0], pairs[1], pairs[kOther], pairs[kOther + 1]);
            }
        });
    }

    // The other way round than `fill`.
    CUTLASS_DEVICE static cutlass::Array<Element, kColumns / 2> taken_from(uint32_t chunk, int lane) {
        cutlass::Array<Element, kColumns / 2> values;
        auto* pairs = reinterpret_cast<uint32_t*>(values.data());
        each_piece(chunk, lane, [&](int first, uint32_t from) {
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

    // Each lane's row of a matrix goes `to` an address; the matrices' elements are in the lanes as wgmma leaves sums.
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
};

}  // namespace overlap_gemm
