//! The arguments that say what is multiplied, for every subcommand that multiplies.
//!
//! Invariant: nothing is checked here that the library checks; numbers are only read. So a message
//! about a size is the same here, in Rust, and in JSON that is read back.

use clap::ValueEnum;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use overlap_gemm::plan::{
    BLayout, ClusterShape, ElementTypes, Operation, PlanOptions, Problem, ProblemBuilder, Scaling,
    TileShape, Tiling,
};
use overlap_gemm::{ElementType, Error};

/// What is multiplied, and how its rows are spread.
#[derive(clap::Args)]
#[command(
    next_help_heading = "Problem: D (m×n) = A (m×k) · B (k×n), the rows of A distributed over ranks"
)]
pub struct ProblemArgs {
    /// Rows of A and D, over all ranks
    #[arg(long, allow_negative_numbers = true)]
    m: u64,

    /// Columns of B and D
    #[arg(long, allow_negative_numbers = true)]
    n: u64,

    /// Columns of A, the summed dimension
    #[arg(long, allow_negative_numbers = true)]
    k: u64,

    /// Number of ranks, each with an equal share of A's rows
    #[arg(long, allow_negative_numbers = true, required_unless_present = "shards")]
    ranks: Option<u64>,

    /// Rows of A of each rank, for unequal shards; some may be 0
    #[arg(
        long,
        value_name = "ROWS,ROWS,...",
        value_delimiter = ',',
        allow_negative_numbers = true
    )]
    shards: Option<Vec<u32>>,

    #[command(flatten)]
    kinds: KindArgs,
}

/// What the matrices hold, and how B lies.
#[derive(clap::Args)]
pub struct KindArgs {
    /// Element types (bf16, f16, f32, e4m3, e5m2): one for A and B, or AxB, or AxB:D such as e4m3xe5m2:f16
    /// [D, if not named: that of A, bf16 for fp8]
    #[arg(long, default_value = "bf16", value_parser = element_types)]
    types: ElementTypes,

    /// Layout of B in memory: n rows of k elements, or k rows of n
    #[arg(long, default_value = "nk", value_parser = b_layout())]
    b_layout: BLayout,

    /// Scales of fp8 inputs: one for each tensor, or one for each row of A and each column of D
    #[arg(long, default_value = "none", value_parser = scaling())]
    scaling: Scaling,
}

impl KindArgs {
    /// A problem of that size, of one rank so far.
    pub fn builder(&self, m: u64, n: u64, k: u64) -> ProblemBuilder {
        let ElementTypes { a, b, d } = self.types;
        Problem::builder(m, n, k).elements(a, b, d).b_layout(self.b_layout).scaling(self.scaling)
    }
}

/// Reads `bf16`, `e4m3xe5m2` or `bf16xbf16:f32`; D is like A, or bf16 for fp8, if not named.
pub fn element_types(text: &str) -> Result<ElementTypes, Error> {
    let (inputs, d) = text.split_once(':').map_or((text, None), |(ab, d)| (ab, Some(d)));
    let (a, b) = inputs.split_once('x').unwrap_or((inputs, inputs));
    let (a, b): (ElementType, ElementType) = (a.parse()?, b.parse()?);
    let d = match d {
        Some(d) => d.parse()?,
        None if a.is_fp8() => ElementType::Bf16,
        None => a,
    };
    let types = ElementTypes { a, b, d };
    types.check()?;
    Ok(types)
}

/// Reads `nk` or `kn`.
pub fn b_layout() -> impl TypedValueParser<Value = BLayout> {
    let names = PossibleValuesParser::new(["nk", "kn"]);
    names.map(|name| if name == "kn" { BLayout::Kn } else { BLayout::Nk })
}

/// Reads `none`, `tensor` or `rows`.
pub fn scaling() -> impl TypedValueParser<Value = Scaling> {
    PossibleValuesParser::new(["none", "tensor", "rows"]).map(|name| match name.as_str() {
        "tensor" => Scaling::Tensor,
        "rows" => Scaling::Rows,
        _ => Scaling::None,
    })
}

impl ProblemArgs {
    /// The problem, or what is wrong with it.
    pub fn problem(&self) -> Result<Problem, Error> {
        let mut builder = self.kinds.builder(self.m, self.n, self.k);
        if let Some(ranks) = self.ranks {
            builder = builder.ranks(ranks);
        }
        if let Some(rows) = &self.shards {
            builder = builder.shards(rows);
        }
        let problem = builder.build()?;
        match self.ranks {
            Some(ranks) if ranks != u64::from(problem.ranks()) => Err(Error::Mismatch {
                what: "the number of shards".into(),
                got: problem.ranks().to_string(),
                expected: ranks.to_string(),
                remedy: "give the rows of every rank, or leave out --ranks",
            }),
            _ => Ok(problem),
        }
    }
}

/// The operation.
#[derive(Clone, Copy, clap::ValueEnum)]
pub enum What {
    /// Every rank gets all rows of A, and multiplies them
    AllGatherGemm,
    /// Every rank multiplies its slice of K (--k), and gets the sums of its rows
    GemmReduceScatter,
    /// Every rank multiplies its slice of K (--k), and gets the sums of all rows
    GemmAllReduce,
    /// Every rank has sums of all rows, and gets the totals of its rows
    ReduceScatter,
    /// Every rank has sums of all rows, and gets the totals of all rows
    AllReduce,
}

/// Reads an operation that multiplies: threads have no others.
pub fn with_product() -> impl TypedValueParser<Value = What> {
    let multiplies = |what: &&What| !Operation::from(**what).is_alone();
    let names =
        What::value_variants().iter().filter(multiplies).filter_map(What::to_possible_value);
    PossibleValuesParser::new(names).try_map(|name| What::from_str(&name, false))
}

impl From<What> for Operation {
    fn from(what: What) -> Self {
        match what {
            What::AllGatherGemm => Operation::AllGatherGemm,
            What::GemmReduceScatter => Operation::GemmReduceScatter,
            What::GemmAllReduce => Operation::GemmAllReduce,
            What::ReduceScatter => Operation::ReduceScatter,
            What::AllReduce => Operation::AllReduce,
        }
    }
}

/// How the product is cut.
#[derive(clap::Args)]
#[command(next_help_heading = "Tiling")]
pub struct CutArgs {
    /// Chunks of each rank's rows, which travel one by one [default: up to 4, none smaller than a tile]
    #[arg(long, allow_negative_numbers = true)]
    chunks: Option<u32>,

    /// Rows and columns of an output tile [default: 256x128]
    #[arg(long, value_name = "ROWSxCOLUMNS", value_parser = extent)]
    tile: Option<(u32, u32)>,

    /// Tiles that one cluster computes together, along m and n [default: 1x1]
    #[arg(long, value_name = "ROWSxCOLUMNS", value_parser = extent)]
    cluster: Option<(u32, u32)>,

    /// Cluster rows that sweep over the columns together [default: 4]
    #[arg(long, value_name = "ROWS", allow_negative_numbers = true)]
    swizzle: Option<u32>,
}

impl CutArgs {
    /// The library's choices, but for what was asked for.
    pub fn options(&self) -> PlanOptions {
        let Tiling { tile, cluster, swizzle } = PlanOptions::default().tiling;
        let tiling = Tiling {
            tile: self.tile.map_or(tile, |(m, n)| TileShape { m, n }),
            cluster: self.cluster.map_or(cluster, |(m, n)| ClusterShape { m, n }),
            swizzle: self.swizzle.unwrap_or(swizzle),
        };
        PlanOptions { pieces: self.chunks, tiling, ..PlanOptions::new() }
    }
}

/// Reads `128x256`.
fn extent(text: &str) -> Result<(u32, u32), String> {
    let numbers = text
        .split_once(['x', '×'])
        .and_then(|(rows, columns)| Some((rows.parse().ok()?, columns.parse().ok()?)));
    numbers.ok_or_else(|| "give two numbers with an x between them, such as 128x256".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_of_d_follow_those_of_a() {
        use ElementType::*;
        let types = element_types;
        assert_eq!(types("bf16"), Ok(ElementTypes::all(Bf16)));
        assert_eq!(types("e4m3xe5m2"), Ok(ElementTypes { a: E4m3, b: E5m2, d: Bf16 }));
        assert_eq!(types("f16xf16:f32"), Ok(ElementTypes { a: F16, b: F16, d: F32 }));
        assert_eq!(types("e4m3:f16"), Ok(ElementTypes { a: E4m3, b: E4m3, d: F16 }));
        assert_eq!(types("e4m3:e4m3"), Ok(ElementTypes::all(E4m3)));
        for text in ["", "int8", "bf16xf16", "bf16x", "e4m3:e5m2", "bf16:e4m3", "bf16:", "e5m2"] {
            assert!(types(text).is_err(), "{text}");
        }
    }

    #[test]
    fn extents_are_two_numbers() {
        assert_eq!(extent("128x256"), Ok((128, 256)));
        assert_eq!(extent("2×1"), Ok((2, 1)));
        for text in ["", "x", "128", "128x", "x256", "1x2x3", "-1x2", "1x99999999999", "a×b"] {
            assert!(extent(text).is_err(), "{text}");
        }
    }
}
