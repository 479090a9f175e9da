//! What may be asked of a product beside its problem.
//!
//! What belongs here: plain values, no rule about which go together: that is `choice`'s and
//! `product`'s. Invariant: the default is the plain product on the whole GPU.

use crate::plan::Activation;

/// How a product is to be computed. `D = activation(alpha · scales · A·B + beta · C + bias)`.
///
/// ```
/// use overlap_gemm::cuda::{Activation, GemmOptions};
/// let options = GemmOptions::default().with_activation(Activation::Silu).with_bias(true);
/// assert_eq!(options.sm_limit, None);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct GemmOptions {
    /// How many SMs the product may occupy, so that others can run beside it. Default: all; in a fused step all, or all but
    /// those of the kernel that pushes this rank's rows.
    pub sm_limit: Option<u32>,
    /// What is done to each output.
    pub activation: Activation,
    /// Whether there is a bias: N elements of D's type, or of bf16 where that is fp8, one added to each column.
    pub bias: bool,
    /// Whether there is a C: a matrix that lies as D does, times `beta`.
    pub c: bool,
    /// Whether the tensor cores add up an fp8 product over all of K (default: yes). They keep about 13 fractional bits of
    /// a sum. If not, the kernel adds each 128 products to a sum in f32, which is slower. It has no effect on wider types.
    pub fast_accumulation: bool,
    /// Which kernel, by its name (default: the one that should be fastest).
    pub kernel: Option<String>,
    /// Swizzle: rows of clusters that sweep over the columns together (default: about 3072 rows of D in each sweep).
    pub swizzle: Option<u32>,
    /// Slices that K is cut into (default: by the cost model).
    pub splits: Option<u32>,
    /// A promise (default: no promise): no work that may still run when the product starts writes B, on its stream or
    /// elsewhere. It holds for weights if all writes to them have ended before the first step. The product then fetches B
    /// while the previous kernel still runs, which saves some microseconds for small M. It has no effect in an all-gather
    /// whose rows a kernel pushes
    /// ([`Engine::Kernel`](crate::plan::Engine::Kernel), usual for small shards): the product then starts, and fetches B, after
    /// older kernels have ended.
    pub constant_b: bool,
    /// Whether other ranks' sums are added to the product's.
    pub(crate) adds_others: bool,
}

impl Default for GemmOptions {
    fn default() -> Self {
        GemmOptions {
            sm_limit: None,
            activation: Activation::None,
            bias: false,
            c: false,
            fast_accumulation: true,
            kernel: None,
            swizzle: None,
            splits: None,
            constant_b: false,
            adds_others: false,
        }
    }
}

impl GemmOptions {
    /// Keeps SMs free: the product occupies no more than `sms`.
    #[must_use]
    pub fn with_sm_limit(mut self, sms: u32) -> Self {
        self.sm_limit = Some(sms);
        self
    }

    /// What is done to each output.
    #[must_use]
    pub fn with_activation(mut self, activation: Activation) -> Self {
        self.activation = activation;
        self
    }

    /// Whether there is a bias.
    #[must_use]
    pub fn with_bias(mut self, bias: bool) -> Self {
        self.bias = bias;
        self
    }

    /// Whether there is a C.
    #[must_use]
    pub fn with_c(mut self, c: bool) -> Self {
        self.c = c;
        self
    }

    /// Whether fp8 sums may stay in the tensor cores for all of K.
    #[must_use]
    pub fn with_fast_accumulation(mut self, fast: bool) -> Self {
        self.fast_accumulation = fast;
        self
    }

    /// Which kernel.
    #[must_use]
    pub fn with_kernel(mut self, name: impl Into<String>) -> Self {
        self.kernel = Some(name.into());
        self
    }

    /// How many rows of clusters sweep over the columns together.
    #[must_use]
    pub fn with_swizzle(mut self, swizzle: u32) -> Self {
        self.swizzle = Some(swizzle);
        self
    }

    /// How many slices K is cut into.
    #[must_use]
    pub fn with_splits(mut self, splits: u32) -> Self {
        self.splits = Some(splits);
        self
    }

    /// Promises that nothing under way writes B.
    #[must_use]
    pub fn with_constant_b(mut self, constant: bool) -> Self {
        self.constant_b = constant;
        self
    }
}
