//! The reductions in files of results, as predictions need them.
//!
//! What belongs here: how tables and JSON are read; which files are compared, and how far off predictions may be, is up to
//! predict_results.rs.

use std::rc::Rc;

use overlap_gemm::kernels::{Kernel, all_kernels};
use overlap_gemm::plan::{Engine, Operation, Partials, Problem, Strategy, Way};
use overlap_gemm::predict::{Machine, Setup, estimate, ways_of_sums};
use serde_json::Value;

use super::{ALONE, BY_KERNEL, Document, OF_TWO_LATEST, PLAIN_TOO, kernels, quantile, result};

/// A reduction that was measured.
pub struct Reduced {
    pub operation: Operation,
    pub problem: Problem,
    pub graph: bool,
    pub way: Way,
    /// The kernels that there were.
    kernels: Rc<[Kernel]>,
    /// Kernel, swizzle and slices, where the file says them.
    multiplying: Option<[String; 3]>,
    pub us: f64,
}

/// The ways that are compared.
pub const WAYS: [&str; 4] = ["pipelined", "sequential", "by kernel", "fused"];

/// The way of a contender, by its place in [`WAYS`] and the pieces of a shard; `None`: it is none of this library's, or left
/// the way open.
fn way_of(problem: &Problem, who: &str, by_kernel: bool, pieces: u32) -> Option<Way> {
    let nth = match (who, by_kernel) {
        ("pipelined", _) => 0,
        ("sequential", false) => 1,
        ("sequential", true) => 2,
        ("fused", _) => 3,
        _ => return None,
    };
    Some(ways_of_sums(problem, Operation::GemmAllReduce, Some(pieces))[nth])
}

/// The reductions in a file of results.
pub fn reductions(name: &str) -> Vec<Reduced> {
    if ALONE.contains(&name) {
        return alone(name);
    }
    let (text, with_auto) = (result(name), BY_KERNEL.contains(&name));
    let mut all = match name.ends_with(".txt") {
        true => reductions_of_text(&text),
        false => reductions_of_json(&text, with_auto),
    };
    all.retain(|of| name != PLAIN_TOO || of.problem.m() != 4096);
    let is_slower = |of: &Reduced| of.name() == "by kernel" && !BY_KERNEL.contains(&name);
    all.retain(|of| !is_slower(of) || of.problem.m() < 1024);
    all
}

/// Tables, in which `sequential` is by a kernel; the library chooses how to multiply, of the kernels of those days.
fn reductions_of_text(text: &str) -> Vec<Reduced> {
    let Document { runs } = serde_json::from_str(&result(OF_TWO_LATEST[0])).unwrap();
    let kernels: Rc<[Kernel]> = kernels(&runs[0].machine.kernels).into();
    let (mut operation, mut problem, mut found) = (None, None, Vec::new());
    for line in text.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        if line.contains(" × NVIDIA H200") {
            operation = Some(match line.contains("all-reduce") {
                true => Operation::GemmAllReduce,
                false => Operation::GemmReduceScatter,
            });
        }
        if let [sizes, "bf16"] = words[..] {
            problem = Some(between_two(sizes));
        }
        let (Some(problem), [who, launch, us, ..]) = (&problem, &words[..]) else { continue };
        // What is fused now was slower then.
        let Some(way) = way_of(problem, who, true, 1).filter(|_| *who != "fused") else { continue };
        let (graph, us) = (*launch == "graph", us.parse().unwrap());
        let (operation, problem) = (operation.unwrap(), problem.clone());
        let kernels = kernels.clone();
        found.push(Reduced { operation, problem, graph, way, kernels, multiplying: None, us });
    }
    found
}

/// The problem of these sizes between two GPUs.
fn between_two(sizes: &str) -> Problem {
    let sizes: Vec<u64> = sizes.split('×').map(|size| size.parse().unwrap()).collect();
    Problem::builder(sizes[0], sizes[1], sizes[2]).ranks(2).build().unwrap()
}

/// Those without a product, all in graphs: by a kernel, but for the tables of commands without `--blocks`.
fn alone(name: &str) -> Vec<Reduced> {
    let (text, mut found) = (result(name), Vec::new());
    let mut add = |of_all: bool, problem: Problem, by_kernel: bool, us| {
        let operation = if of_all { Operation::AllReduce } else { Operation::ReduceScatter };
        let way = ways_of_sums(&problem, operation, Some(1))[usize::from(by_kernel)];
        let (kernels, multiplying) = (all_kernels().into(), None);
        found.push(Reduced { operation, problem, graph: true, way, kernels, multiplying, us });
    };
    if name.ends_with(".json") {
        let document: Value = serde_json::from_str(&text).unwrap();
        for case in each(&each(&document, "runs")[0], "cases") {
            for row in each(&case, "rows").iter().filter(|row| row["who"] == "reduce") {
                let problem = serde_json::from_value(case["problem"].clone()).unwrap();
                let rounds: Vec<f64> = serde_json::from_value(row["rounds_us"].clone()).unwrap();
                add(name.contains("all-reduce"), problem, true, quantile(&rounds, 0.5));
            }
        }
        return found;
    }
    let (mut command, mut problem) = ("", None);
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["$", ..] => command = line,
            [sizes, "bf16"] => problem = Some(between_two(sizes)),
            ["reduce", "graph", us, ..] => {
                let [of_all, by_kernel] =
                    ["gemm-all-reduce", "--blocks"].map(|word| command.contains(word));
                add(of_all, problem.clone().unwrap(), by_kernel, us.parse().unwrap());
            }
            _ => {}
        }
    }
    found
}

/// The elements of a list in JSON.
fn each(value: &Value, name: &str) -> Vec<Value> {
    value[name].as_array().unwrap().clone()
}

fn reductions_of_json(text: &str, with_auto: bool) -> Vec<Reduced> {
    let document: Value = serde_json::from_str(text).unwrap();
    let mut found = Vec::new();
    for run in each(&document, "runs") {
        let operation: Operation = serde_json::from_value(run["operation"].clone()).unwrap();
        let names: Vec<String> = serde_json::from_value(run["machine"]["kernels"].clone()).unwrap();
        let kernels: Rc<[Kernel]> = kernels(&names).into();
        for case in each(&run, "cases") {
            let problem: Problem = serde_json::from_value(case["problem"].clone()).unwrap();
            for row in each(&case, "rows") {
                // `pipelined: …, moved by …; PROBLEM: KERNEL, 132 SMs, swizzle 8, K in 1 slices`
                let (who, what) = (row["who"].as_str().unwrap(), row["what"].as_str().unwrap());
                // Elsewhere between two GPUs each way was measured by itself.
                let chosen = what.split(':').next().unwrap();
                let is_chosen = who == "auto" && (with_auto || problem.ranks() > 2);
                let who = if is_chosen { chosen } else { who };
                let by_kernel = what.contains("moved by a kernel");
                let chunks = what.split_once("sums: ").and_then(|(_, rest)| rest.split(' ').next());
                let chunks: u32 = chunks.map_or(1, |chunks| chunks.parse().unwrap());
                let pieces = chunks.div_ceil(problem.ranks());
                let Some(way) = way_of(&problem, who, by_kernel, pieces) else { continue };
                let rounds: Vec<f64> = serde_json::from_value(row["rounds_us"].clone()).unwrap();
                let product: Vec<&str> = what.rsplit_once(": ").unwrap().1.split(", ").collect();
                let number =
                    |nth: usize| product[nth].split(' ').find(|word| word.parse::<u32>().is_ok());
                let multiplying = [product[0], number(2).unwrap(), number(3).unwrap()];
                found.push(Reduced {
                    operation,
                    problem: problem.clone(),
                    graph: row["graph"] == true,
                    way,
                    kernels: kernels.clone(),
                    multiplying: Some(multiplying.map(str::to_owned)),
                    us: quantile(&rounds, 0.5),
                });
            }
        }
    }
    // The bench times contenders of one plan once, and writes the time in both rows.
    found.dedup_by(|one, other| {
        let key = |of: &Reduced| (of.us, of.way, of.graph);
        key(one) == key(other) && one.problem == other.problem
    });
    found
}

impl Reduced {
    pub fn predicted(&self) -> f64 {
        let Reduced { operation, problem, way, .. } = self;
        let machine = Machine::h200();
        let setup =
            Setup::of_sums(&self.kernels, &machine, problem, *operation, *way, Partials::Bf16);
        let mut setup = setup.unwrap();
        if let Some([kernel, swizzle, splits]) = &self.multiplying {
            setup.kernel = Kernel::from_name(kernel).unwrap();
            (setup.swizzle, setup.splits) = (swizzle.parse().unwrap(), splits.parse().unwrap());
        }
        let plan = setup.plan(problem).unwrap();
        estimate(&machine, &plan, &setup).unwrap().total.as_secs_f64() * 1e6
    }

    /// One of [`WAYS`].
    pub fn name(&self) -> &'static str {
        match (self.way.strategy, self.way.engine) {
            (_, Engine::Kernel { .. }) => "by kernel",
            (Strategy::Fused, _) => "fused",
            (Strategy::Pipelined, _) => "pipelined",
            _ => "sequential",
        }
    }
}
