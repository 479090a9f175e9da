//! The rules for sizes and pitches are written down twice, in Rust and in C: the two agree.

use proptest::prelude::*;

use super::*;
use crate::cuda::sys::ffi::MAX_EXTENT;
use crate::error::Error;
use crate::plan::BLayout;

fn extent() -> impl Strategy<Value = u32> {
    prop_oneof![
        1..=64u32,
        (1..=64u32).prop_map(|n| 16 * n),
        1..=i32::MAX as u32,
        MAX_EXTENT - 2..=MAX_EXTENT + 2
    ]
}

proptest! {
    #[test]
    fn the_two_sides_agree(
        index in any::<prop::sample::Index>(),
        [m, n, k] in [extent(), extent(), extent()],
        pads in [0..=64u32, 0..=64u32, 0..=64u32],
        [with_c, gated] in [any::<bool>(), any::<bool>()],
        limit in 1..=4u32,
        splits in 1..=20u32,
        swizzle in 1..=20u32,
    ) {
        let kernels = kernels().unwrap();
        let index = index.index(kernels.len());
        let (kernel, types) = (&kernels[index], kernels[index].elements);
        let pitch = |row: u32, pad: u32| u64::from(row.saturating_add(pad)).min(i32::MAX as u64);
        let b_row = if kernel.b_layout == BLayout::Nk { k } else { n };
        let problem = Problem::builder(m.into(), n.into(), k.into())
            .elements(types.a, types.b, types.d)
            .b_layout(kernel.b_layout)
            .lda(pitch(k, pads[0]))
            .ldb(pitch(b_row, pads[1]))
            .ldd(pitch(if gated { n / 2 } else { n }, pads[2]))
            .gated(gated)
            .build();
        let Ok(problem) = problem else { return Ok(()) };
        let options = GemmOptions::default()
            .with_c(with_c)
            .with_sm_limit(limit)
            .with_fast_accumulation(kernel.fast_accumulation)
            .with_kernel(kernel.name.as_str())
            .with_splits(splits)
            .with_swizzle(swizzle);
        let rust = select(&problem, &options, TYPICAL_SMS).map(|_| ());
        // What Rust would have passed on had it not looked.
        let choice = Choice { kernel: index, swizzle, splits };
        let c = ffi::check(&shape_of(&problem, choice, options.sm_limit), options.c);
        // The number of tiles is the kernel's affair.
        let [rows, columns] = [kernel.tile.m, kernel.tile.n].map(u64::from);
        let tiles = u64::from(m).div_ceil(rows) * u64::from(n).div_ceil(columns);
        if tiles <= i32::MAX as u64 / 32 {
            prop_assert_eq!(rust.is_ok(), c.is_ok(), "{:?} {:?}", rust, c);
        } else {
            prop_assert!(rust.is_ok() || c.is_err(), "{:?} {:?}", rust, c);
        }
    }
}

#[test]
fn what_has_no_kernel_is_unsupported() {
    use crate::element::ElementType::F32;
    let problem = Problem::builder(64, 64, 64).elements(F32, F32, F32).build().unwrap();
    let error = Product::check(&problem, &GemmOptions::default()).unwrap_err();
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("OVERLAP_GEMM_KERNELS=all"), "{error}");
}
