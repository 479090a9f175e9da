//! One step of all ranks on one clock, and as a picture.
//!
//! Invariant: the step is one of many in a steady loop, neither the first nor the last.

use std::path::Path;

use overlap_gemm::group::Group;
use overlap_gemm::plan::Plan;
use overlap_gemm::trace::Timeline;
use overlap_gemm::{Error, Result};

use super::LIMIT;
use crate::exit::Failure;

/// What the ranks have recorded, each of its own step, on every rank.
pub fn merge(group: &Group, plan: &Plan, own: &Timeline) -> Result<Timeline> {
    let unreadable = |error: serde_json::Error| Error::Mismatch {
        what: "the record of a step".into(),
        got: error.to_string(),
        expected: "a timeline".into(),
        remedy: "run the same version of this program on every rank",
    };
    let own = serde_json::to_vec(own).map_err(unreadable)?;
    let all = gather_all(group, &own)?;
    let ranks = all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(unreadable));
    let ranks: Vec<Timeline> = ranks.collect::<Result<_>>()?;
    // A product that waits for nothing has no chunk.
    let last = plan.chunks().len() - 1;
    Ok(Timeline::of_ranks(ranks, |chunk| plan.chunks().rank_of(chunk.min(last))))
}

/// All ranks' records, however long: in parts that an exchange has room for.
fn gather_all(group: &Group, own: &[u8]) -> Result<Vec<Vec<u8>>> {
    /// Of all ranks together: half of what an exchange has room for.
    const ROOM: usize = 8 << 20;
    const WHAT: &str = "the records of a step";
    let lengths = group.all_gather(WHAT, &(own.len() as u64).to_le_bytes(), LIMIT)?;
    let lengths = lengths.iter().filter_map(|bytes| bytes.as_slice().try_into().ok());
    let longest = lengths.map(u64::from_le_bytes).max().unwrap_or(0) as usize;
    let mut all = vec![Vec::new(); group.ranks() as usize];
    let room = (ROOM / all.len()).max(1);
    for part in (0..longest).step_by(room) {
        let own = &own[part.min(own.len())..(part + room).min(own.len())];
        for (all, part) in all.iter_mut().zip(group.all_gather(WHAT, own, LIMIT)?.iter()) {
            all.extend_from_slice(part);
        }
    }
    Ok(all)
}

/// Writes the picture of a case into the folder, which is made if need be.
pub fn draw(folder: &Path, case: &str, timeline: &Timeline) -> Result<(), Failure> {
    let name: String =
        case.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let path = folder.join(format!("{name}.svg"));
    let title = format!("{case}: one step, a row an SM");
    let written = std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&path, timeline.to_svg(&title)));
    written.map_err(|source| Failure::Write { target: path.display().to_string(), source })
}
