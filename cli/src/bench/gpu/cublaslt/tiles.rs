//! What the numbers in a cuBLASLt algorithm mean.
//!
//! `cublasLt.h` of CUDA 13 lists them; the same numbers have the same meaning in CUDA 12. Invariant: sizes are rows × columns
//! of D as the caller sees it, which cuBLASLt computes transposed; an unknown number is `None`.

/// The most elements of a tile in the header's second and in its third list.
const MOST: [u32; 2] = [49152, 65536];

/// The tile of that `CUBLASLT_MATMUL_TILE_`.
pub fn tile(id: u32) -> Option<[u32; 2]> {
    // The header lists some tiles one by one, then the rest by their rows.
    const FIRST: [[u32; 2]; 35] = [
        [8, 8],
        [8, 16],
        [16, 8],
        [8, 32],
        [16, 16],
        [32, 8],
        [8, 64],
        [16, 32],
        [32, 16],
        [64, 8],
        [32, 32],
        [32, 64],
        [64, 32],
        [32, 128],
        [64, 64],
        [128, 32],
        [64, 128],
        [128, 64],
        [64, 256],
        [128, 128],
        [256, 64],
        [64, 512],
        [128, 256],
        [256, 128],
        [512, 64],
        [64, 96],
        [96, 64],
        [96, 128],
        [128, 160],
        [160, 128],
        [192, 128],
        [128, 192],
        [128, 96],
        [32, 256],
        [256, 32],
    ];
    let by_rows = |row_step: usize, column_step: usize, most: u32| {
        (row_step as u32..=768).step_by(row_step).flat_map(move |rows| {
            let columns = (column_step as u32..=768).step_by(column_step);
            columns.map(move |columns| [rows, columns]).filter(move |[r, c]| r * c <= most)
        })
    };
    let mut all = FIRST.to_vec();
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
    const KNOWN: [[u32; 2]; 15] = [
        [1, 1],
        [2, 1],
        [4, 1],
        [1, 2],
        [2, 2],
        [4, 2],
        [1, 4],
        [2, 4],
        [4, 4],
        [8, 1],
        [1, 8],
        [8, 2],
        [2, 8],
        [16, 1],
        [1, 16],
    ];
    let [rows, columns] = *KNOWN.get(id.checked_sub(2)? as usize)?;
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
