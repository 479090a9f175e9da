// A chunk of D in shared memory: 16 of the kernel's rows for each warp that fills it, and some of its columns, between the warps'
// registers and rows that TMA or a warp's lanes move.
//
// What belongs here: where elements of 16 bits lie in it (those of 8 bits: `line_at` in tile_store.cuh), and the instructions that
// move 8 x 8 of them at a time.
// Invariant: lanes that write or read at a time use different banks.
//
// Terms: a *unit* is 16 bytes of a row of D, what the swizzle moves.
#pragma once

#include <algorithm>

#include "cutlass/cutlass.h"
#include "cutlass/array.h"

namespace overlap_gemm {

// `kColumns` as the kernel sees them. Transposed, the kernel's rows are D's columns, and a warp's 16 are two units of D's rows.
// Stored alone, these would be half-written sectors of L2 where a row of D begins in the middle of one: the four warps of a group
// fill a chunk together. Each writes and reads units that no other warp does, but for a gated product's: C and other ranks' sums,
// which need it, are not added to these.
template <class Element, int kColumns, bool kTransposed>
struct SharedChunk {
    static constexpr int kWarpRows = 16;
    static constexpr int kWarps = kTransposed && sizeof(Element) == 2 ? 4 : 1;
    static_assert(kColumns % 16 == 0);
    // A row of D.
    static constexpr int kRowBytes = (kTransposed ? kWarps * kWarpRows : kColumns) * int(sizeof(Element));
    // Room for four matrices of 8 x 8 elements of 16 bits, at least.
    static constexpr int kBytes = std::max(kWarps * kWarpRows * kColumns * int(sizeof(Element)), 512);
    // In a row of D, of each warp.
    static constexpr int kUnits = kRowBytes / 16 / kWarps;

    // Calls `f` with the four-matrix pieces of a warp's part of a chunk, 8 x 8 elements each, two along the kernel's rows, two
    // along its columns: the piece's first value of a thread, and where this lane's row of one of the four lies. `thread` is
    // counted in its group. Transposed and gated, a warp has one unit of a row of D; the other is in the half that is not stored.
    template <bool kGated, class F>
    CUTLASS_DEVICE static void each_piece(uint32_t chunk, int thread, F f) {
        int const lane = thread % 32, warp = thread / 32 % kWarps;
        CUTLASS_PRAGMA_UNROLL
        for (int column = 0; column < kColumns; column += 16) {
            int along_rows = lane / 8 % 2, along_columns = column / 8 + lane / 16;
            int row = (kTransposed ? along_columns : along_rows) * 8 + lane % 8;
            int unit = !kTransposed ? along_columns : kGated ? along_rows * kWarps + warp : warp * kUnits + along_rows;
            f(column / 2, chunk + unit_at(row, unit));
        }
    }
    // Where 16 bytes of a chunk's row lie.
    CUTLASS_DEVICE static uint32_t unit_at(int row, int unit) {
        int swizzled = unit ^ (row * kRowBytes / 128 % (kRowBytes / 16));
        return uint32_t(row * kRowBytes + swizzled * 16);
    }

    CUTLASS_DEVICE static void fill(uint32_t chunk, int thread, cutlass::Array<Element, kColumns / 2> const& values) {
        auto* pairs = reinterpret_cast<uint32_t const*>(values.data());
        each_piece<false>(chunk, thread, [&](int first, uint32_t to) {
            uint32_t const* from = pairs + first / 2;
            store_matrices(to, from[0], from[1], from[2], from[3]);
        });
    }

    // The same of a gated product: rows are as far apart, and have half as many columns. TMA does not store the other half, in
    // which values are written again.
    CUTLASS_DEVICE static void fill_gated(uint32_t chunk, int thread, cutlass::Array<Element, kColumns / 4> const& values) {
        auto* pairs = reinterpret_cast<uint32_t const*>(values.data());
        each_piece<true>(chunk, thread, [&](int first, uint32_t to) {
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
    CUTLASS_DEVICE static cutlass::Array<Element, kColumns / 2> taken_from(uint32_t chunk, int thread) {
        cutlass::Array<Element, kColumns / 2> values;
        auto* pairs = reinterpret_cast<uint32_t*>(values.data());
        each_piece<false>(chunk, thread, [&](int first, uint32_t from) {
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
