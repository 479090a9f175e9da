//! GEMMs that start before their inputs arrive.
//!
//! All-gather + GEMM gathers a matrix A, whose rows are spread over ranks, and multiplies it by each
//! rank's own B. This crate does both at once: A travels in **chunks** of whole rows, each chunk has a
//! **signal**, and each output tile waits for the chunks that its rows touch and for nothing else.
//!
//! # The one idea: the plan is data
//!
//! ```text
//!  plan::Problem ──► plan::Plan ─────────────► executor ──────────► D, gathered A
//!  m n k, types,     chunks                    host: threads        trace::Timeline
//!  rows a rank       order of tiles a rank     cuda: GPUs
//!                    order of transfers
//!                         │
//!                         └──► plan::model: runs it in other orders, looking for trouble
//! ```
//!
//! What happens in which order is decided before anything runs, by pure functions over a handful of
//! integers. A plan can be printed, compared, written as JSON, and run on a model; an executor only
//! carries it out.
//!
//! # The smallest example
//!
//! ```
//! use overlap_gemm::element::bf16;
//! use overlap_gemm::host::{AllGatherGemm, Group, Stream};
//! use overlap_gemm::plan::{PlanOptions, Problem};
//!
//! // One rank: nothing to gather, all else as with many. A is 2×3, B holds 1×3 (N rows of K).
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
//! # The modules
//!
//! What a user calls comes first; each uses only what comes below it.
//!
//! | module | what is in it |
//! |---|---|
//! | [`exercise`] | all ranks, random numbers, checked against the reference: what tests and the command line run |
//! | [`host`] | [`AllGatherGemm`](host::AllGatherGemm), [`AsyncGemm`](host::AsyncGemm) on threads: plan once, enqueue many times; [`host::protocol`] orders one thread's data before another's |
//! | `cuda` | feature `cuda`: the same operations on Hopper GPUs, and products alone, plain or waiting for chunks |
//! | `group` | feature `group`: who the ranks are, threads or processes, and how they meet |
//! | `tune` | feature `tune`: tables of what was measured of all-gather + GEMM, and what they say of other sizes |
//! | [`predict`] | how long a plan would take on which machine, by discrete events, as a timeline |
//! | [`reference`](mod@reference) | what a product should be, in `f64`, with a derived error bound |
//! | [`trace`] | what happened when: as text, as SVG, as trace events, and in numbers |
//! | [`topology`] | what lies between GPUs: NVSwitch, NVLink, PCIe, nothing |
//! | [`random`] | seeded numbers, the same on every machine |
//! | [`plan`] | [`Problem`](plan::Problem) → [`Chunks`](plan::Chunks) → [`TileOrder`](plan::TileOrder), [`Transfers`](plan::Transfers); [`plan::model`] |
//! | [`element`] | bf16, f16, f32, fp8: [`Element`] the Rust type, [`ElementType`] its name |
//! | [`error`] | one [`Error`] whose messages name the value, the limit and the remedy |
//!
//! # Features
//!
//! None is on by default. The command line `overlap-gemm` is a package of its own, `overlap-gemm-cli`.
//!
//! - `group` (part of `cuda`): the module `group`, on Unix.
//! - `tune` (part of `cuda`): the module `tune`.
//! - `serde` (part of `tune` and `cuda`): plans, reports and timelines as JSON; problems, plans and timelines read back.
//! - `cuda`: the module `cuda`. Needs no CUDA to build or start; what is missing is a typed error.
//!
//! # Where to read next
//!
//! To use it: [`host::AllGatherGemm`] and its example. To understand it: [`plan`], then
//! [`host::protocol`]; the repository's `docs/architecture.md` and `docs/protocol.md` are the long
//! form. To check a kernel of your own: [`reference`](mod@reference) and [`plan::TileOrder`].

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
pub mod plan;
pub mod predict;
pub mod random;
pub mod reference;
pub mod topology;
pub mod trace;
#[cfg(feature = "tune")]
pub mod tune;

pub use element::{Element, ElementType};
pub use error::{Error, Result};

/// The README's example, compiled and run like every other.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
