//! Plans of reductions by a table of measurements.
//!
//! Invariant: what a table says is planned, on all ranks alike; if ranks have tables that differ, planning fails on all, and their
//! group lives on.

use crate::gpu::ranks::{Rank, on_ranks};
use crate::gpu::tried_kernels;
use overlap_gemm::cuda::{CollectiveOptions, GemmOptions, GemmReduceScatter};
use overlap_gemm::plan::{Engine, Operation, Problem, Reduction, Strategy, Way};
use overlap_gemm::tune::{Entry, Family, Multiplying, Shape, Times, Tuning};
use overlap_gemm::{Error, Result};

fn problem() -> Problem {
    Problem::builder(512, 256, 512).ranks(2).build().unwrap()
}

fn copies(strategy: Strategy, pieces: u32) -> Way {
    Way { strategy, engine: Engine::CopyEngines { streams: 1 }, pieces }
}

/// A table that says that this was fastest for the problem.
fn table(rank: &Rank, way: Way) -> Tuning {
    let info = rank.gpu.device.info();
    Tuning::of_entries(vec![Entry {
        family: Family::of(Operation::GemmReduceScatter, &problem(), &info.name),
        shape: Shape::of(&problem()),
        sms: info.sm_count,
        driver: "some driver".into(),
        crate_version: "0.1.0".into(),
        way,
        multiplying: Some(Multiplying::of(tried_kernels()[0], 1, 1)),
        us: Times { graph: Some(12.3), plain: None },
    }])
}

fn plan(rank: &Rank, table: &Tuning) -> Result<GemmReduceScatter> {
    // Ranks may share a GPU. Then kernels are not the table's to choose.
    let products = [(problem(), GemmOptions::default().with_sm_limit(rank.sms))];
    let (options, sum) = (CollectiveOptions::default(), Reduction::default());
    let (group, device) = (&rank.group, &rank.gpu.device);
    GemmReduceScatter::plan_tuned(group, device, &products, &options, sum, table)
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn what_a_table_says_of_a_reduction_is_planned() {
    on_ranks(2, |rank| {
        for way in [
            copies(Strategy::Sequential, 1),
            copies(Strategy::Pipelined, 1),
            copies(Strategy::Fused, 2),
        ] {
            let layer = plan(&rank, &table(&rank, way)).unwrap();
            assert_eq!(layer.way(), way);
            let text = layer.explain();
            assert!(text.contains("tuned: measured for this problem, 12.3 µs in graphs"), "{text}");
            assert!(text.contains("some driver"), "{text}");
        }
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn ranks_with_different_tables_of_reductions_plan_nothing() {
    on_ranks(2, |rank| {
        let fused = |pieces| table(&rank, copies(Strategy::Fused, pieces));
        let error = plan(&rank, &fused(1 + rank.rank())).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        plan(&rank, &fused(1)).unwrap();
    });
}
