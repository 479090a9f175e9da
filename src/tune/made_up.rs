//! Made-up measurements for tests.

use super::entry::{Entry, Family, Multiplying, Shape, Times};
use crate::element::ElementType;
use crate::kernels::Kernel;
use crate::plan::{
    BLayout, ClusterShape, ElementTypes, Engine, Operation, Problem, Scaling, Strategy, TileShape,
    Way,
};

pub fn family() -> Family {
    Family {
        operation: Operation::AllGatherGemm,
        gpu: "NVIDIA H200".into(),
        ranks: 2,
        elements: ElementTypes::all(ElementType::Bf16),
        scaling: Scaling::None,
        b_layout: BLayout::Nk,
    }
}

pub fn multiplying(kernel: &str, rows: u32, columns: u32) -> Multiplying {
    Multiplying {
        kernel: kernel.into(),
        tile: TileShape { m: rows, n: columns },
        cluster: ClusterShape { m: 2, n: 1 },
        swizzle: 1,
        splits: 1,
    }
}

pub fn way(streams: u32, pieces: u32) -> Way {
    Way { strategy: Strategy::Fused, engine: Engine::CopyEngines { streams }, pieces }
}

/// M × N × K on two ranks; fused, copies on one stream, a kernel of that name.
pub fn entry([m, n, k]: [u32; 3], kernel: &str, pieces: u32, us: f64) -> Entry {
    Entry {
        family: family(),
        shape: Shape { m, n, k },
        sms: 132,
        driver: "580.1".into(),
        crate_version: "0.1.0".into(),
        way: way(1, pieces),
        multiplying: Some(match Kernel::from_name(kernel) {
            Some(_) => of_kernel(kernel),
            None => multiplying(kernel, 128, 128),
        }),
        us: Times { graph: Some(us), plain: None },
    }
}

/// Gathered by two ranks.
pub fn problem(m: u32, n: u32, k: u32) -> Problem {
    Problem::builder(m.into(), n.into(), k.into()).ranks(2).build().unwrap()
}

/// A kernel that can be compiled.
pub fn of_kernel(name: &str) -> Multiplying {
    let Kernel { tile, cluster, .. } = Kernel::from_name(name).unwrap();
    Multiplying { kernel: name.into(), tile, cluster, swizzle: 1, splits: 1 }
}
