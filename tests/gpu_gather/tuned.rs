//! Plans by a table of measurements.
//!
//! Invariant: what a table says is planned, on all ranks alike; ranks whose tables say otherwise hear of it, and their
//! group lives on.

use crate::gpu::case::Case;
use crate::gpu::ranks::{Rank, on_ranks};
use crate::gpu::tried_kernels;
use overlap_gemm::cuda::{AllGatherGemm, CollectiveOptions};
use overlap_gemm::plan::{Engine, Operation, Problem, Strategy, Way};
use overlap_gemm::tune::{Entry, Family, Multiplying, Shape, Times, Tuning};
use overlap_gemm::{Error, Result};

fn case() -> Case {
    Case::new(tried_kernels()[0], 512, 256, 512)
}

/// A table that says that this was fastest for the problem.
fn table(problem: &Problem, rank: &Rank, way: Way) -> Tuning {
    let (kernel, info) = (case().kernel, rank.gpu.device.info());
    Tuning::of_entries(vec![Entry {
        family: Family::of(Operation::AllGatherGemm, problem, &info.name),
        shape: Shape::of(problem),
        sms: info.sm_count,
        driver: "some driver".into(),
        crate_version: "0.1.0".into(),
        way,
        multiplying: Some(Multiplying::of(kernel, 1, 1)),
        us: Times { graph: Some(12.3), plain: None },
    }])
}

fn plan(rank: &Rank, problem: &Problem, table: &Tuning) -> Result<AllGatherGemm> {
    let mut gemm = case().options;
    (gemm.kernel, gemm.splits) = (None, None);
    // Ranks may share a GPU. Then kernels are not the table's to choose.
    gemm.sm_limit = Some(rank.sms);
    let (group, device) = (&rank.group, &rank.gpu.device);
    let (gather, products) = (CollectiveOptions::default(), [(problem.clone(), gemm)]);
    AllGatherGemm::plan_tuned(group, device, &products, &gather, table)
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn what_a_table_says_is_planned() {
    on_ranks(2, |rank| {
        let problem = case().sharded(&[256, 256]);
        for (strategy, engine, pieces) in [
            (Strategy::Sequential, Engine::CopyEngines { streams: 2 }, 2),
            (Strategy::Pipelined, Engine::CopyEngines { streams: 1 }, 4),
            (Strategy::Fused, Engine::Kernel { blocks: 8 }, 2),
        ] {
            let way = Way { strategy, engine, pieces };
            let layer = plan(&rank, &problem, &table(&problem, &rank, way)).unwrap();
            assert_eq!(layer.way(), way);
            let text = layer.explain();
            assert!(text.contains("tuned: measured for this problem, 12.3 µs in graphs"), "{text}");
            assert!(text.contains("some driver"), "{text}");
        }
        let layer = plan(&rank, &problem, &Tuning::none()).unwrap();
        assert!(layer.explain().contains("modelled"), "{}", layer.explain());
    });
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn ranks_with_different_tables_hear_of_it() {
    on_ranks(2, |rank| {
        let problem = case().sharded(&[256, 256]);
        let pieces = 1 + rank.rank();
        let (strategy, engine) = (Strategy::Fused, Engine::CopyEngines { streams: 1 });
        let table = table(&problem, &rank, Way { strategy, engine, pieces });
        let error = plan(&rank, &problem, &table).map(|_| ()).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error}");
        plan(&rank, &problem, &Tuning::none()).unwrap();
    });
}
