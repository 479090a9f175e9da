//! GEMMs that start before their inputs arrive.

pub mod element;
pub mod error;

pub use element::{Element, ElementType};
pub use error::{Error, Result};
