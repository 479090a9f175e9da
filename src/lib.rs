//! GEMMs that start before their inputs arrive.

#[cfg(feature = "cuda")]
pub mod cuda;
pub mod element;
pub mod error;
pub mod exercise;
mod fit;
pub mod host;
pub mod ops;
pub mod plan;
pub mod random;
pub mod reference;
pub mod trace;

pub use element::{Element, ElementType};
pub use error::{Error, Result};
