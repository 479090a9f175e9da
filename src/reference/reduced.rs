//! The output of a reduction, bit for bit.
//!
//! What belongs here: the one order of additions that a [`Reduction`] has, written apart from the executors, which check
//! themselves against it. Invariant: a rank's own sums are unrounded and at their own place.

use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{OWN_ROWS, check_epilogue, check_len};
use crate::plan::{Epilogue, Problem, Reduction};

/// What `owner` gets: the rows that it owns, packed.
///
/// `sums` has every rank's sums of these rows over its slice of K, packed, as `f32`. An executor's own sums are those
/// only where they do not depend on the order of K, as with integers below 2²⁴. `problem` is that of one product in one
/// step; C has the owner's rows, as D does.
///
/// ```
/// use overlap_gemm::plan::{Problem, Reduction};
/// use overlap_gemm::reference::{Epilogue, reduced};
///
/// let problem = Problem::builder(2, 1, 8).ranks(2).build()?;
/// // Rank 0 owns row 0. Its own 257 stays; as bf16 that of rank 1 is 256.
/// let sums: [&[f32]; 2] = [&[257.0], &[257.0]];
/// let d: Vec<f32> = reduced(&problem, &sums, 0, Reduction::default(), Epilogue::default())?;
/// assert_eq!(d, [513.0]);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn reduced<D: Element>(
    problem: &Problem,
    sums: &[&[f32]],
    owner: u32,
    reduction: Reduction,
    epilogue: Epilogue<'_, D>,
) -> Result<Vec<D>> {
    problem.shards().check_rank(owner)?;
    let (rows, n) = (problem.shards().rows(owner).len() as u32, problem.n());
    if sums.len() != problem.ranks() as usize {
        let (what, remedy) = ("the number of ranks' sums", "pass one slice of sums a rank");
        return Err(Error::mismatch(what, sums.len(), problem.ranks(), remedy));
    }
    let len = u64::from(rows) * u64::from(n);
    sums.iter().try_for_each(|sums| check_len("the sums", sums.len(), len..=len, OWN_ROWS))?;
    check_epilogue(problem, rows, &epilogue, OWN_ROWS)?;
    let places = (0..rows as usize).flat_map(|row| (0..n as usize).map(move |n| (row, n)));
    let outputs = places.enumerate().map(|(at, (row, column))| {
        let mut total = None;
        for (rank, sums) in (0..).zip(sums) {
            let sum = if rank == owner { sums[at] } else { reduction.partials.round(sums[at]) };
            total = Some(total.map_or(sum, |total: f32| total + sum));
        }
        let mut total = total.unwrap_or_default();
        if reduction.average {
            total /= sums.len() as f32;
        }
        D::narrow(epilogue.apply(total, row * problem.ldd() as usize + column, column))
    });
    Ok(outputs.collect())
}
