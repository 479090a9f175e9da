//! Ranks that leave, on the host executor: before they plan, between steps, after their last one.
//!
//! What belongs here: who learns of it, and who must not. Invariant: the limits are so long that a rank
//! which only notices by them hangs; a step that gets all of its rows is right whoever leaves.

use std::thread;
use std::time::Duration;

use overlap_gemm::element::bf16;
use overlap_gemm::host::{AllGatherGemm, Group, GroupOptions, Link, Product, Rank, Shard, Stream};
use overlap_gemm::plan::{PlanOptions, Problem, Tiling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::Reference;
use overlap_gemm::{Error, Result};

use crate::patient;
use crate::threads::on_threads;

const N: u64 = 8;
const K: u64 = 16;
const OPTIONS: PlanOptions = PlanOptions::new().with_pieces(1).with_tiling(Tiling::of_tile(8, 8));

/// A group whose ranks wait for hours, with links that send as many bytes a second.
fn group(ranks: usize, bytes_per_second: Option<f64>) -> Vec<Rank> {
    let link = bytes_per_second.map(Link::of_rate);
    let options = GroupOptions { link, poison: true, ..patient(Duration::from_secs(36_000)) };
    Group::local_with(ranks as u32, options).unwrap()
}

fn problem(rows: &[u32]) -> Problem {
    Problem::builder(rows.iter().sum::<u32>().into(), N, K).shards(rows).build().unwrap()
}

fn plan(rank: &Rank, rows: &[u32]) -> AllGatherGemm<bf16> {
    AllGatherGemm::plan(rank, &problem(rows), OPTIONS).unwrap()
}

/// One step with these rows. What comes out is compared with the reference.
fn step(op: &mut AllGatherGemm<bf16>, rank: u32, rows: &[u32], number: u64) -> Result<()> {
    let shape = problem(rows);
    let a: Vec<bf16> = Random::of_stream(5, number).elements(shape.a_len(shape.m()));
    let b: Vec<bf16> = Random::of_stream(6, rank.into()).elements(shape.b_len());
    let mut d = vec![bf16::NAN; shape.d_len() as usize];
    let own = shape.shards().rows(rank);
    let own = &a[own.start as usize * K as usize..own.end as usize * K as usize];
    let products = &mut [Product::new(&b, &mut d)];
    let stream = Stream::new(1).unwrap();
    let result = op.enqueue_all(&stream, Shard::at(own).rows(rows), products);
    match result {
        Ok(()) => {
            let reference = Reference::new(&shape, &a, &b, &[], &[]).unwrap();
            assert_eq!(reference.compare(&d, 0..shape.m()).unwrap().wrong, 0);
        }
        Err(_) => {
            assert!(d.iter().all(|d| d.is_nan()), "a failed step's output must not look like one")
        }
    }
    result
}

/// The rank that left is named by every error, and by one of them as lost.
fn assert_lost(errors: &[Error], lost: u32) {
    let noticed = |error: &Error| matches!(error, Error::PeerLost { peer, .. } if *peer == lost);
    assert!(errors.iter().any(noticed), "{errors:?}");
    let names = |error: &Error| error.to_string().contains(&format!("rank {lost} left the group"));
    assert!(errors.iter().all(names), "{errors:?}");
}

#[test]
fn a_rank_that_leaves_before_it_plans_is_noticed() {
    let rows = [8, 8, 8];
    // The others plan before it leaves, or after.
    for leaves_first in [true, false] {
        let mut ranks = group(3, None);
        let mut leaver = ranks.pop();
        if leaves_first {
            drop(leaver.take());
        }
        let mut ops: Vec<_> = ranks.iter().map(|rank| plan(rank, &rows)).collect();
        let errors: Vec<Error> = thread::scope(|scope| {
            let steps: Vec<_> = (0..)
                .zip(&mut ops)
                .map(|(rank, op)| scope.spawn(move || step(op, rank, &rows, 0).unwrap_err()))
                .collect();
            drop(leaver.take());
            steps.into_iter().map(|step| step.join().unwrap()).collect()
        });
        assert_lost(&errors, 2);
    }
}

#[test]
fn a_rank_that_could_not_plan_is_noticed_when_it_leaves() {
    let (rows, mut ranks) = ([8, 8], group(2, None));
    let leaver = ranks.pop().unwrap();
    // More memory than there is. This rank has planned for the first time, but joined nothing.
    let huge = Problem::builder(1 << 30, 8, 1 << 30).ranks(2).build().unwrap();
    assert!(AllGatherGemm::<bf16>::plan(&leaver, &huge, OPTIONS).is_err());
    let mut op = plan(&ranks[0], &rows);
    thread::scope(|scope| {
        let waits = scope.spawn(|| step(&mut op, 0, &rows, 0).unwrap_err());
        drop(leaver);
        assert_lost(&[waits.join().unwrap()], 1);
    });
}

#[test]
fn a_rank_that_planned_other_types_is_noticed() {
    let rows = [8, 8];
    let mut ranks = group(2, None);
    let mut op = plan(&ranks[0], &rows);
    let other = ranks.pop().unwrap();
    thread::scope(|scope| {
        let waits = scope.spawn(|| step(&mut op, 0, &rows, 0).unwrap_err());
        use overlap_gemm::ElementType::F32;
        let floats = Problem::builder(16, N, K).ranks(2).elements(F32, F32, F32).build().unwrap();
        let error = AllGatherGemm::<f32>::plan(&other, &floats, OPTIONS).unwrap_err();
        assert!(
            error.to_string().starts_with("operation 0 of rank 1 is of other types"),
            "{error}"
        );
        let error = waits.join().unwrap();
        assert!(
            matches!(&error, Error::Aborted { reason, .. } if reason.contains("rank 1")),
            "{error:?}"
        );
    });
}

/// Ranks leave right after their last step, while the links still carry what they sent in it.
#[test]
fn ranks_that_leave_after_their_last_step_fail_nobody() {
    for rows in [[8, 8, 8], [40, 1, 3], [0, 30, 2], [5, 0, 0], [16, 16, 0]] {
        for steps in [1, 2, 5] {
            // A few milliseconds a shard of 40 rows.
            let results = on_threads(group(3, Some(400e3)), |rank| {
                let number = rank.rank();
                let mut op = plan(&rank, &rows);
                drop(rank);
                (0..steps).try_for_each(|nth| step(&mut op, number, &rows, nth))
            });
            assert_eq!(results, [Ok(()), Ok(()), Ok(())], "{rows:?}, {steps} steps");
        }
    }
}

/// Rank 0's large shard comes to rank 1 last. Meanwhile rank 3 has left, and rank 2 has noticed it in
/// the step after. Rank 1's step gets all of its rows, so it is right; its next one is over.
#[test]
fn a_step_that_gets_its_rows_outlives_a_failure_in_a_later_one() {
    let rows = [64, 8, 8, 8];
    // Each of rank 0's three sends takes a fifth of a second.
    let bytes_per_second = 5.0 * 64.0 * K as f64 * 2.0;
    let results = on_threads(group(4, Some(bytes_per_second)), |rank| {
        let number = rank.rank();
        let mut op = plan(&rank, &rows);
        let first = step(&mut op, number, &rows, 0);
        (first, (number != 3).then(|| step(&mut op, number, &rows, 1).unwrap_err()))
    });
    let (first, second): (Vec<_>, Vec<_>) = results.into_iter().unzip();
    assert_eq!(first, [Ok(()), Ok(()), Ok(()), Ok(())]);
    assert_lost(&second.into_iter().flatten().collect::<Vec<_>>(), 3);
}
