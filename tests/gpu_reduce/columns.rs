//! Reduce-scatters along columns between ranks on GPUs: each rank gets its columns of all rows.
//!
//! What belongs here: which column goes where. Ranks are threads, which may share a GPU; outputs are compared with `f64`.

use overlap_gemm::ElementType;
use overlap_gemm::cuda::Kernel;
use overlap_gemm::plan::{BLayout, Scaling, Strategy};

use super::results::three_steps;
use super::world::World;
use crate::gpu::case::Case;
use crate::gpu::tried_kernels;

/// Each rank gets its columns of all rows, by every way of copies and by a kernel; of one product and of two. Chunks end within
/// ranks' rows.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn columns_are_scattered() {
    let world = || World::new(&[150; 3], 136, 200);
    let sequential = World { strategy: Strategy::Sequential, ..world() };
    for world in [world(), sequential, world().by_kernel(4), world().fused()] {
        let mut world = world.in_columns().with(|case| {
            (case.pads, case.beta) = ([1, 1, 1], 0.5);
            (case.options.bias, case.options.c) = (true, true);
        });
        world.options = world.options.with_pieces(4);
        three_steps(&world);
        let narrow = Case { size: [150, 3 * 72, 200], ..world.cases[0].clone() };
        world.cases.push(narrow);
        three_steps(&world);
        println!("{}, {:?}: right", world.strategy, world.options);
    }
}

/// B as K rows of N: a rank's columns begin within its first row.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn columns_of_a_b_of_k_rows_are_scattered() {
    let Some(kernel) = bf16_kernel(|kernel| kernel.b_layout == BLayout::Kn) else { return };
    three_steps(&World::of(kernel, &[150; 3], 136, 200).in_columns());
}

/// Each rank's outputs are scaled by the scales of its own columns.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn scales_belong_to_their_columns() {
    let Some(kernel) = bf16_kernel(|kernel| kernel.elements.a.is_fp8()) else { return };
    let world = World::of(kernel, &[150; 3], 136, 208).in_columns();
    three_steps(&world.with(|case| case.scaling = Scaling::Rows));
}

/// A kernel whose sums are in bf16.
fn bf16_kernel(serves: impl Fn(&Kernel) -> bool) -> Option<&'static Kernel> {
    let fits = |kernel: &&Kernel| {
        kernel.elements.d == ElementType::Bf16 && !kernel.transposed && serves(kernel)
    };
    tried_kernels().into_iter().find(fits)
}
