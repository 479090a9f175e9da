//! One step of all ranks on one clock, and as a picture.
//!
//! Invariant: the step is one of many in a steady loop, neither the first nor the last.

use std::path::Path;

use overlap_gemm::Result;
use overlap_gemm::group::Group;
use overlap_gemm::plan::Plan;
use overlap_gemm::trace::Timeline;

use super::exchange::all_values;
use crate::exit::Failure;

/// What the ranks have recorded, each of its own step, on every rank.
pub fn merge(group: &Group, plan: &Plan, own: &Timeline) -> Result<Timeline> {
    let ranks = all_values(group, "the record of a step", own)?;
    // A product that waits for nothing has no chunk.
    let last = plan.chunks().len() - 1;
    Ok(Timeline::of_ranks(ranks, |chunk| plan.chunks().rank_of(chunk.min(last))))
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
