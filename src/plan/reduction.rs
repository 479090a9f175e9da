//! How the sums that ranks have over their slices of K become one output.
//!
//! Invariant: an output does not depend on what arrives first: the sums are added in the order of the ranks, in `f32`, as they
//! travelled; the owner's own are unrounded in a reduce-scatter on threads, and in a fused reduction on GPUs, where they are the
//! first.

use serde::{Deserialize, Serialize};

use crate::element::{Element, ElementType, bf16};

/// The type in which sums travel to the rank that adds them up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Partials {
    /// Rounded once, to half the bytes.
    #[default]
    Bf16,
    /// As they are.
    F32,
}

impl Partials {
    /// The element type.
    pub fn element(self) -> ElementType {
        match self {
            Partials::Bf16 => ElementType::Bf16,
            Partials::F32 => ElementType::F32,
        }
    }

    /// The sum as it arrives.
    pub fn round(self, sum: f32) -> f32 {
        match self {
            Partials::Bf16 => bf16::narrow(sum).widen(),
            Partials::F32 => sum,
        }
    }
}

/// How the ranks' sums are added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Reduction {
    /// The type in which sums travel.
    pub partials: Partials,
    /// Whether the total is divided by the number of ranks.
    pub average: bool,
}
