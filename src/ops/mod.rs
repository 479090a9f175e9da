//! What a user calls.
//!
//! Plan once, `enqueue` many times. Planning validates and allocates; `enqueue` takes a stream, the
//! step's inputs and its outputs. M may vary from step to step up to the planned one, several B may
//! share one gather, and the gathered A can be read until the next step.
//!
//! - [`AllGatherGemm`]: every rank brings a shard of A and gets its D = A · B.
//! - [`AsyncGemm`]: D = A · B where somebody else delivers A, chunk by chunk.
//!
//! Invariant: what is wrong with a call is found before anything is sent, so that a refused call
//! leaves the operation as it was. A failure after that ends the step and all later ones on every
//! rank, and fills the outputs of the ended step with NaN.

mod all_gather_gemm;
mod async_gemm;
mod io;
mod products;

pub use all_gather_gemm::{AllGatherGemm, Gathered};
pub use async_gemm::AsyncGemm;
pub use io::{Input, Product};
