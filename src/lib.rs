//! GEMMs that start before their inputs arrive.

pub mod element;
pub mod error;
pub mod plan;
pub mod trace;

pub use element::{Element, ElementType};
pub use error::{Error, Result};
