//! The arguments that say which problems are measured: by shape, by name, or drawn at random, so that nothing can be tuned to a
//! list of them.
//!
//! Invariant: nothing is measured twice; the same arguments and seed draw the same problems on every machine; in reductions D is
//! bf16, in which sums travel.

use std::collections::BTreeSet;

use overlap_gemm::ElementType;
use overlap_gemm::plan::{BLayout, ElementTypes, Operation, Scaling};
use overlap_gemm::random::Random;

use super::cases::{Case, Shape};
use super::sets::LayerSet;
use crate::exit::Failure;
use crate::problem_args;

/// The least and the largest N and K: those of layers, divided among ranks or not.
const COLUMNS: (u64, u64) = (1024, 16384);

/// Which problems, of which types.
#[derive(clap::Args)]
pub struct ShapeArgs {
    /// Problems: M counts the rows of all ranks; N counts one rank's columns (in a reduction N is whole, and K one rank's)
    #[arg(long, value_name = "MxNxK,...", value_delimiter = ',')]
    shapes: Vec<Shape>,

    /// Problems by name instead: layers of models, divided among the ranks
    #[arg(
        long,
        value_enum,
        value_name = "SET,...",
        value_delimiter = ',',
        conflicts_with = "shapes"
    )]
    set: Vec<LayerSet>,

    /// Rows of all ranks together, for --set [default: 512 to 16384, or 16 to 512, by powers of two]
    #[arg(long, value_name = "ROWS,...", value_delimiter = ',', requires = "set")]
    m: Vec<u64>,

    /// Draw this number of problems at random, by --seed, evenly over the logarithms of their sizes
    #[arg(long, value_name = "COUNT", conflicts_with_all = ["shapes", "set"],
          value_parser = clap::value_parser!(u32).range(1..=10_000))]
    random: Option<u32>,

    /// The least and the largest M, for --random
    #[arg(long, value_name = "LEAST-MOST", default_value = "512-16384", requires = "random",
          value_parser = rows)]
    random_rows: (u64, u64),

    /// What N and K are multiples of, for --random; they are between 1024 and 16384
    #[arg(long, value_name = "STEP", default_value_t = 128, requires = "random",
          value_parser = clap::value_parser!(u64).range(1..=1024))]
    random_step: u64,

    /// Element types of A, B and D as A, AxB or AxB:D; such as bf16,e4m3xe5m2:f16
    #[arg(long, value_name = "TYPES,...", value_delimiter = ',', default_value = "bf16",
          value_parser = problem_args::element_types)]
    types: Vec<ElementTypes>,

    /// Scales for fp8 [default: tensor]
    #[arg(long, value_parser = problem_args::scaling())]
    scaling: Option<Scaling>,
}

impl ShapeArgs {
    /// The problems that were asked for, or else the `usual` ones, each once, as one of `ranks` ranks multiplies them.
    pub fn cases(
        &self,
        usual: &[Shape],
        operation: Operation,
        ranks: u32,
        b_layout: BLayout,
        seed: u64,
    ) -> Result<Vec<Case>, Failure> {
        let mut shapes = self.shapes.clone();
        shapes.extend(self.drawn(seed));
        for set in &self.set {
            shapes.extend(set.shapes(operation, ranks, &self.m)?);
        }
        if shapes.is_empty() {
            shapes = usual.to_vec();
        }
        let mut cases = Case::of_shapes(&shapes, &self.types, b_layout, self.scaling)?;
        let is_odd = |case: &&Case| case.problem.elements().d != ElementType::Bf16;
        if let Some(case) = cases.iter().find(is_odd).filter(|_| operation.reduces()) {
            return Err(Failure::Usage(format!(
                "--types: {case} has D in {}, but sums travel in bf16 here, and D is bf16: give f16xf16:bf16, bf16 or e4m3",
                case.problem.elements().d
            )));
        }
        // Sets may have shapes in common, and lists may say a thing twice. A case's name says all of it.
        let mut seen = BTreeSet::new();
        cases.retain(|case| seen.insert(case.to_string()));
        Ok(cases)
    }

    /// The problems that are drawn, if any.
    fn drawn(&self, seed: u64) -> Vec<Shape> {
        let mut random = Random::new(seed);
        let (least, most) = self.random_rows;
        let mut shape = |_| {
            let m = log_uniform(&mut random, least, most, 1);
            let [n, k] =
                [0; 2].map(|_| log_uniform(&mut random, COLUMNS.0, COLUMNS.1, self.random_step));
            Shape { m, n, k }
        };
        (0..self.random.unwrap_or(0)).map(&mut shape).collect()
    }
}

/// A multiple of `step` between two others, if there is one.
fn log_uniform(random: &mut Random, least: u64, most: u64, step: u64) -> u64 {
    let (low, high) = ((least as f64).ln(), (most as f64).ln());
    let drawn = (low + random.fraction() * (high - low)).exp();
    let steps = (drawn / step as f64).round() as u64;
    (steps * step).clamp(least.next_multiple_of(step), most - most % step)
}

/// Reads `512-16384`.
fn rows(text: &str) -> Result<(u64, u64), String> {
    let numbers = text.split_once('-').map(|(least, most)| (least.parse(), most.parse()));
    match numbers {
        Some((Ok(least), Ok(most))) if (1..=most).contains(&least) => Ok((least, most)),
        _ => Err("give the least and the largest, such as 512-16384".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::typed::typed;

    fn names(line: &str) -> Vec<String> {
        let args = typed::<ShapeArgs>(line).unwrap();
        let usual = ["8x8x8".parse().unwrap()];
        let cases = args.cases(&usual, Operation::AllGatherGemm, 8, BLayout::Nk, 7).unwrap();
        cases.iter().map(Case::to_string).collect()
    }

    #[test]
    fn nothing_is_there_twice_and_the_order_is_kept() {
        assert_eq!(names(""), ["8×8×8 bf16"]);
        assert_eq!(names("--shapes 64x16x32,8x16x32,64x16x32"), ["64×16×32 bf16", "8×16×32 bf16"]);
        assert_eq!(names("--shapes 8x16x32 --types f16,bf16,f16xf16:f16").len(), 2);
        assert_eq!(names("--set gpt3 --m 64,128,64").len(), 4);
        // Two sets with layers in common.
        let (one, both) = (names("--set llama3-8b --m 64"), names("--set llama3-8b,decode --m 64"));
        assert_eq!((one.len(), both.len(), &both[..2]), (2, 6, &one[..]));
    }
    #[test]
    fn a_seed_draws_the_same_problems_within_the_limits() {
        let drawn = |line: &str, seed| typed::<ShapeArgs>(line).unwrap().drawn(seed);
        let shapes = drawn("--random 200", 7);
        assert_eq!(shapes, drawn("--random 200", 7));
        assert_ne!(shapes, drawn("--random 200", 8));
        assert_eq!((shapes.len(), drawn("", 7).len()), (200, 0));
        for Shape { m, n, k } in shapes {
            assert!((512..=16384).contains(&m));
            assert!([n, k].iter().all(|size| size % 128 == 0 && (1024..=16384).contains(size)));
        }
        // Steps that do not divide the limits.
        for Shape { m, n, .. } in drawn("--random 100 --random-rows 1-1 --random-step 1000", 1) {
            assert!(m == 1 && (2000..=16000).contains(&n) && n % 1000 == 0, "{n}");
        }
    }

    #[test]
    fn rows_are_two_numbers() {
        assert_eq!(rows("1-511"), Ok((1, 511)));
        for text in ["", "5", "0-5", "6-5", "a-b", "1-2-3", "-5-6"] {
            assert!(rows(text).is_err(), "{text}");
        }
    }
}
