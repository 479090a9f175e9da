//! The output of a reduction: bit for bit from the ranks' sums, and within a bound from their inputs.
//!
//! What belongs here: a total and what follows it, written apart from the executors, which check themselves against it. Invariant:
//! sums are added in the order of [`Plan::additions`], each rounded as that says.
//!
//! To compare within a bound the order does not matter, only which sums are rounded: an owner is the rank whose rows are asked
//! for, and whose own sums may be unrounded; without one it is an all-reduce, of which every rank gets all rows.

use std::ops::Range;

use super::bound::{Additions, total};
use super::{Expected, Reference, Report};
use crate::element::Element;
use crate::error::{Error, Result};
use crate::fit::{OWN_ROWS, check_epilogue, check_len, d_lens};
use crate::plan::{Epilogue, Partials, Plan, Problem, Reduction};

/// What `rank` gets of a step by that plan: its rows, packed.
///
/// `sums` has every rank's sums of these rows over its slice of K, packed, as `f32`. An executor's own sums are those
/// only where they do not depend on the order of K, as with integers below 2²⁴. The plan is that of one product in one
/// step; C has the same rows as D. (The order of what follows a total is that of [`Epilogue`]. A product that adds up adds the bias
/// before C; with both its last bits may differ.)
///
/// ```
/// use overlap_gemm::plan::{Operation, Plan, PlanOptions, Problem, Reduction};
/// use overlap_gemm::reference::{Epilogue, reduced};
///
/// let options = PlanOptions { operation: Operation::GemmReduceScatter, ..PlanOptions::new() };
/// let plan = Plan::new(&Problem::builder(2, 1, 8).ranks(2).build()?, options)?;
/// // Rank 0 owns row 0. Its own 257 stays; as bf16 that of rank 1 is 256.
/// let sums: [&[f32]; 2] = [&[257.0], &[257.0]];
/// let d: Vec<f32> = reduced(&plan, 0, &sums, Reduction::default(), Epilogue::default())?;
/// assert_eq!(d, [513.0]);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn reduced<D: Element>(
    plan: &Plan,
    rank: u32,
    sums: &[&[f32]],
    reduction: Reduction,
    epilogue: Epilogue<'_, D>,
) -> Result<Vec<D>> {
    let problem = plan.problem();
    let operation = plan.options().operation;
    if !operation.reduces() {
        return Err(Error::Unsupported {
            what: format!("the totals of {operation}"),
            why: "it adds up no sums of other ranks".into(),
            remedy: "pass the plan of a reduction",
        });
    }
    problem.shards().check_rank(rank)?;
    let rows = plan.output_rows(rank);
    let (m, n) = (rows.len() as u32, problem.n() as usize);
    if sums.len() != problem.ranks() as usize {
        let (what, remedy) = ("the number of ranks' sums", "pass one slice of sums a rank");
        return Err(Error::mismatch(what, sums.len(), problem.ranks(), remedy));
    }
    let len = u64::from(m) * u64::from(problem.n());
    sums.iter().try_for_each(|sums| check_len("the sums", sums.len(), len..=len, OWN_ROWS))?;
    check_epilogue(problem, m, &epilogue, OWN_ROWS)?;
    let ranks = if reduction.average { problem.ranks() as f32 } else { 1.0 };
    // A product divides its factor, everything else the total.
    let (alpha, divisor) = match plan.products_add_up() {
        true => (epilogue.alpha / ranks, 1.0),
        false => (epilogue.alpha, ranks),
    };
    let epilogue = Epilogue { alpha, ..epilogue };
    let outputs = (0..).zip(rows).flat_map(|(local, row)| {
        let order = plan.additions(rank, problem.shards().rank_of(row), reduction.partials);
        (0..n).map(move |column| {
            let summand = |&(from, partials): &(u32, Partials)| {
                partials.round(sums[from as usize][local * n + column])
            };
            let total = order.iter().map(summand).reduce(|total, sum| total + sum);
            let total = total.unwrap_or_default() / divisor;
            D::narrow(epilogue.apply(total, local * problem.ldd() as usize + column, column))
        })
    });
    Ok(outputs.collect())
}

/// The rows of D that `owner` gets.
fn rows_of(problem: &Problem, owner: Option<u32>) -> Result<Range<u32>> {
    let Some(owner) = owner else { return Ok(0..problem.m()) };
    problem.shards().check_rank(owner)?;
    Ok(problem.shards().rows(owner))
}

/// Compares what `owner` got, `d`, with the total of all ranks' products: each rank's inputs are one of `ranks`, in order.
/// `None`: what a rank of an all-reduce got, whose own sum is rounded, too. So it is in a reduce-scatter on GPUs: pass `None` there, and
/// D and C with all ranks' rows.
///
/// `rows` are those of `d`, the owner's first is 0; rows beyond its last are passed over. C has the owner's rows, as D does.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::plan::{Problem, Reduction};
/// use overlap_gemm::reference::{Epilogue, Reference, compare_reduced};
///
/// // Each of two ranks has two of the four products; rank 1 owns the second row.
/// let problem = Problem::builder(2, 1, 2).elements(F32, F32, F32).ranks(2).build()?;
/// let one = Reference::new(&problem, &[0.0f32, 0.0, 1.0, 2.0], &[1.0f32, 1.0], &[], &[])?;
/// let other = Reference::new(&problem, &[0.0f32, 0.0, 3.0, 4.0], &[1.0f32, 2.0], &[], &[])?;
/// let wrong = |d: f32| {
///     let (ranks, reduction) = ([one, other], Reduction::default());
///     compare_reduced(&ranks, Some(1), reduction, &[d], 0..1, Epilogue::default()).map(|it| it.wrong)
/// };
/// assert_eq!((wrong(14.0)?, wrong(11.0)?), (0, 1));
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn compare_reduced<A: Element, B: Element, D: Element>(
    ranks: &[Reference<'_, A, B>],
    owner: Option<u32>,
    reduction: Reduction,
    d: &[D],
    rows: impl IntoIterator<Item = u32>,
    epilogue: Epilogue<'_, D>,
) -> Result<Report> {
    compare(ranks, owner, (reduction, Additions::Wide), d, rows, epilogue)
}

/// [`compare_reduced`] for totals of another program, such as NCCL's: every rank's sum is rounded to the type of partials, and
/// so is every addition, in any order.
///
/// ```
/// use overlap_gemm::ElementType::F32;
/// use overlap_gemm::plan::{Problem, Reduction};
/// use overlap_gemm::reference::{Reference, compare_in_partials};
///
/// let problem = Problem::builder(1, 1, 1).elements(F32, F32, F32).ranks(2).build()?;
/// let of_rank = |a: &'static [f32; 1]| Reference::new(&problem, a, &[2.0_f32], &[], &[]);
/// let ranks = [of_rank(&[1.0])?, of_rank(&[3.0])?];
/// assert_eq!(compare_in_partials(&ranks, Reduction::default(), &[8.0_f32], 0..1)?.wrong, 0);
/// # Ok::<(), overlap_gemm::Error>(())
/// ```
pub fn compare_in_partials<A: Element, B: Element, D: Element>(
    ranks: &[Reference<'_, A, B>],
    reduction: Reduction,
    d: &[D],
    rows: impl IntoIterator<Item = u32>,
) -> Result<Report> {
    compare(ranks, None, (reduction, Additions::OfPartials), d, rows, Epilogue::default())
}

fn compare<A: Element, B: Element, D: Element>(
    ranks: &[Reference<'_, A, B>],
    owner: Option<u32>,
    (reduction, additions): (Reduction, Additions),
    d: &[D],
    rows: impl IntoIterator<Item = u32>,
    epilogue: Epilogue<'_, D>,
) -> Result<Report> {
    let remedy = "pass one reference a rank, all of one problem";
    let Some(Reference { problem, .. }) = ranks.first() else {
        return Err(Error::mismatch("the number of ranks' references", 0, "one or more", remedy));
    };
    if ranks.len() != problem.ranks() as usize {
        let what = "the number of ranks' references";
        return Err(Error::mismatch(what, ranks.len(), problem.ranks(), remedy));
    }
    if let Some(other) = ranks.iter().find(|rank| rank.problem != *problem) {
        return Err(Error::mismatch("a rank's problem", other.problem, problem, remedy));
    }
    let own = rows_of(problem, owner)?;
    let m = own.len() as u32;
    check_len("D", d.len(), d_lens(problem, m), OWN_ROWS)?;
    check_epilogue(problem, m, &epilogue, OWN_ROWS)?;
    let wide: Vec<Vec<f64>> = ranks.iter().map(Reference::wide_b).collect();
    let rows = rows.into_iter().filter(|&row| row < m);
    Ok(Report::of(problem, d, &epilogue, rows, |row| {
        let of_rank = |(rank, b): (&Reference<'_, A, B>, &Vec<f64>)| -> Vec<Expected> {
            rank.sums(own.start + row, b, 1.0).collect()
        };
        let sums: Vec<_> = ranks.iter().zip(&wide).map(of_rank).collect();
        let alpha = f64::from(epilogue.alpha);
        let of_column = |column| sums.iter().map(move |sums: &Vec<Expected>| sums[column]);
        (0..problem.n() as usize)
            .map(|column| total(of_column(column), owner, reduction, additions, alpha))
            .collect()
    }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::element::ElementType::F32;

    #[test]
    fn the_bound_is_that_of_the_partials_and_for_others_sums_alone() {
        let problem = Problem::builder(1, 1, 1).elements(F32, F32, F32).shards(&[1, 0]);
        let problem = problem.build().unwrap();
        // Rank 0 owns the row. As bf16 the sum 257 is 256.
        let wrong = |a: [f32; 2], partials, average, d: f32| {
            let reference = |a| Reference::new(&problem, a, &[1.0f32], &[], &[]).unwrap();
            let ranks = [reference(&a[..1]), reference(&a[1..])];
            let reduction = Reduction { partials, average };
            let report =
                compare_reduced(&ranks, Some(0), reduction, &[d], 0..1, Epilogue::default());
            report.unwrap().wrong == 1
        };
        let (theirs, own) = ([1.0, 257.0], [257.0, 1.0]);
        assert!(!wrong(theirs, Partials::Bf16, false, 257.0));
        assert!(!wrong(theirs, Partials::F32, false, 258.0));
        assert!(wrong(theirs, Partials::F32, false, 257.0));
        assert!(wrong(theirs, Partials::Bf16, false, 256.95));
        assert!(wrong(own, Partials::Bf16, false, 257.0));
        assert!(!wrong(theirs, Partials::Bf16, true, 128.5));
        assert!(wrong(theirs, Partials::Bf16, true, 128.47));
        assert!(wrong(theirs, Partials::Bf16, false, f32::NAN));
    }

    /// Bf16 has steps of 2 from 256 on: 256 + 1 + 1 may be lost twice, and rounded once more by D.
    #[test]
    fn additions_in_partials_may_lose_what_wide_ones_keep() {
        let wrong = |ranks: usize, d: f32| {
            let shards: Vec<u32> = (0..ranks).map(|rank| u32::from(rank == 0)).collect();
            let problem = Problem::builder(1, 1, 1).elements(F32, F32, F32).shards(&shards);
            let problem = problem.build().unwrap();
            let a: Vec<f32> = (0..ranks).map(|rank| if rank == 0 { 256.0 } else { 1.0 }).collect();
            let of = |a| Reference::new(&problem, a, &[1.0f32], &[], &[]).unwrap();
            let references: Vec<_> = a.chunks(1).map(of).collect();
            let reduction = Reduction::default();
            let wide =
                compare_reduced(&references, None, reduction, &[d], 0..1, Epilogue::default());
            let rounded = compare_in_partials(&references, reduction, &[d], 0..1);
            [wide, rounded].map(|report| report.unwrap().wrong == 1)
        };
        // Of two ranks there is only the last addition, which D rounds.
        assert_eq!((wrong(2, 257.9), wrong(2, 258.1)), ([false; 2], [true; 2]));
        // Of three, another: half a unit of 2⁻⁸ more of some 259.
        assert_eq!((wrong(3, 257.1), wrong(3, 256.9)), ([false; 2], [true, false]));
        assert_eq!((wrong(3, 256.0), wrong(3, 255.9)), ([true, false], [true; 2]));
    }

    #[test]
    fn references_of_other_problems_are_refused() {
        let problem = |ranks| {
            let problem = Problem::builder(2, 1, 1).elements(F32, F32, F32).ranks(ranks);
            problem.build().unwrap()
        };
        let (two, one) = (problem(2), problem(1));
        let (a, b) = ([1.0f32; 2], [1.0f32]);
        let [right, other] =
            [&two, &one].map(|problem| Reference::new(problem, &a, &b, &[], &[]).unwrap());
        let refused = |ranks: &[Reference<'_, f32, f32>]| {
            let reduction = Reduction::default();
            let d = [1.0f32];
            compare_reduced(ranks, Some(0), reduction, &d, 0..1, Epilogue::default())
                .unwrap_err()
                .to_string()
        };
        for ranks in [&[][..], &[right], &[right, other]] {
            let error = refused(ranks);
            assert!(error.contains("one reference a rank"), "{error}");
        }
    }
}
