//! What each rank has, as a value, on all ranks.
//!
//! Invariant: all ranks call it in the same order, and find the same values, by rank; how long a value is does not
//! matter.

use std::time::Duration;

use overlap_gemm::group::Group;
use overlap_gemm::{Error, Result};
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::loops::{LIMIT, SETS};
use crate::bench::gpu::inputs::Inputs;

/// All ranks' values.
pub fn all_values<T: Serialize + DeserializeOwned>(
    group: &Group,
    what: &str,
    own: &T,
) -> Result<Vec<T>> {
    all_values_within(group, what, own, LIMIT)
}

/// How many sets of inputs all ranks take in turn: a set has the same number everywhere, also where one GPU has less memory.
pub fn common_sets(group: &Group, inputs: &[Inputs]) -> Result<usize> {
    let own = if inputs.iter().any(|inputs| inputs.sets.len() < SETS) { 1 } else { SETS };
    Ok(all_values(group, "the number of sets", &own)?.into_iter().min().unwrap_or(1))
}

/// The same where a rank may be late by another limit than usual.
pub fn all_values_within<T: Serialize + DeserializeOwned>(
    group: &Group,
    what: &str,
    own: &T,
    limit: Duration,
) -> Result<Vec<T>> {
    /// Of all ranks together: half of what an exchange has room for.
    const ROOM: usize = 8 << 20;
    let unreadable = |error: serde_json::Error| Error::Mismatch {
        what: what.into(),
        got: error.to_string(),
        expected: "what this program exchanges".into(),
        remedy: "run the same version of this program on every rank",
    };
    let own = serde_json::to_vec(own).map_err(unreadable)?;
    let lengths = group.all_gather(what, &(own.len() as u64).to_le_bytes(), limit)?;
    let lengths = lengths.iter().filter_map(|bytes| bytes.as_slice().try_into().ok());
    let longest = lengths.map(u64::from_le_bytes).max().unwrap_or(0) as usize;
    let mut all = vec![Vec::new(); group.ranks() as usize];
    let room = (ROOM / all.len()).max(1);
    // In parts that an exchange has room for.
    for part in (0..longest).step_by(room) {
        let own = &own[part.min(own.len())..(part + room).min(own.len())];
        for (all, part) in all.iter_mut().zip(group.all_gather(what, own, limit)?.iter()) {
            all.extend_from_slice(part);
        }
    }
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(unreadable)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_any_length_come_to_all() {
        // The second alone is more than an exchange has room for.
        let values = ["short".to_owned(), "long ".repeat(4 << 20), String::new()];
        std::thread::scope(|scope| {
            for group in Group::local(3).unwrap() {
                let values = &values;
                scope.spawn(move || {
                    let own = &values[group.rank() as usize];
                    assert!(all_values(&group, "a value", own).unwrap() == values);
                });
            }
        });
    }
}
