//! Epilogues: what becomes of an output between its sum and its rounding.
//!
//! What belongs here: their parts and formulas, shared by plans, executors and the reference. Invariant: the formulas
//! are those of `csrc/overlap_gemm.h`.

use serde::{Deserialize, Serialize};

use super::gate::GATE_COLUMNS;
use crate::element::Element;

/// The function of each output before it is rounded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Activation {
    /// Nothing.
    #[default]
    None,
    /// max(x, 0)
    Relu,
    /// 0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³)))
    GeluTanh,
    /// x / (1 + exp(−x))
    Silu,
}

impl Activation {
    /// All of them.
    pub const ALL: [Activation; 4] =
        [Activation::None, Activation::Relu, Activation::GeluTanh, Activation::Silu];

    /// The exact value, up to `f64` rounding.
    ///
    /// ```
    /// use overlap_gemm::plan::Activation;
    /// assert_eq!(Activation::Relu.apply(-2.0), 0.0);
    /// assert!((Activation::Silu.apply(1.0) - 0.731_058_578_63).abs() < 1e-10);
    /// ```
    pub fn apply(self, x: f64) -> f64 {
        match self {
            Activation::None => x,
            Activation::Relu if x < 0.0 => 0.0,
            Activation::Relu => x,
            Activation::GeluTanh => 0.5 * x * (1.0 + tanh_argument(x).tanh()),
            Activation::Silu => x / (1.0 + (-x).exp()),
        }
    }

    /// The largest slope, in absolute value.
    pub fn steepest(self) -> f64 {
        match self {
            Activation::None | Activation::Relu => 1.0,
            Activation::GeluTanh => 1.13,
            Activation::Silu => 1.1,
        }
    }
}

/// What happens to a product before it is rounded: `activation(alpha · product + beta · C + bias)`; if it is
/// [gated](super::ProblemBuilder::gated), `activation(alpha · gate + bias) · (alpha · value + bias)`. A D of fp8 has that times
/// `scale_d`, and the largest number of its type for all that is larger.
///
/// ```
/// use overlap_gemm::plan::{Activation, Epilogue};
///
/// let bias = [0.5_f32; 16];
/// let activation = Activation::Silu;
/// let epilogue = Epilogue::<f32> { bias: Some(&bias), activation, ..Epilogue::default() };
/// assert_eq!((epilogue.alpha, epilogue.beta), (1.0, 0.0));
/// ```
#[derive(Clone, Copy, Debug)]
pub struct Epilogue<'a, D: Element> {
    /// The factor of the product.
    pub alpha: f32,
    /// The factor of C.
    pub beta: f32,
    /// A matrix that lies as D does; none if the product is gated.
    pub c: Option<&'a [D::Addend]>,
    /// N elements, one added to each column of the product.
    pub bias: Option<&'a [D::Addend]>,
    /// What is done at the end.
    pub activation: Activation,
    /// The scale of a D in fp8, 1 for wider types.
    pub scale_d: f32,
}

impl<D: Element> Default for Epilogue<'_, D> {
    fn default() -> Self {
        let activation = Activation::None;
        Epilogue { alpha: 1.0, beta: 0.0, c: None, bias: None, activation, scale_d: 1.0 }
    }
}

impl<D: Element> Epilogue<'_, D> {
    /// The output of `product`, before it is scaled and rounded: the element `at` of C belongs to it, and that of the bias to `column`.
    pub(crate) fn apply(&self, product: f32, at: usize, column: usize) -> f32 {
        self.activated(self.with_addends(product, at, column))
    }

    /// An output of a gated product, before it is scaled and rounded, of the `gate` at `column` and the value that it gates.
    pub(crate) fn apply_gate(&self, gate: f32, value: f32, column: usize) -> f32 {
        let x = self.with_addends(gate, 0, column);
        self.activated(x) * self.with_addends(value, 0, column + GATE_COLUMNS as usize)
    }

    fn with_addends(&self, product: f32, at: usize, column: usize) -> f32 {
        let mut x = self.alpha * product;
        if let Some(c) = self.c {
            x += self.beta * c[at].widen();
        }
        if let Some(bias) = self.bias {
            x += bias[column].widen();
        }
        x
    }

    fn activated(&self, x: f32) -> f32 {
        match self.activation {
            Activation::None => x,
            activation => activation.apply(x.into()) as f32,
        }
    }
}

/// The argument of the hyperbolic tangent in GELU.
fn tanh_argument(x: f64) -> f64 {
    (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_activation_is_steeper_than_it_says() {
        const STEP: f64 = 1e-4;
        for activation in Activation::ALL {
            let mut steepest = 0f64;
            for at in -100_000..100_000 {
                let x = f64::from(at) * STEP;
                let change = activation.apply(x + STEP) - activation.apply(x);
                steepest = steepest.max(change.abs() / STEP);
            }
            assert!(steepest <= activation.steepest() + 1e-6, "{activation:?}: {steepest}");
            assert!(steepest > 0.98 * activation.steepest(), "{activation:?}: {steepest}");
        }
    }
}
