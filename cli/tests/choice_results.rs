//! The kernels that the library chooses, beside sweeps over many kernels in `benches/results`: how much time the choice loses.
//!
//! What belongs here: the files, and the bounds; nothing is timed. Invariant: of the kernels that a sweep has, one that a product's
//! line leaves out counts as slow, so a choice cannot look good for want of a measurement. Kernels that a sweep does not have
//! are not offered.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

use overlap_gemm::kernels::Kernel;
use overlap_gemm::plan::{Problem, Strategy};
use overlap_gemm::predict::{Machine, Setup};

/// Products of 1 to 511 rows, of 1 to 64 with kernels that cut K for tiles of 64 columns, and of more.
const FEW_ROWS: &str = "2026-11-27-h200-few-rows.txt";
const CUT: &str = "2026-11-27-h200-few-rows-cut.txt";
const MANY_ROWS: &str = "2026-11-27-h200-many-rows.txt";
/// What a kernel that the file leaves out counts as, times the best: it leaves out what takes longer.
const LEFT_OUT: f64 = 2.0;

/// One product: µs by kernel and slices.
struct Swept {
    problem: Problem,
    times: BTreeMap<(String, u32), f64>,
}

/// `16x128x128_1x1_ct` as the library names it.
fn name(short: &str) -> String {
    let (shape, schedule) = short.rsplit_once('_').unwrap();
    let schedule = match schedule {
        "c" => "cooperative",
        "ct" => "cooperative_transposed",
        "p" => "pingpong",
        "pt" => "pingpong_transposed",
        other => panic!("{other}"),
    };
    format!("bf16_bf16_bf16_nk_{shape}_{schedule}")
}

fn swept(file: &str) -> Vec<Swept> {
    let file = Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../benches/results")).join(file);
    let text = fs::read_to_string(file).unwrap();
    let products = text.lines().filter(|line| line.contains(" cublaslt="));
    let read = |line: &str| {
        let mut words = line.split(' ');
        let sizes: Vec<u64> =
            words.next().unwrap().split('x').map(|n| n.parse().unwrap()).collect();
        let problem = Problem::builder(sizes[0], sizes[1], sizes[2]).build().unwrap();
        let kernels = words.filter_map(|word| word.split_once('/'));
        let times = kernels.map(|(short, rest)| {
            let (slices, us) = rest.split_once('=').unwrap();
            ((name(short), slices.parse().unwrap()), us.parse().unwrap())
        });
        Swept { problem, times: times.collect() }
    };
    products.map(read).collect()
}

impl Swept {
    fn best(&self) -> f64 {
        self.times.values().copied().fold(f64::INFINITY, f64::min)
    }

    /// The time of that kernel. Of a number of slices that was not measured, the slower of the two next to it.
    fn time(&self, kernel: &str, slices: u32) -> f64 {
        let of = |slices: u32| self.times.get(&(kernel.to_owned(), slices)).copied();
        let below = (1..=slices).rev().find_map(of);
        let above = (slices..=16).find_map(of);
        match (below, above) {
            (Some(below), Some(above)) => below.max(above),
            _ => LEFT_OUT * self.best(),
        }
    }
}

/// The choice for each product, among the kernels of the sweep, at least `fewest`, loses at most `worst`, and in the geometric mean
/// `mean`.
fn loses_at_most(swept: &[Swept], fewest: usize, worst: f64, mean: f64) {
    let names: BTreeSet<_> =
        swept.iter().flat_map(|of| of.times.keys()).map(|(name, _)| name).collect();
    let kernels: Vec<Kernel> =
        names.into_iter().map(|name| Kernel::from_name(name).unwrap()).collect();
    assert!(kernels.len() >= fewest, "{}", kernels.len());
    let lost = swept.iter().map(|of| {
        let (machine, strategy) = (Machine::h200(), Strategy::Sequential);
        let chosen = Setup::of_kernels(&kernels, &machine, &of.problem, strategy).unwrap();
        let (kernel, slices) = (chosen.kernel, chosen.splits);
        let lost = of.time(&kernel.name, slices) / of.best();
        assert!(lost <= worst, "{}: {kernel} in {slices} slices, {lost:.3}", of.problem);
        lost
    });
    let lost: Vec<f64> = lost.collect();
    let all = (lost.iter().map(|lost| lost.ln()).sum::<f64>() / lost.len() as f64).exp();
    assert!(all <= mean, "{all:.4}");
}

#[test]
fn the_choice_for_few_rows_loses_little() {
    let swept = swept(FEW_ROWS);
    assert_eq!(swept.len(), 43);
    loses_at_most(&swept, 71, 1.08, 1.009);
}

#[test]
fn the_choice_of_slices_loses_little() {
    let swept = swept(CUT);
    assert_eq!(swept.len(), 24);
    loses_at_most(&swept, 14, 1.15, 1.025);
}

#[test]
fn the_choice_for_many_rows_loses_little() {
    let swept = swept(MANY_ROWS);
    assert_eq!(swept.len(), 27);
    loses_at_most(&swept, 71, 1.07, 1.012);
}
