//! GEMMs that start before their inputs arrive, and send their sums before they end.
//!
//! All-gather + GEMM gathers a matrix A, whose rows are distributed over ranks, and multiplies it by each
//! rank's own B. This crate overlaps both: A travels in **chunks** of whole rows, each chunk has a
//! **signal**, and each output tile waits only for the chunks that hold its rows. GEMM + reduce-scatter and
//! GEMM + all-reduce multiply a slice of K on each rank; one part of the sums travels while the next is computed.
//!
//! # The smallest example
//!
//! On threads; [`cuda`] has the same operations for GPUs.
//!
//! ```
//! use overlap_gemm::element::bf16;
//! use overlap_gemm::host::{AllGatherGemm, Group, Stream};
//! use overlap_gemm::plan::{PlanOptions, Problem};
//!
//! // With one rank there is nothing to gather. The calls are the same for several ranks.
//! // A is 2×3, B holds 1×3 (N rows of K).
//! let problem = Problem::builder(2, 1, 3).build()?;
//! let rank = Group::local(1)?.remove(0);
//! let mut layer = AllGatherGemm::<bf16>::plan(&rank, &problem, PlanOptions::default())?;
//!
//! let numbers = |values: &[f32]| values.iter().map(|&x| bf16::from_f32(x)).collect::<Vec<_>>();
//! let (a, b) = (numbers(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0]), numbers(&[1.0, 0.0, 2.0]));
//! let mut d = numbers(&[0.0, 0.0]);
//! layer.enqueue(&Stream::new(1)?, &a, &b, &mut d)?;
//! assert_eq!(d, numbers(&[7.0, 16.0]));
//! # Ok::<(), overlap_gemm::Error>(())
//! ```
//!
//! # The plan is data
//!
//! Pure functions over a handful of integers decide the order of all steps before anything runs. A plan can be
//! printed, compared, written as JSON, and run on a model; an executor only carries it out.
//!
//! # Features
//!
//! None is on by default. The command line `overlap-gemm` is a separate package, `overlap-gemm-cli`.
//!
//! - `cuda`: the module `cuda`. It builds and starts without CUDA. Calls then return an error that names the missing part.
//! - `group` (part of `cuda`): the module `group`, on Unix.
//! - `tune` (part of `cuda`): the module `tune`.
//!
//! # Where to read next
//!
//! To use it: [`host::AllGatherGemm`] and its example; then [`cuda`], and `docs/threads-and-gpus.md` in the repository, which
//! has both programs side by side. To understand it: [`plan`], [`host::protocol`], and `docs/protocol.md`. To
//! check your own kernel: [`reference`](mod@reference) and [`plan::TileOrder`].
//!
#![cfg_attr(docsrs, feature(doc_cfg))]
// A link to a module leads to the list of features where its feature is off.
#![cfg_attr(feature = "cuda", doc = "[`cuda`]: crate::cuda")]
#![cfg_attr(not(feature = "cuda"), doc = "[`cuda`]: #features")]

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod element;
pub mod error;
pub mod exercise;
mod fit;
#[cfg(all(feature = "group", unix))]
pub mod group;
pub mod host;
pub mod kernels;
#[cfg(doctest)]
mod misuse;
pub mod plan;
pub mod predict;
pub mod random;
pub mod reference;
mod sync;
pub mod trace;
#[cfg(feature = "tune")]
pub mod tune;

pub use element::{Element, ElementType};
pub use error::{Error, Result};

/// The README's example, compiled and run like every other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
