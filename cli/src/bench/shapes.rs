//! The arguments that say which problems are measured: by shape, or by name.
//!
//! Invariant: nothing is measured twice.

use std::collections::BTreeSet;

use overlap_gemm::plan::{BLayout, Operation, Scaling};

use super::cases::{Case, Shape, Types};
use super::sets::LayerSet;
use crate::exit::Failure;
use crate::problem_args;

/// Which problems, of which types.
#[derive(clap::Args)]
pub struct ShapeArgs {
    /// Problems: M of all ranks together, N (where sums are reduced: K) of one rank
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

    /// Types: of A and B, or AxB, or AxB:D; such as bf16,e4m3
    #[arg(long, value_name = "TYPES,...", value_delimiter = ',', default_value = "bf16")]
    types: Vec<Types>,

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
    ) -> Result<Vec<Case>, Failure> {
        let mut shapes = self.shapes.clone();
        for set in &self.set {
            shapes.extend(set.shapes(operation, ranks, &self.m)?);
        }
        if shapes.is_empty() {
            shapes = usual.to_vec();
        }
        let mut cases = Case::of_shapes(&shapes, &self.types, b_layout, self.scaling)?;
        // Sets may have shapes in common, and lists may say a thing twice. A case's name says all of it.
        let mut seen = BTreeSet::new();
        cases.retain(|case| seen.insert(case.to_string()));
        Ok(cases)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::typed::typed;

    fn names(line: &str) -> Vec<String> {
        let args = typed::<ShapeArgs>(line).unwrap();
        let usual = ["8x8x8".parse().unwrap()];
        let cases = args.cases(&usual, Operation::AllGatherGemm, 8, BLayout::Nk).unwrap();
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
}
