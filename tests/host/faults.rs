//! What goes wrong between ranks, on the host executor: stragglers, departures, aborts, other shapes,
//! bad input. Every rank ends with a typed error, nothing hangs, outputs of failed steps are NaN, and
//! a new plan on the same group computes right.

use std::thread;
use std::time::Duration;

use overlap_gemm::ElementType::{Bf16, E4m3};
use overlap_gemm::Error;
use overlap_gemm::element::{F8E4M3, bf16};
use overlap_gemm::host::{
    AllGatherGemm, AsyncGemm, Group, GroupOptions, Product, Rank, Shard, Stream,
};
use overlap_gemm::plan::{PlanOptions, Problem, Scaling, Tiling};

use crate::patient;
use crate::threads::on_threads;

const M: usize = 48;
const N: usize = 16;
const K: usize = 8;

fn problem(ranks: u64) -> Problem {
    Problem::builder(M as u64, N as u64, K as u64).ranks(ranks).build().unwrap()
}

fn options() -> PlanOptions {
    PlanOptions::new().with_pieces(2).with_tiling(Tiling::of_tile(8, 8))
}

/// Long enough for a loaded machine to do a small step in, short enough to wait for.
const SHORT: Duration = Duration::from_millis(1500);

/// One rank's operation with ones for input, so that every output is K.
struct Party {
    op: AllGatherGemm<bf16>,
    a: Vec<bf16>,
    b: Vec<bf16>,
    d: Vec<bf16>,
}

impl Party {
    fn new(rank: &Rank) -> Self {
        let op = AllGatherGemm::plan(rank, &problem(rank.ranks().into()), options()).unwrap();
        let ones = |len| vec![bf16::ONE; len];
        let own = op.planned().problem().shards().rows(rank.rank()).len();
        Party { op, a: ones(own * K), b: ones(N * K), d: ones(M * N) }
    }

    fn step(&mut self) -> Result<(), Error> {
        self.op.enqueue(&Stream::new(1).unwrap(), &self.a, &self.b, &mut self.d)
    }

    fn assert_right(&self) {
        assert!(self.d.iter().all(|d| d.to_f32() == K as f32));
    }

    fn assert_poisoned(&self) {
        assert!(self.d.iter().all(|d| d.is_nan()), "a failed step's output must not look like one");
        assert!(self.op.gathered().is_none());
    }
}

/// After any failure: the same ranks plan again, and compute right.
fn assert_recovers(ranks: &[Rank]) {
    on_threads(ranks, |rank| {
        let mut party = Party::new(rank);
        party.step().unwrap();
        party.assert_right();
    });
}

#[test]
fn a_straggler_within_the_limit_only_costs_time() {
    let ranks = Group::local_with(3, patient(Duration::from_secs(30))).unwrap();
    on_threads(&ranks, |rank| {
        let mut party = Party::new(rank);
        for step in 0..4 {
            if (rank.rank(), step) == (1, 2) {
                thread::sleep(Duration::from_millis(300));
            }
            party.step().unwrap();
            party.assert_right();
        }
    });
}

#[test]
fn a_rank_that_never_comes_is_named_within_the_limit() {
    let ranks = Group::local_with(3, patient(SHORT)).unwrap();
    let errors = on_threads(&ranks, |rank| {
        let mut party = Party::new(rank);
        if rank.rank() == 2 {
            thread::sleep(3 * SHORT); // here, but late
        }
        let error = party.step().unwrap_err();
        party.assert_poisoned();
        // The operation is over on this rank, for this and every later step.
        assert!(party.step().is_err());
        error
    });
    let timeouts: Vec<_> =
        errors.iter().filter(|error| matches!(error, Error::PeerTimeout { peer: 2, .. })).collect();
    assert!(!timeouts.is_empty(), "{errors:?}");
    let message = timeouts[0].to_string();
    assert!(message.contains("chunk 4 (for tile (4, 0)) from rank 2"), "{message}");
    assert!(message.contains("epoch 1 expected, 0 seen"), "{message}");
    let told = |error: &&Error| matches!(error, Error::Aborted { reason, .. } if reason.contains("rank 2"));
    assert_eq!(timeouts.len() + errors.iter().filter(told).count(), 3, "{errors:?}");
    assert_recovers(&ranks);
}

#[test]
fn a_rank_that_leaves_is_noticed_long_before_the_limit() {
    let ranks = Group::local_with(3, patient(Duration::from_secs(600))).unwrap();
    let errors = on_threads(&ranks, |rank| {
        let mut party = Party::new(rank);
        party.step().unwrap();
        if rank.rank() == 0 {
            return None; // dropped, as by a panic or an early return
        }
        let error = party.step().unwrap_err();
        party.assert_poisoned();
        Some(error)
    });
    let errors: Vec<_> = errors.into_iter().flatten().collect();
    assert!(
        errors.iter().any(
            |error| matches!(error, Error::PeerLost { peer: 0, before, .. } if before == "epoch 2")
        ),
        "{errors:?}"
    );
    assert_recovers(&ranks);
}

#[test]
fn a_rank_that_panics_takes_nobody_with_it() {
    let ranks = Group::local_with(2, patient(Duration::from_secs(600))).unwrap();
    thread::scope(|scope| {
        let panics = scope.spawn(|| {
            let _party = Party::new(&ranks[0]);
            panic!("as a caller's own code may");
        });
        let survives = scope.spawn(|| Party::new(&ranks[1]).step().unwrap_err());
        assert!(panics.join().is_err());
        let error = survives.join().unwrap();
        assert!(matches!(error, Error::PeerLost { rank: 1, peer: 0, .. }), "{error:?}");
    });
    assert_recovers(&ranks);
}

#[test]
fn an_abort_from_another_thread_ends_the_wait() {
    let ranks = Group::local_with(2, patient(Duration::from_secs(600))).unwrap();
    thread::scope(|scope| {
        let mut party = Party::new(&ranks[0]);
        let aborter = party.op.aborter();
        scope.spawn(move || {
            thread::sleep(Duration::from_millis(50));
            aborter.abort("the user went home");
        });
        let error = party.step().unwrap_err(); // rank 1 never comes
        assert!(
            matches!(&error, Error::Aborted { rank: 0, reason } if reason == "the user went home"),
            "{error:?}"
        );
        party.assert_poisoned();
        for later in [party.op.local_shard(None).unwrap_err(), party.step().unwrap_err()] {
            let over =
                "rank 0: this operation is over; plan again (it ended with: the user went home)";
            assert_eq!(later.to_string(), over);
        }
    });
    // Rank 1 plans its half of the operation only now, and learns that it is over.
    let error = Party::new(&ranks[1]).step().unwrap_err();
    assert!(matches!(error, Error::Aborted { rank: 1, .. }), "{error:?}");
    assert_recovers(&ranks);
}

#[test]
fn another_shape_is_refused_with_both_shapes() {
    let ranks = Group::local_with(2, patient(Duration::from_secs(600))).unwrap();
    let errors = on_threads(&ranks, |rank| {
        let mut party = Party::new(rank);
        let rows = if rank.rank() == 0 { [24, 24] } else { [23, 25] };
        let own = vec![bf16::ONE; rows[rank.rank() as usize] as usize * K];
        let input = Shard::at(&own).rows(&rows);
        let products = &mut [Product::new(&party.b, &mut party.d)];
        party.op.enqueue_all(&Stream::new(1).unwrap(), input, products).unwrap_err()
    });
    let refused = errors.iter().find(|error| matches!(error, Error::Mismatch { .. })).unwrap();
    let message = refused.to_string();
    assert!(message.contains("[24, 24]") && message.contains("[23, 25]"), "{message}");
    assert_recovers(&ranks);
}

#[test]
fn another_plan_is_refused() {
    let ranks = Group::local_with(2, patient(Duration::from_secs(600))).unwrap();
    let _first = Party::new(&ranks[0]);
    let other = Problem::builder(M as u64, 32, K as u64).ranks(2).build().unwrap();
    let error = AllGatherGemm::<bf16>::plan(&ranks[1], &other, options()).unwrap_err();
    assert!(error.to_string().starts_with("the plan of rank 1"), "{error}");
    let ranks = Group::local(2).unwrap();
    let error = AllGatherGemm::<bf16>::plan(&ranks[0], &problem(3), options()).unwrap_err();
    assert!(error.to_string().starts_with("the number of ranks in the plan is 3"), "{error}");
}

#[test]
fn a_refused_call_leaves_the_operation_as_it_was() {
    let ranks = Group::local_with(2, patient(Duration::from_secs(60))).unwrap();
    on_threads(&ranks, |rank| {
        let mut party = Party::new(rank);
        let stream = Stream::new(1).unwrap();
        for _ in 0..3 {
            let Party { op, a, b, d } = &mut party;
            assert!(op.enqueue(&stream, &a[1..], b, d).is_err(), "a short shard");
            assert!(op.enqueue(&stream, &a[..], &b[1..], d).is_err(), "a short B");
            assert!(op.enqueue(&stream, &a[..], b, &mut d[1..]).is_err(), "a short D");
            assert!(op.enqueue_all(&stream, &a[..], &mut []).is_err(), "no products");
            let zero = Product::new(b, d).n(0);
            assert!(op.enqueue_all(&stream, &a[..], &mut [zero]).is_err(), "no columns");
            let in_place = Shard::in_place();
            assert!(op.enqueue(&stream, in_place, b, d).is_err(), "nothing was written in place");
            for rows in [&[24u32][..], &[24, 25], &[0, 0], &[u32::MAX, 24]] {
                let input = Shard::at(&a[..]).rows(rows);
                assert!(op.enqueue(&stream, input, b, d).is_err(), "{rows:?}");
            }
            party.step().unwrap();
            party.assert_right();
        }
    });
}

/// A slot is lent for one step, which uses it or not; the step after it has another buffer.
#[test]
fn a_lent_slot_serves_one_step() {
    let ranks = Group::local_with(2, patient(Duration::from_secs(60))).unwrap();
    on_threads(&ranks, |rank| {
        let Party { mut op, a, b, mut d } = Party::new(rank);
        let stream = Stream::new(1).unwrap();
        for step in 0..3 {
            let number = bf16::from_f32(step as f32 + 1.0);
            op.local_shard(None).unwrap().fill(number);
            assert!(op.enqueue(&stream, Shard::in_place(), &b[1..], &mut d).is_err(), "a short B");
            op.enqueue(&stream, Shard::in_place(), &b, &mut d).unwrap();
            assert!(d.iter().all(|d| d.to_f32() == number.to_f32() * K as f32));
            let error = op.enqueue(&stream, Shard::in_place(), &b, &mut d).unwrap_err();
            assert!(error.to_string().starts_with("the local shard is not taken"), "{error}");

            op.local_shard(None).unwrap().fill(bf16::NAN);
            op.enqueue(&stream, &a, &b, &mut d).unwrap();
            assert!(d.iter().all(|d| d.to_f32() == K as f32));
            assert!(op.enqueue(&stream, Shard::in_place(), &b, &mut d).is_err());
        }
    });
}

#[test]
fn scales_that_are_not_finite_are_named() {
    let problem = Problem::builder(8, 8, 8)
        .elements(E4m3, E4m3, Bf16)
        .scaling(Scaling::Rows)
        .build()
        .unwrap();
    let ranks = Group::local(1).unwrap();
    let mut op =
        AllGatherGemm::<F8E4M3, F8E4M3, bf16>::plan(&ranks[0], &problem, PlanOptions::default())
            .unwrap();
    let (a, b) = (vec![F8E4M3::from_f32(1.0); 64], vec![F8E4M3::from_f32(1.0); 64]);
    let mut d = vec![bf16::ONE; 64];
    let stream = Stream::new(1).unwrap();
    for bad in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        let mut scales = [1.0; 8];
        scales[5] = bad;
        let product = Product::new(&b, &mut d).scales(&[1.0; 8]);
        let input = Shard::at(&a).scales(&scales);
        let error = op.enqueue_all(&stream, input, &mut [product]).unwrap_err();
        assert!(matches!(error, Error::NotFinite { .. }), "{error:?}");
        assert!(error.to_string().contains("index 5"), "{error}");
        let product = Product::new(&b, &mut d).scales(&scales);
        let input = Shard::at(&a).scales(&[1.0; 8]);
        let error = op.enqueue_all(&stream, input, &mut [product]).unwrap_err();
        assert!(matches!(error, Error::NotFinite { .. }), "{error:?}");
    }
    let product = Product::new(&b, &mut d).scales(&[2.0; 8]);
    op.enqueue_all(&stream, Shard::at(&a).scales(&[0.5; 8]), &mut [product]).unwrap();
    assert!(d.iter().all(|d| d.to_f32() == 8.0));
}

#[test]
fn groups_and_streams_refuse_what_cannot_be() {
    assert!(matches!(Group::local(0), Err(Error::OutOfRange { value: 0, .. })));
    assert!(matches!(Group::local(u32::MAX), Err(Error::OutOfRange { .. })));
    assert!(matches!(Stream::new(0), Err(Error::OutOfRange { .. })));
    for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
        let link = Some(overlap_gemm::host::Link::of_rate(rate));
        let group = Group::local_with(2, GroupOptions { link, ..GroupOptions::default() });
        assert!(matches!(group, Err(Error::Unsupported { .. })), "{rate}");
    }
    // More memory than any machine has: a typed error, not an allocation that is killed.
    let huge = i32::MAX as u64;
    let problem = Problem::builder(huge, huge, huge).build().unwrap();
    let ranks = Group::local(1).unwrap();
    let error = AllGatherGemm::<bf16>::plan(&ranks[0], &problem, PlanOptions::default());
    assert!(matches!(error, Err(Error::OutOfRange { .. })));
}

#[test]
fn async_inputs_refuse_what_would_go_wrong_silently() {
    let limit = Duration::from_millis(200);
    let mut gemm =
        AsyncGemm::<bf16>::plan(&problem(2), options(), 1).unwrap().with_timeouts(limit, limit);
    let mut input = gemm.input().unwrap();
    let writer = input.writer();
    let rows = vec![bf16::ONE; 12 * K];
    assert!(writer.publish(0, 4, &rows).is_err(), "there are chunks 0 to 3");
    assert!(writer.publish(0, 0, &rows[1..]).is_err(), "not whole rows");
    assert!(writer.publish(1, 0, &rows).is_err(), "step 1 before step 0");
    for chunk in 0..4 {
        writer.publish(0, chunk, &rows).unwrap();
        assert!(writer.publish(0, chunk, &rows).is_err(), "chunk {chunk} twice");
        writer.publish(1, chunk, &rows).unwrap();
    }
    // Both buffers are full, and nobody has read: a third step has to wait, and gives up.
    let error = writer.publish(2, 0, &rows).unwrap_err();
    assert!(matches!(error, Error::PeerTimeout { .. }), "{error:?}");

    let stream = Stream::new(2).unwrap();
    let (b, mut d) = (vec![bf16::ONE; N * K], vec![bf16::NAN; M * N]);
    for _ in 0..2 {
        gemm.enqueue(&stream, &mut input, &b, &mut d).unwrap();
        assert!(d.iter().all(|d| d.to_f32() == K as f32));
    }
    // A step of fewer rows needs no more than those.
    for chunk in 0..2 {
        writer.publish(2, chunk, &rows).unwrap();
    }
    writer.publish(2, 2, &rows[..K]).unwrap();
    writer.publish(2, 3, &[]).unwrap();
    d.fill(bf16::ZERO);
    let whole = &mut [Product::new(&b, &mut d)];
    assert!(gemm.enqueue_all(&stream, &mut input, 25, &[], whole).is_err(), "a D of 48 rows");
    let part = &mut [Product::new(&b, &mut d[..25 * N])];
    gemm.enqueue_all(&stream, &mut input, 25, &[], part).unwrap();
    assert!(d[..25 * N].iter().all(|d| d.to_f32() == K as f32));
    assert!(d[25 * N..].iter().all(|d| d.to_f32() == 0.0), "rows beyond the step are left alone");

    // A chunk that is shorter than the step needs, and one that never comes.
    writer.publish(3, 2, &rows[..K]).unwrap();
    writer.publish(3, 3, &rows).unwrap();
    let error = gemm.enqueue(&stream, &mut input, &b, &mut d).unwrap_err();
    assert!(error.to_string().contains("the rows published of chunk 2"), "{error}");
    assert!(d.iter().all(|d| d.is_nan()));
    let error = gemm.enqueue(&stream, &mut input, &b, &mut d).unwrap_err().to_string();
    assert!(error.contains("this operation is over; plan again"), "{error}");
    assert!(error.contains("the rows published of chunk 2"), "{error}");
    let mut fresh = gemm.input().unwrap();
    let error = gemm.enqueue(&stream, &mut fresh, &b, &mut d).unwrap_err();
    assert!(matches!(error, Error::PeerTimeout { peer: 1, .. }), "{error:?}");
}

/// Where each step's rows are one rank's alone, a rank that nobody waits for falls behind by more
/// steps than there are ranks. What it then gives as a step's shards must still be held against what
/// the others gave, long ago.
#[test]
fn a_laggard_s_other_shape_is_refused_however_late() {
    const RANKS: u32 = 24;
    let rows_of = |owner: u32| {
        let mut rows = vec![0; RANKS as usize];
        rows[owner as usize] = M as u32;
        rows
    };
    let problem = problem(RANKS.into());
    let options = PlanOptions::new().with_pieces(1).with_tiling(Tiling::of_tile(16, 16));
    let ranks = Group::local_with(RANKS, patient(Duration::from_secs(600))).unwrap();
    let (ahead, steps_ahead) = std::sync::mpsc::channel();
    let step = |op: &mut AllGatherGemm<bf16>, rank: u32, owner: u32| {
        let (rows, b) = (&rows_of(owner)[..], vec![bf16::ONE; N * K]);
        let a = vec![bf16::ONE; rows[rank as usize] as usize * K];
        let mut d = vec![bf16::ZERO; M * N];
        let products = &mut [Product::new(&b, &mut d)];
        op.enqueue_all(&Stream::new(1).unwrap(), Shard::at(&a).rows(rows), products)
    };
    let plan = |rank| AllGatherGemm::<bf16>::plan(rank, &problem, options).unwrap();
    let (step, plan) = (&step, &plan);
    thread::scope(|scope| {
        for rank in &ranks[1..] {
            let ahead = ahead.clone();
            scope.spawn(move || {
                let mut op = plan(rank);
                // Each owner serves all others before rank 0's full buffers stop it, and only it.
                let owners = [RANKS - 1].into_iter().chain((1..RANKS).rev());
                for (nth, owner) in owners.enumerate() {
                    if step(&mut op, rank.rank(), owner).is_err() {
                        return;
                    }
                    // The receiver may be gone already.
                    let _ = ahead.send(nth);
                }
            });
        }
        let mut laggard = plan(&ranks[0]);
        while steps_ahead.recv_timeout(Duration::from_secs(60)).expect("the others go on") < 18 {}
        let error = step(&mut laggard, 0, 0).unwrap_err();
        assert!(matches!(error, Error::Mismatch { .. }), "{error:?}");
    });
}

#[test]
fn too_many_columns_are_refused_before_anything_is_sent() {
    let problem = Problem::builder(8, 1, 1).build().unwrap();
    let ranks = Group::local(1).unwrap();
    let options = PlanOptions::new().with_tiling(Tiling::of_tile(8, 1 << 14));
    let mut op = AllGatherGemm::<bf16>::plan(&ranks[0], &problem, options).unwrap();
    let (a, b, stream) = (vec![bf16::ONE; 8], [bf16::ONE], Stream::new(1).unwrap());
    let mut d = vec![bf16::ZERO; 8 * ((1 << 18) + 1)];
    let mut products: Vec<_> = d.chunks_mut(8).map(|d| Product::new(&b, d)).collect();
    assert!(op.enqueue_all(&stream, &a, &mut products).is_err(), "2³² columns and more");
    op.enqueue(&stream, &a, &b, &mut d[..8]).unwrap();
    assert!(d[..8].iter().all(|d| d.to_f32() == 1.0));
}

#[test]
fn nobody_waits_for_an_input_or_a_writer_that_is_gone() {
    let long = Duration::from_secs(600);
    let mut gemm =
        AsyncGemm::<bf16>::plan(&problem(1), options(), 0).unwrap().with_timeouts(long, long);
    let (rows, b) = (vec![bf16::ONE; 24 * K], vec![bf16::ONE; N * K]);
    let mut d = vec![bf16::ZERO; M * N];
    let mut input = gemm.input().unwrap();
    let writer = input.writer();
    writer.clone().publish(0, 0, &rows).unwrap();
    drop(writer); // chunk 1 will never come
    let error = gemm.enqueue(&Stream::new(1).unwrap(), &mut input, &b, &mut d).unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank: 1, peer: 0, .. }), "{error:?}");

    let input = gemm.input().unwrap();
    let writer = input.writer();
    writer.publish(0, 0, &rows).unwrap();
    writer.publish(1, 0, &rows).unwrap();
    drop(input); // both buffers are full, and nobody will read them
    let error = writer.publish(2, 0, &rows).unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank: 0, peer: 1, .. }), "{error:?}");
}

#[test]
fn a_step_may_move_rows_to_ranks_that_had_none() {
    let problem = Problem::builder(70_000, 1, 1).shards(&[70_000, 0]).build().unwrap();
    let options = PlanOptions::new().with_pieces(1 << 16).with_tiling(Tiling::of_tile(64, 8));
    let plan = overlap_gemm::plan::Plan::new(&problem, options).unwrap();
    assert_eq!(plan.for_rows(&[35_000, 35_000]).unwrap().chunks().len(), 1 << 16);
}
