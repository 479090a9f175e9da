//! Made-up measurements for the tests of whoever reads them, and made-up hardware.

use super::entry::{Entry, Family, Gathering, Measured, Mover, Multiplying, Order, Shape, Time};
use crate::element::ElementType;
use crate::plan::{BLayout, ClusterShape, ElementTypes, Scaling, TileShape};

pub fn family() -> Family {
    Family {
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

pub fn gathering(streams: u32, pieces: u32) -> Gathering {
    Gathering { order: Order::Fused, mover: Mover::CopyEngines { streams }, pieces }
}

/// Fused, copies on one stream, a kernel of that name.
pub fn measured(kernel: &str, pieces: u32, us: f64) -> Measured {
    Measured {
        gathering: gathering(1, pieces),
        multiplying: multiplying(kernel, 128, 128),
        by_model: false,
        untuned: false,
        graph: Some(Time::new(us, 0.01, 7)),
        plain: None,
    }
}

pub fn entry(m: u32, n: u32, k: u32, measured: Vec<Measured>) -> Entry {
    Entry {
        family: family(),
        shape: Shape { m, n, k },
        sms: 132,
        driver: "580.1".into(),
        crate_version: "0.1.0".into(),
        measured,
    }
    .sorted()
}

/// The same, with the kernel that the cost model chooses.
pub fn by_model(kernel: &str, pieces: u32, us: f64) -> Measured {
    Measured { by_model: true, ..measured(kernel, pieces, us) }
}

/// Made-up hardware, where what is best depends on the size: a kernel is quick for small shards, copies for large
/// ones, more pieces let the first tiles begin sooner, and each costs.
fn truth(shape: Shape, way: &Gathering) -> f64 {
    let (m, n, k) = (f64::from(shape.m), f64::from(shape.n), f64::from(shape.k));
    let product = 2.0 * m * n * k / 6.5e8;
    let bytes = m / 2.0 * k * 2.0;
    let pieces = f64::from(way.pieces);
    let travel = match way.mover {
        Mover::CopyEngines { streams } => {
            6.0 + 2.5 * pieces / f64::from(streams.min(2)) + bytes / 3.7e5
        }
        Mover::Kernel { blocks } => 2.0 + bytes / (9e3 * f64::from(blocks)).min(2.5e5),
    };
    match way.order {
        Order::Fused => product.max(travel) + 4.0 + travel / pieces / 2.0,
        Order::Pipelined => product * 1.03 + travel / 4.0 + 14.0,
        Order::Sequential => product + travel + 2.0,
    }
}

pub fn ways() -> Vec<Gathering> {
    let movers = [
        Mover::CopyEngines { streams: 1 },
        Mover::CopyEngines { streams: 2 },
        Mover::Kernel { blocks: 16 },
        Mover::Kernel { blocks: 64 },
    ];
    let mut all = Vec::new();
    for order in [Order::Fused, Order::Pipelined, Order::Sequential] {
        for mover in movers {
            all.extend([1, 2, 4].map(|pieces| Gathering { order, mover, pieces }));
        }
    }
    all
}

/// All ways with one kernel, on that hardware.
pub fn synthetic(shape: Shape) -> Entry {
    let one = |way: &Gathering| Measured {
        gathering: *way,
        graph: Some(Time::new(truth(shape, way), 0.01, 7)),
        ..by_model("a", 1, 1.0)
    };
    entry(shape.m, shape.n, shape.k, ways().iter().map(one).collect())
}
