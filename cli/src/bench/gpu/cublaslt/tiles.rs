//! What the numbers in a cuBLASLt algorithm mean.
//!
//! `cublasLt.h` of CUDA 13 lists them; the same numbers have the same meaning in CUDA 12. Invariant: sizes are rows × columns
//! of D as the caller sees it, which cuBLASLt computes transposed; an unknown number is `None`.

/// The most elements of a tile in the header's second and in its third list.
const MOST: [u32; 2] = [49152, 65536];

/// The tiles that the header lists one by one; the rest follow by their rows.
const FIRST: &str = "\
    8x8 8x16 16x8 8x32 16x16 32x8 8x64 16x32 32x16 64x8 32x32 32x64 64x32 32x128 64x64 128x32 \
    64x128 128x64 64x256 128x128 256x64 64x512 128x256 256x128 512x64 64x96 96x64 96x128 128x160 \
    160x128 192x128 128x192 128x96 32x256 256x32";

/// All clusters of the header.
const CLUSTERS: &str = "\
    1x1 2x1 4x1 1x2 2x2 4x2 1x4 2x4 4x4 8x1 1x8 8x2 2x8 16x1 1x16";

fn shapes(text: &str) -> impl Iterator<Item = [u32; 2]> {
    let shapes = text.split(' ').filter_map(|shape| shape.split_once('x'));
    shapes.filter_map(|(rows, columns)| Some([rows.parse().ok()?, columns.parse().ok()?]))
}

/// The tile of that `CUBLASLT_MATMUL_TILE_`.
pub fn tile(id: u32) -> Option<[u32; 2]> {
    let mut all: Vec<[u32; 2]> = shapes(FIRST).collect();
    let by_rows = |row_step: usize, column_step: usize, most: u32| {
        (row_step as u32..=768).step_by(row_step).flat_map(move |rows| {
            let columns = (column_step as u32..=768).step_by(column_step);
            columns.map(move |columns| [rows, columns]).filter(move |[r, c]| r * c <= most)
        })
    };
    for tile in by_rows(8, 64, MOST[0]).chain(by_rows(64, 8, MOST[1])) {
        if !all.contains(&tile) {
            all.push(tile);
        }
    }
    let [rows, columns] = *all.get(id.checked_sub(1)? as usize)?;
    Some([columns, rows])
}

/// The cluster of that `CUBLASLT_CLUSTER_SHAPE_`.
pub fn cluster(id: u32) -> Option<[u32; 2]> {
    let [rows, columns] = shapes(CLUSTERS).nth(id.checked_sub(2)? as usize)?;
    Some([columns, rows])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_mean_what_the_header_says() {
        // Both sizes swapped: D is computed transposed.
        for (id, rows, columns) in [
            (1, 8, 8),
            (20, 128, 128),
            (24, 128, 256),
            (36, 128, 8),
            (58, 768, 16),
            (91, 768, 40),
            (165, 128, 112),
            (184, 128, 144),
            (263, 64, 384),
            (311, 64, 768),
            (312, 16, 64),
            (330, 200, 64),
            (392, 760, 64),
            (393, 8, 128),
            (456, 80, 192),
            (513, 256, 256),
            (555, 168, 384),
            (572, 144, 448),
            (611, 96, 640),
            (630, 80, 768),
        ] {
            assert_eq!(tile(id), Some([rows, columns]), "{id}");
        }
        assert_eq!((tile(0), tile(631)), (None, None));
        assert_eq!((cluster(3), cluster(9)), (Some([1, 2]), Some([4, 2])));
        assert_eq!((cluster(0), cluster(1), cluster(17)), (None, None, None));
    }
}
