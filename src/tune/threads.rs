//! What a table says of steps on threads of this machine.
//!
//! What belongs here: the table's words for such steps, and the answers. A machine's threads are kept as a GPU of a name that
//! says so ([`threads_name`]), whose SMs are the machine's cores; a rank's rows travel by the one thread that pushes them, which is what copies
//! on one stream are; a kernel is a tile. Nothing predicts such steps, so nothing is corrected either: an answer is what was
//! measured for the problem, or for the nearest one. Invariant: what is answered can be carried out for the problem that was
//! asked for.

use std::fmt;

use super::entry::{Family, Gathering, Measured, Mover, Multiplying, Order, Place};
use super::lookup::{is_even, nearest};
use super::table::Tuning;
use crate::plan::{ClusterShape, MAX_TILE_EXTENT, Plan, PlanOptions, Problem, TileShape, Tiling};

/// How the names of threads begin, and those of no GPU.
const THREADS: &str = "threads";

/// What a table calls the GPU of ranks that are threads of a machine with so many cores, where each rank sends so many bytes in a
/// second, or as many as memory takes: what is best differs with both.
///
/// ```
/// use overlap_gemm::tune::threads_name;
///
/// assert_eq!(threads_name(2, None), "threads (2 cores)");
/// assert_eq!(threads_name(64, Some(60e6)), "threads (64 cores), 60 MB/s");
/// ```
pub fn threads_name(cores: u32, bytes_per_second: Option<f64>) -> String {
    match bytes_per_second {
        None => format!("{THREADS} ({cores} cores)"),
        Some(rate) => format!("{THREADS} ({cores} cores), {} MB/s", rate / 1e6),
    }
}

/// Whether that is the name of threads.
pub fn is_threads(gpu: &str) -> bool {
    gpu.strip_prefix(THREADS).is_some_and(|rest| rest.is_empty() || rest.starts_with(" ("))
}

/// What a table says of a step on threads.
#[derive(Clone, Debug, PartialEq)]
pub struct OnThreads {
    /// How to plan it.
    pub options: PlanOptions,
    /// In which order gathering and multiplying go by that, and in how many pieces rows travel.
    pub gathering: Gathering,
    /// Which tiles.
    pub multiplying: Multiplying,
    /// The problem that was measured, if it was another.
    pub from: Option<Place>,
    /// The processor that it was measured on.
    pub processor: String,
}

impl fmt::Display for OnThreads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.from {
            None => f.write_str("tuned: measured for this problem")?,
            Some(Place { shape, ranks }) => {
                write!(f, "as was measured for {shape} on {ranks} ranks, the nearest")?;
            }
        }
        write!(f, ", on {}", self.processor)
    }
}

impl Gathering {
    /// How rows travel between threads.
    pub fn on_threads(order: Order, pieces: u32) -> Gathering {
        Gathering { order, mover: Mover::CopyEngines { streams: 1 }, pieces }
    }
}

impl Multiplying {
    /// Tiles on threads.
    pub fn on_threads(tile: TileShape, swizzle: u32) -> Multiplying {
        Multiplying {
            kernel: format!("{THREADS}_{}x{}", tile.m, tile.n),
            tile,
            cluster: ClusterShape { m: 1, n: 1 },
            swizzle,
            splits: 1,
        }
    }
}

/// How many tiles a thread has at least, where they are as high as A, and how many columns they have all the same.
const TILES_A_WORKER: u32 = 4;
const LEAST_COLUMNS: u32 = 16;

/// How a step on threads of a machine with so many cores is planned that is carried out so; `None`: it cannot be.
///
/// All rows come first where each tile needs the last of them: where it is as high as A. It is so narrow then that there are some
/// for each of a rank's threads.
///
/// ```
/// use overlap_gemm::plan::{Problem, TileShape};
/// use overlap_gemm::tune::{Gathering, Multiplying, Order, thread_options};
///
/// let problem = Problem::builder(1024, 512, 256).ranks(4).build()?;
/// let tiles = Multiplying::on_threads(TileShape { m: 256, n: 128 }, 4);
/// let fused = Gathering::on_threads(Order::Fused, 2);
/// let fused = thread_options(&fused, &tiles, &problem, 4).unwrap();
/// assert_eq!((fused.chunks_per_shard, fused.tiling.tile.m), (Some(2), 256));
/// let after = Gathering::on_threads(Order::Sequential, 1);
/// let after = thread_options(&after, &tiles, &problem, 4).unwrap();
/// assert_eq!((after.tiling.tile.m, after.tiling.tile.n), (1024, 128));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn thread_options(
    gathering: &Gathering,
    multiplying: &Multiplying,
    problem: &Problem,
    cores: u32,
) -> Option<PlanOptions> {
    let Multiplying { tile, cluster, swizzle, .. } = *multiplying;
    let tile = match gathering.order {
        Order::Fused => tile,
        Order::Sequential if problem.m() <= MAX_TILE_EXTENT => {
            let workers = (cores / problem.ranks()).max(1);
            let narrow = problem.n() / workers.saturating_mul(TILES_A_WORKER);
            TileShape { m: problem.m(), n: tile.n.min(narrow.max(LEAST_COLUMNS)) }
        }
        Order::Sequential | Order::Pipelined => return None,
    };
    let chunks = gathering.pieces.min(problem.shards().most_rows());
    let tiling = Tiling { tile, cluster, swizzle };
    let options = PlanOptions { chunks_per_shard: Some(chunks), tiling };
    Plan::new(problem, options).ok().map(|plan| plan.options())
}

impl Tuning {
    /// What it says of a step on threads of a machine with so many cores, where ranks send so many bytes a second, or as many as
    /// memory takes. `None`: no problem near it was measured so.
    pub fn on_threads(
        &self,
        problem: &Problem,
        cores: u32,
        bytes_per_second: Option<f64>,
    ) -> Option<OnThreads> {
        let threads = threads_name(cores, bytes_per_second);
        let (of, place) = (Family::of(problem, &threads), Place::of(problem));
        nearest(self.entries(), &of, place).into_iter().find_map(|entry| {
            let is_it = entry.place() == place && is_even(problem);
            let from = (!is_it).then(|| entry.place());
            entry.measured.iter().find_map(|one| {
                let Measured { gathering, multiplying, .. } = one;
                let options = thread_options(gathering, multiplying, problem, cores)?;
                let gathering = Gathering { pieces: options.chunks_per_shard?, ..*gathering };
                let (multiplying, processor) = (multiplying.clone(), entry.driver.clone());
                Some(OnThreads { options, gathering, multiplying, from, processor })
            })
        })
    }
}

#[cfg(test)]
mod tests {
    use super::super::entry::{Entry, Time};
    use super::super::made_up::entry;
    use super::*;

    fn measured(order: Order, pieces: u32, tile: (u32, u32), us: f64) -> Measured {
        Measured {
            gathering: Gathering::on_threads(order, pieces),
            multiplying: Multiplying::on_threads(TileShape { m: tile.0, n: tile.1 }, 2),
            by_model: false,
            untuned: false,
            graph: None,
            plain: Some(Time::new(us, 0.01, 7)),
        }
    }

    fn on_threads(m: u32, measured: Vec<Measured>) -> Entry {
        let mut entry = entry(m, 512, 256, measured);
        (entry.family.gpu, entry.sms) = (threads_name(2, None), 2);
        assert_eq!(entry.check(), Ok(()));
        entry
    }

    fn problem(m: u64) -> Problem {
        Problem::builder(m, 512, 256).ranks(2).build().unwrap()
    }

    #[test]
    fn the_problem_itself_counts_and_else_the_nearest() {
        let of = |m, tile| on_threads(m, vec![measured(Order::Fused, 4, tile, 10.0)]);
        let table = Tuning::of_entries(vec![of(1024, (64, 256)), of(256, (32, 512))]);
        let tile = |m| table.on_threads(&problem(m), 2, None).map(|it| it.options.tiling.tile.m);
        let from =
            |m| table.on_threads(&problem(m), 2, None).unwrap().from.map(|from| from.shape.m);
        assert_eq!((tile(1024), from(1024)), (Some(64), None));
        assert_eq!((tile(300), from(300)), (Some(32), Some(256)));
        assert_eq!((tile(4096), from(4096)), (Some(64), Some(1024)));
        assert_eq!(tile(16384), None, "nothing is near");
        assert_eq!(table.on_threads(&problem(1024), 64, None), None, "another machine");
        assert_eq!(table.on_threads(&problem(1024), 2, Some(1e6)), None, "another link");
        assert!(
            table.on_threads(&problem(300), 2, None).unwrap().to_string().contains("256×512×256")
        );
        // Fewer rows than pieces.
        let few = table.on_threads(&problem(40), 2, None).unwrap().options.chunks_per_shard;
        assert_eq!(few, Some(4));
        let one_row = Problem::builder(2, 512, 256).ranks(2).build().unwrap();
        assert_eq!(table.on_threads(&one_row, 2, None), None);
    }

    #[test]
    fn names_of_threads_are_no_gpu_s() {
        for name in [THREADS.into(), threads_name(2, None), threads_name(8, Some(0.3e6))] {
            assert!(is_threads(&name), "{name}");
        }
        assert!(!["NVIDIA H200", "threadsafe", ""].into_iter().any(is_threads));
    }

    #[test]
    fn what_cannot_be_is_passed_over() {
        let mut pipelined = measured(Order::Fused, 1, (8, 8), 9.0);
        pipelined.gathering.order = Order::Pipelined;
        let all = vec![
            pipelined,
            measured(Order::Sequential, 1, (256, 128), 10.0),
            measured(Order::Fused, 2, (128, 128), 11.0),
        ];
        let table = Tuning::of_entries(vec![on_threads(16384, all)]);
        let order = |m| table.on_threads(&problem(m), 2, None).unwrap().gathering.order;
        assert_eq!(order(16384), Order::Sequential);
        assert_eq!(order(16386), Order::Fused, "no tile is so high");
    }

    /// A file may say anything.
    #[test]
    fn more_chunks_than_a_plan_has_are_passed_over() {
        let all = vec![
            measured(Order::Fused, u32::MAX, (64, 64), 9.0),
            measured(Order::Fused, 3, (128, 128), 10.0),
        ];
        let table = Tuning::of_entries(vec![on_threads(200_000, all)]);
        let options = table.on_threads(&problem(200_000), 2, None).unwrap().options;
        assert_eq!(options.chunks_per_shard, Some(3));
    }

    #[test]
    fn all_rows_come_first_where_every_tile_needs_all() {
        let tile = Multiplying::on_threads(TileShape { m: 256, n: 128 }, 1);
        let gathering = Gathering::on_threads(Order::Sequential, 1);
        let problem = problem(1000);
        let of = |cores| thread_options(&gathering, &tile, &problem, cores).unwrap().tiling.tile;
        assert_eq!(of(2), TileShape { m: 1000, n: 128 });
        assert_eq!(of(8), TileShape { m: 1000, n: 32 }, "four threads a rank");
        assert_eq!(of(1 << 20), TileShape { m: 1000, n: 16 });
        assert_eq!(of(1), of(2), "fewer cores than ranks");
    }
}
