//! What a problem's matrices hold, and how they lie.
//!
//! What belongs here: plain values, and which element types may meet in one product.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::operation::Operation;
use crate::element::ElementType;
use crate::error::{Error, Result};

/// How B lies in memory.
///
/// ```
/// use overlap_gemm::plan::{BLayout, Problem};
///
/// let problem = Problem::builder(64, 128, 32).b_layout(BLayout::Kn).build()?;
/// assert_eq!(problem.ldb(), 128); // rows of N
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum BLayout {
    /// N rows of K elements: the usual weight.
    #[default]
    Nk,
    /// K rows of N elements.
    Kn,
}

/// Which scales multiply the product (fp8 only).
///
/// ```
/// use overlap_gemm::plan::Scaling;
///
/// assert_eq!((Scaling::Tensor.count(64), Scaling::Rows.count(64)), (1, 64));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Scaling {
    /// None.
    #[default]
    None,
    /// One scale for A, one for B.
    Tensor,
    /// One scale for each row of A (they travel with A's chunks), one for each column of A · B.
    Rows,
}

impl Scaling {
    /// How many scales a matrix with `lines` scaled lines has.
    pub const fn count(self, lines: u32) -> usize {
        match self {
            Scaling::None => 0,
            Scaling::Tensor => 1,
            Scaling::Rows => lines as usize,
        }
    }

    /// What a text says of it behind the types.
    pub(crate) const fn after_types(self) -> &'static str {
        match self {
            Scaling::None => "",
            Scaling::Tensor => ", tensor scales",
            Scaling::Rows => ", row scales",
        }
    }
}

/// The element types of the three matrices.
///
/// ```
/// use overlap_gemm::ElementType::{Bf16, E4m3};
/// use overlap_gemm::plan::ElementTypes;
///
/// let types = ElementTypes { a: E4m3, b: E4m3, d: Bf16 };
/// assert_eq!(types.to_string(), "e4m3 × e4m3 → bf16");
/// assert!(ElementTypes { a: Bf16, ..types }.check().is_err());
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct ElementTypes {
    /// The gathered input.
    pub a: ElementType,
    /// The weight.
    pub b: ElementType,
    /// The output.
    pub d: ElementType,
}

impl ElementTypes {
    /// The same type for all three.
    pub const fn all(element: ElementType) -> Self {
        ElementTypes { a: element, b: element, d: element }
    }

    /// Whether the three may meet in one product; accumulation is always `f32`.
    pub fn check(self) -> Result<()> {
        use ElementType::*;
        let admitted = match (self.a, self.b) {
            (Bf16, Bf16) | (F16, F16) => matches!(self.d, Bf16 | F16 | F32),
            (F32, F32) => self.d == F32,
            (E4m3, E4m3) => matches!(self.d, Bf16 | F16 | E4m3),
            (E4m3, E5m2) | (E5m2, E4m3) => matches!(self.d, Bf16 | F16 | E5m2),
            _ => false,
        };
        if admitted {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("the product {self}"),
            why: "no tensor core instruction or no agreed rounding exists for it".into(),
            remedy: "use bf16×bf16 or f16×f16 → bf16, f16 or f32; f32×f32 → f32; \
                     e4m3×e4m3 → bf16, f16 or e4m3; e4m3×e5m2 or e5m2×e4m3 → bf16, f16 or e5m2",
        })
    }

    /// An error if steps of `operation` cannot round to D's type.
    pub(crate) fn check_reduced(self, operation: Operation) -> Result<()> {
        if !(operation.reduces() && self.d.is_fp8()) {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("a reduction to {}", self.d),
            why: "the ranks' sums, and totals that travel, are of 16 or 32 bits".into(),
            remedy: "let D be bf16, and quantize it where it is used",
        })
    }

    /// An error if there is what only a D of fp8 has.
    pub(crate) fn check_fp8_output(self, what: &str, there: bool) -> Result<()> {
        if !there || self.d.is_fp8() {
            return Ok(());
        }
        Err(Error::Unsupported {
            what: format!("{what} for a D in {}", self.d),
            why: "wider types need none".into(),
            remedy: "leave it out, or plan a D in fp8",
        })
    }
}

impl fmt::Display for ElementTypes {
    /// `e4m3 × e4m3 → bf16`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} × {} → {}", self.a, self.b, self.d)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType::{Bf16, E4m3};
    use crate::plan::{Plan, PlanOptions, Problem};

    #[test]
    fn sums_are_not_reduced_to_fp8() {
        let plan = |d, operation| {
            let problem = Problem::builder(64, 64, 64).elements(E4m3, E4m3, d).build().unwrap();
            Plan::new(&problem, PlanOptions { operation, ..PlanOptions::default() })
        };
        plan(E4m3, Operation::AllGatherGemm).unwrap();
        for operation in [Operation::GemmReduceScatter, Operation::GemmAllReduce] {
            plan(Bf16, operation).unwrap();
            let refused = plan(E4m3, operation).unwrap_err().to_string();
            assert!(refused.contains("a reduction to e4m3"), "{refused}");
        }
    }
}
