//! What a bench multiplies: shapes and element types.
//!
//! Invariant: a [`Case`] is a valid problem; what the library refuses is refused here, before any
//! work begins, and in the library's words.

use std::fmt;
use std::str::FromStr;

use overlap_gemm::Error;
use overlap_gemm::plan::{BLayout, ElementTypes, Problem, ProblemBuilder, Scaling};

/// M, N and K.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub m: u64,
    pub n: u64,
    pub k: u64,
}

impl FromStr for Shape {
    type Err = String;

    /// Reads `4096x3584x8192`.
    fn from_str(text: &str) -> Result<Self, String> {
        let numbers: Option<Vec<u64>> =
            text.split(['x', '×']).map(|number| number.parse().ok()).collect();
        match numbers.as_deref() {
            Some(&[m, n, k]) => Ok(Shape { m, n, k }),
            _ => Err("give M, N and K with an x between them, such as 4096x3584x8192".into()),
        }
    }
}

/// One problem of a bench.
#[derive(Clone, Debug)]
pub struct Case {
    /// What is multiplied.
    pub problem: Problem,
}

impl Case {
    /// Every shape in every type. Without a word on scaling, fp8 has scales a tensor.
    pub fn of_shapes(
        shapes: &[Shape],
        types: &[ElementTypes],
        b_layout: BLayout,
        scaling: Option<Scaling>,
    ) -> Result<Vec<Case>, Error> {
        let mut cases = Vec::new();
        for &ElementTypes { a, b, d } in types {
            let usual = if a.is_fp8() { Scaling::Tensor } else { Scaling::None };
            for &Shape { m, n, k } in shapes {
                let problem = Problem::builder(m, n, k).elements(a, b, d).b_layout(b_layout);
                let problem = problem.scaling(scaling.unwrap_or(usual)).build()?;
                cases.push(Case { problem });
            }
        }
        Ok(cases)
    }
}

/// The product of the gate and the up projection of an MLP, whose down projection is `down`: its input is as wide as the output
/// of that, and it has two columns for each element of K.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "only a GPU looks at it"))]
pub fn gate_and_up(down: &Problem) -> Result<Problem, Error> {
    let sizes = [down.m().into(), 2 * u64::from(down.k()), down.n().into()];
    sized(sizes, down).shards(&down.shards().to_rows()).build()
}

/// The problem with its rows spread over that many ranks.
pub fn spread(problem: &Problem, ranks: u32) -> Result<Problem, Error> {
    let sizes = [problem.m(), problem.n(), problem.k()].map(u64::from);
    sized(sizes, problem).ranks(ranks.into()).build()
}

/// M, N and K of these sizes; types, scales and B's layout are those of `like`.
fn sized([m, n, k]: [u64; 3], like: &Problem) -> ProblemBuilder {
    let ElementTypes { a, b, d } = like.elements();
    let builder = Problem::builder(m, n, k).elements(a, b, d);
    builder.b_layout(like.b_layout()).scaling(like.scaling())
}

impl fmt::Display for Case {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (problem, ElementTypes { a, b, d }) = (&self.problem, self.problem.elements());
        write!(f, "{}×{}×{} {a}", problem.m(), problem.n(), problem.k())?;
        if b != a {
            write!(f, "×{b}")?;
        }
        if d != a {
            write!(f, "→{d}")?;
        }
        if problem.b_layout() == BLayout::Kn {
            f.write_str(" B k×n")?;
        }
        match problem.scaling() {
            Scaling::None => Ok(()),
            Scaling::Tensor => f.write_str(" tensor"),
            Scaling::Rows => f.write_str(" rows"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::problem_args::element_types;

    #[test]
    fn shapes_are_three_numbers() {
        assert_eq!("1x2x3".parse(), Ok(Shape { m: 1, n: 2, k: 3 }));
        assert_eq!("4096×3584×8192".parse(), Ok(Shape { m: 4096, n: 3584, k: 8192 }));
        for text in ["", "1", "1x2", "1x2x3x4", "ax2x3", "-1x2x3", "1x2x99999999999999999999"] {
            assert!(text.parse::<Shape>().is_err(), "{text}");
        }
    }

    #[test]
    fn a_gate_and_an_up_projection_come_before_a_down_projection() {
        let down = Problem::builder(65, 4096, 1792).ranks(2).build().unwrap();
        let first = gate_and_up(&down).unwrap();
        assert_eq!((first.m(), first.n(), first.k()), (65, 3584, 4096));
        assert_eq!(first.shards(), down.shards());
    }

    #[test]
    fn shapes_meet_every_type() {
        let shapes = ["1024x3584x8192", "2048x3584x8192"].map(|shape| shape.parse().unwrap());
        let types = ["bf16", "e4m3"].map(|types| element_types(types).unwrap());
        let cases = Case::of_shapes(&shapes, &types, BLayout::Nk, None).unwrap();
        let texts: Vec<_> = cases.iter().map(Case::to_string).collect();
        assert_eq!(texts[1..3], ["2048×3584×8192 bf16", "1024×3584×8192 e4m3→bf16 tensor"]);
        let refused = Case::of_shapes(&shapes, &types, BLayout::Nk, Some(Scaling::Rows));
        assert!(matches!(refused, Err(Error::Unsupported { .. })), "bf16 has no scales");
    }
}
