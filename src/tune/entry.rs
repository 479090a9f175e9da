//! One measured problem: the problem, its fastest plan, and the plan's time.
//!
//! What belongs here: the plain values of the file, and their validation. Invariant: an [`Entry`] that
//! [`Entry::check`] has passed is of an operation that is tuned, can be planned, and has at least one time; all times are
//! positive. Its kernel is named, unless a fused reduction has several.

use std::fmt;
use std::ops::RangeInclusive;

use serde::{Deserialize, Serialize};

use crate::kernels::Kernel;
use crate::plan::{
    BLayout, ClusterShape, ElementTypes, Engine, Operation, Problem, Scaling, TileShape, Tiling,
    Way,
};
use crate::predict::Setup;

/// The properties that the problems of an entry share, except the size.
///
/// ```
/// use overlap_gemm::plan::{Operation, Problem};
/// use overlap_gemm::tune::Family;
///
/// let problem = Problem::builder(4096, 3584, 8192).ranks(2).build()?;
/// let family = Family::of(Operation::AllGatherGemm, &problem, "NVIDIA H200");
/// assert_eq!(family.to_string(), "all-gather + GEMM on 2 × NVIDIA H200, bf16 × bf16 → bf16");
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Family {
    /// All-gather + GEMM, or a reduction with a product, whose sums travel in bf16.
    pub operation: Operation,
    /// The GPU of every rank, as the driver calls it.
    pub gpu: String,
    /// The number of ranks.
    pub ranks: u32,
    /// The element types.
    pub elements: ElementTypes,
    /// The scales of fp8.
    pub scaling: Scaling,
    /// How B lies in memory.
    pub b_layout: BLayout,
}

impl Family {
    /// Of a problem on GPUs of that name.
    pub fn of(operation: Operation, problem: &Problem, gpu: &str) -> Family {
        Family {
            operation,
            gpu: gpu.into(),
            ranks: problem.ranks(),
            elements: problem.elements(),
            scaling: problem.scaling(),
            b_layout: problem.b_layout(),
        }
    }
}

impl fmt::Display for Family {
    /// `all-gather + GEMM on 2 × NVIDIA H200, e4m3 × e4m3 → bf16, row scales`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Family { operation, gpu, ranks, elements, scaling, b_layout } = self;
        write!(f, "{operation} on {ranks} × {gpu}, {elements}{}", scaling.after_types())?;
        f.write_str(match b_layout {
            BLayout::Nk => "",
            BLayout::Kn => ", B k×n",
        })
    }
}

/// The size of a problem: M of all ranks together, N of one; in a reduction N is whole, and K one rank's.
///
/// ```
/// use overlap_gemm::tune::Shape;
///
/// let [one, twice] = [4096, 8192].map(|m| Shape { m, n: 3584, k: 8192 });
/// assert!(one.distance(twice) > one.distance(one));
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Shape {
    /// Rows of A and D.
    pub m: u32,
    /// Columns of B and D.
    pub n: u32,
    /// Columns of A.
    pub k: u32,
}

impl Shape {
    /// Of a problem.
    pub fn of(problem: &Problem) -> Shape {
        Shape { m: problem.m(), n: problem.n(), k: problem.k() }
    }

    /// The distance of two sizes, in doublings: the sum of |log2| of the ratios of their M, N and K.
    pub fn distance(self, other: Shape) -> f64 {
        let doublings = |one: u32, other: u32| (f64::from(one) / f64::from(other)).log2().abs();
        doublings(self.m, other.m) + doublings(self.n, other.n) + doublings(self.k, other.k)
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}×{}×{}", self.m, self.n, self.k)
    }
}

/// The kernel and its parameters. The name determines tile and cluster: they are in the file for
/// readers.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Multiplying {
    /// Its name.
    pub kernel: String,
    /// Rows and columns of one tile.
    pub tile: TileShape,
    /// Tiles of one cluster.
    pub cluster: ClusterShape,
    /// Unit rows that sweep over the columns together.
    pub swizzle: u32,
    /// Slices that K is cut into.
    pub splits: u32,
}

impl Multiplying {
    /// That kernel, run that way.
    pub fn of(kernel: &Kernel, swizzle: u32, splits: u32) -> Multiplying {
        let Kernel { name, tile, cluster, .. } = kernel;
        Multiplying { kernel: name.clone(), tile: *tile, cluster: *cluster, swizzle, splits }
    }

    /// The setup of an operation that is carried out this way; `kernel` is the one of that name.
    pub(super) fn setup(&self, operation: Operation, way: Way, kernel: Kernel) -> Setup {
        let Multiplying { swizzle, splits, .. } = *self;
        Setup { operation, way, kernel, swizzle, splits, sms: None }
    }
}

impl Multiplying {
    /// An error if a value is invalid.
    fn check(&self) -> Result<(), String> {
        let Multiplying { ref kernel, tile, cluster, swizzle, splits } = *self;
        if kernel.is_empty() {
            return Err("a kernel has no name".into());
        }
        at_least_one("the number of splits", splits)?;
        let tiling = Tiling { tile, cluster, swizzle };
        tiling.check().map_err(|error| error.to_string())
    }
}

fn at_least_one(what: &str, value: u32) -> Result<(), String> {
    if value == 0 { Err(format!("{what} is 0")) } else { Ok(()) }
}

impl fmt::Display for Multiplying {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}, swizzle {}, K in {}", self.kernel, self.swizzle, self.splits)
    }
}

/// Microseconds of a step on the slowest rank, the median over the rounds.
///
/// ```
/// use overlap_gemm::tune::Times;
///
/// let only_in_graphs = Times { graph: Some(374.0), ..Times::default() };
/// assert!(Times::RANGE_US.contains(&374.0));
/// # let _ = only_in_graphs;
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Times {
    /// In CUDA graphs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub graph: Option<f64>,
    /// Launched one by one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub plain: Option<f64>,
}

impl Times {
    /// The valid range of a time in microseconds: a nanosecond to eleven days. Arithmetic with times fails beyond it.
    pub const RANGE_US: RangeInclusive<f64> = 1e-3..=1e12;
}

/// One problem and its fastest measured plan.
///
/// A plan does not know whether its steps will be captured into graphs. So an entry has one plan: if both launch modes
/// were measured, the one with the smallest worst-case slowdown over both.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Entry {
    /// The kind of problem.
    pub family: Family,
    /// The problem's size. Its rows are distributed evenly.
    pub shape: Shape,
    /// SMs of the GPU.
    pub sms: u32,
    /// The driver of the measurement.
    pub driver: String,
    /// The version of this crate.
    pub crate_version: String,
    /// Strategy, engine and pieces.
    pub way: Way,
    /// The kernel; `None`: the cost model chooses one for each product of a fused reduction, since some of them add sums.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub multiplying: Option<Multiplying>,
    /// The times in each measured launch mode.
    pub us: Times,
}

impl Entry {
    /// An error if a value is invalid.
    pub fn check(&self) -> Result<(), String> {
        let Entry { family, shape, sms, way, .. } = self;
        let operation = family.operation;
        if operation != Operation::AllGatherGemm && (!operation.reduces() || operation.is_alone()) {
            return Err(format!("the operation is {operation}, which is not tuned"));
        }
        let numbers = [
            ("the number of ranks", family.ranks),
            ("m", shape.m),
            ("n", shape.n),
            ("k", shape.k),
            ("the number of SMs", *sms),
        ];
        numbers.iter().try_for_each(|(what, value)| at_least_one(what, *value))?;
        family.elements.check().map_err(|error| error.to_string())?;
        match &self.multiplying {
            Some(multiplying) => multiplying.check()?,
            None if operation.products_add_up(way.strategy, way.engine) => {}
            None => return Err("it has no kernel".into()),
        }
        at_least_one("the number of pieces", way.pieces)?;
        way.check().map_err(|error| error.to_string())?;
        if matches!(way.engine, Engine::Thread | Engine::Nccl) {
            let what = if operation.reduces() { "sums" } else { "rows" };
            return Err(format!("{what} travel by {}, which is not tuned", way.engine));
        }
        operation.check(way.strategy, way.engine).map_err(|error| error.to_string())?;
        if self.us == Times::default() {
            return Err("it has no time".into());
        }
        let (least, most) = (Times::RANGE_US.start(), Times::RANGE_US.end());
        let mut times = [self.us.graph, self.us.plain].into_iter().flatten();
        match times.find(|us| !Times::RANGE_US.contains(us)) {
            Some(us) => Err(format!("a time is {us} µs, but must be between {least} and {most}")),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{entry, multiplying};
    use super::*;
    use crate::plan::Strategy;

    #[test]
    fn what_cannot_be_is_found() {
        let good = entry([64, 128, 256], "a", 1, 10.0);
        assert_eq!(good.check(), Ok(()));
        let broken = |change: &dyn Fn(&mut Entry), words: &str| {
            let mut entry = good.clone();
            change(&mut entry);
            let why = entry.check().unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        broken(&|entry| entry.shape.k = 0, "k is 0");
        broken(&|entry| entry.family.ranks = 0, "ranks is 0");
        broken(&|entry| entry.way.pieces = 0, "pieces is 0");
        let kernel = |change: fn(&mut Multiplying)| {
            move |entry: &mut Entry| entry.multiplying.iter_mut().for_each(change)
        };
        broken(&kernel(|one| one.splits = 0), "splits is 0");
        broken(&kernel(|one| one.swizzle = 0), "the swizzle is 0");
        broken(&kernel(|one| one.tile.m = 0), "tile's rows is 0");
        broken(&kernel(|one| one.kernel.clear()), "no name");
        broken(&|entry| entry.multiplying = None, "it has no kernel");
        broken(&|entry| entry.us.graph = None, "no time");
        for us in [0.0, -1.0, f64::NAN, f64::INFINITY, 1e200, 5e-324, 9e-4, 1.1e12] {
            let words = "µs, but must be between 0.001 and 1000000000000";
            broken(&|entry| entry.us.graph = Some(us), words);
            broken(&|entry| entry.us.plain = Some(us), words);
        }
        let engine = |engine: Engine| move |entry: &mut Entry| entry.way.engine = engine;
        broken(
            &engine(Engine::CopyEngines { streams: 9 }),
            "streams is 9, but must be between 1 and 8",
        );
        broken(&engine(Engine::Kernel { blocks: 129 }), "between 1 and 128");
        broken(&engine(Engine::Thread), "a thread, which is not tuned");
    }

    #[test]
    fn reductions_have_ways_of_their_own() {
        let mut entry = entry([64, 128, 256], "a", 1, 10.0);
        entry.family.operation = Operation::GemmAllReduce;
        assert_eq!(entry.check(), Ok(()));
        let refused = |entry: &Entry, words: &str| {
            let why = entry.check().unwrap_err();
            assert!(why.contains(words), "{why}");
        };
        let with = |strategy, engine, multiplying: Option<Multiplying>| {
            let way = Way { strategy, engine, pieces: 1 };
            Entry { way, multiplying, ..entry.clone() }
        };
        let (copies, named) = (Engine::CopyEngines { streams: 1 }, || Some(multiplying("a", 8, 8)));
        // The products of a fused step have several kernels.
        assert_eq!(with(Strategy::Fused, copies, None).check(), Ok(()));
        refused(&with(Strategy::Pipelined, copies, None), "it has no kernel");
        let by_kernel = |strategy| with(strategy, Engine::EXCHANGING, named());
        assert_eq!(by_kernel(Strategy::Sequential).check(), Ok(()));
        refused(&by_kernel(Strategy::Fused), "Strategy::Sequential");
        refused(&with(Strategy::Sequential, Engine::Nccl, named()), "sums travel by NCCL");
        for operation in [Operation::AllReduce, Operation::ReduceScatter, Operation::Gemm] {
            entry.family.operation = operation;
            refused(&entry, &format!("the operation is {operation}, which is not tuned"));
        }
    }

    #[test]
    fn distances_count_doublings() {
        let shape = |m, n, k| Shape { m, n, k };
        assert_eq!(shape(64, 64, 64).distance(shape(64, 64, 64)), 0.0);
        assert_eq!(shape(64, 64, 64).distance(shape(256, 64, 64)), 2.0);
        assert_eq!(shape(8, 800, 64).distance(shape(64, 100, 64)), 6.0);
    }
}
