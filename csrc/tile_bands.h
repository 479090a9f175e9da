// Bands: the runs of unit rows that need the same chunk, or batch of chunks, last (src/plan/tiles.rs), as a table.
//
// What belongs here: the arithmetic of `TileOrder::band_at`, done once a launch by the host, so that a
// thread block finds a tile's band without a division. Plain C++, for both sides.
// Invariant: `first` rises from 0, `first[count]` is the number of unit rows, and band b of the ring
// (which starts at the pivot) is first[b] ..< first[b + 1].
#pragma once

#include <cstdint>

#include "overlap_gemm.h"
#include "rising_table.h"

namespace overlap_gemm {

struct BandTable {
    int32_t count;
    int32_t first[OG_MAX_CHUNKS + 1];
};

// A band, as ring positions of unit rows. Tiles come in the order of the bands, so a thread block that keeps its
// place reads the table only where a band ends: a look-up in kernel parameters takes a quarter of a microsecond, and
// the loads of a tile wait for it. Its number is not kept: registers are few.
struct BandCursor {
    int32_t first;
    int32_t end;

    static OG_HOST_DEVICE BandCursor begin(BandTable const& table) { return {table.first[0], table.first[1]}; }

    // The band that `position` lies in.
    static OG_HOST_DEVICE BandCursor at(BandTable const& table, int32_t position) {
        int32_t band =
            last_at_most(position, 0, table.count, [&](int32_t b) { return table.first[b]; });
        return {table.first[band], table.first[band + 1]};
    }

    // On to the band of `position`.
    OG_HOST_DEVICE void advance(BandTable const& table, int32_t position) {
        if (position >= end) *this = at(table, position);
    }
};

// The units that cover `count` rows, or columns.
inline int32_t units_to_cover(int32_t count, int32_t unit) { return count / unit + (count % unit != 0); }

// The bands of `rows` rows cut into units of `unit_rows`; all in one where there is no input to wait
// for. `first_unit_row` becomes the unit row that the ring starts at.
inline BandTable make_bands(og_gemm_input const* input, int32_t rows, int32_t unit_rows,
                            int32_t& first_unit_row) {
    int32_t units = units_to_cover(rows, unit_rows);
    BandTable bands{};
    first_unit_row = 0;
    if (!input) {
        bands.count = 1;
        bands.first[1] = units;
        return bands;
    }
    int32_t pivot = input->pivot_row;
    int32_t units_to_pivot = units_to_cover(pivot, unit_rows);
    first_unit_row = units_to_pivot % units;
    int32_t pivot_chunk = 0;
    while (input->chunks[pivot_chunk].first_row != pivot) ++pivot_chunk;
    int32_t batch_end = 0;
    bool begins = false;
    for (int32_t i = 0; i < input->chunk_count; ++i) {
        // A batch's first chunk: Chunks::batch.
        if (i == batch_end) {
            begins = true;
            batch_end = input->early_chunks == 0 ? i + 1 : i == 0 ? input->early_chunks : 2 * i;
        }
        int32_t chunk = (pivot_chunk + i) % input->chunk_count;
        int32_t start = input->chunks[chunk].first_row;
        bool last = chunk + 1 == input->chunk_count;
        int32_t end = last ? rows : input->chunks[chunk + 1].first_row;
        // The unit rows whose last row to arrive is this chunk's. The one that the pivot cuts through
        // belongs to the chunk before the pivot, which arrives last.
        int32_t first = start / unit_rows;
        if (start >= pivot && first < units_to_pivot) first = units_to_pivot;
        int32_t past = last || end == pivot ? units_to_cover(end, unit_rows) : end / unit_rows;
        if (past > first && begins) {
            bands.first[bands.count++] = (first + units - first_unit_row) % units;
            begins = false;
        }
    }
    bands.first[bands.count] = units;
    return bands;
}

}  // namespace overlap_gemm
