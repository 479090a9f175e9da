//! The arguments that say which problems of several ranks are measured: by shape, or by name.
//!
//! Invariant: `bench all-gather-gemm` and `tune` take the same, and differ in what they do by default: each gives either
//! `shapes` or `set` a default ([`unless`]), so that exactly one of them says something.

use clap::Arg;
use clap::builder::ArgPredicate;
use overlap_gemm::plan::{BLayout, Scaling};

use super::cases::{Case, Shape, Types};
use super::sets::LayerSet;
use crate::exit::Failure;
use crate::problem_args;

/// Which problems, of which types.
#[derive(clap::Args)]
pub struct ShapeArgs {
    /// Problems: M of all ranks together, N of one rank, K
    #[arg(long, value_name = "MxNxK,...", value_delimiter = ',')]
    shapes: Vec<Shape>,

    /// Problems by name instead: layers of models, cut by columns among the ranks
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

/// For `mut_arg`: `values` are the default of an argument, unless `other` was given.
pub fn unless(other: &'static str, values: &'static [&'static str]) -> impl Fn(Arg) -> Arg {
    move |arg| {
        arg.default_value_if(other, ArgPredicate::IsPresent, None::<&str>).default_values(values)
    }
}

impl ShapeArgs {
    /// What was asked for, nothing twice, as one rank of so many multiplies it.
    pub fn cases(&self, ranks: u32, b_layout: BLayout) -> Result<Vec<Case>, Failure> {
        let mut shapes = self.shapes.clone();
        for set in &self.set {
            // Sets may have shapes in common.
            let new = set.shapes(ranks, &self.m)?.into_iter();
            shapes.extend(new.filter(|shape| !shapes.contains(shape)).collect::<Vec<_>>());
        }
        Ok(Case::of_shapes(&shapes, &self.types, b_layout, self.scaling)?)
    }
}
