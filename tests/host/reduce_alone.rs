//! Reduce-scatter and all-reduce without a product, on threads: random worlds bit for bit, in place or not, whatever arrives
//! first; what is refused; sums of a step that fails. `PROPTEST_CASES=10000` is the long mode.

use std::time::Duration;

use overlap_gemm::element::{Element, F8E4M3, bf16, f16};
use overlap_gemm::host::{Group, GroupOptions, Link, Reduce, ReduceScatter, Stream};
use overlap_gemm::plan::{Partials, PlanOptions, Reduction, Strategy};
use overlap_gemm::random::Random;
use overlap_gemm::{Error, Result};
use proptest::prelude::*;

use crate::patient;
use crate::threads::on_threads;
use crate::totals::{Step, bits, partials};

/// What all ranks do: several steps, each with sums and rows of its own.
#[derive(Clone, Debug)]
struct World {
    /// The first step has the planned rows.
    steps: Vec<Vec<u32>>,
    columns: u32,
    average: bool,
    options: PlanOptions,
    group: GroupOptions,
    workers: u32,
    /// Each rank sleeps so long at most, before one of four steps.
    delay: Duration,
}

/// How totals take the place of sums, where both have one type.
type InPlace<const ALL: bool, S, D> =
    fn(&mut Reduce<ALL, S, D>, &Stream, Option<&[u32]>, &mut [S]) -> Result<()>;

impl World {
    fn random(seed: u64) -> World {
        let mut random = Random::new(seed);
        let ranks = random.within(1..=5);
        let mut rows = |most: u64| -> Vec<u32> {
            let mut rows: Vec<u32> = (0..ranks).map(|_| random.within(0..=most) as u32).collect();
            rows[0] += u32::from(rows.iter().all(|rows| *rows == 0));
            rows
        };
        let planned = rows(40);
        let (m, most) = (planned.iter().sum::<u32>(), *planned.iter().max().unwrap());
        let mut steps = vec![planned];
        steps
            .extend((0..6).map(|_| rows(most.into())).filter(|rows| rows.iter().sum::<u32>() <= m));
        let jitter = Duration::from_micros(random.within(0..=300));
        let options = PlanOptions::new().with_strategy(random.choose(&Strategy::ALL));
        World {
            steps,
            columns: random.within(1..=40) as u32,
            average: random.choose(&[true, false]),
            options: options.with_pieces(random.within(1..=3.min(most.into())) as u32),
            group: GroupOptions {
                link: Some(Link { bytes_per_second: 1e12, jitter, seed }),
                poison: true,
                first_epoch: random.choose(&[0, u32::MAX - 2, i32::MAX as u32 - 2]),
                ..GroupOptions::default()
            },
            workers: random.within(1..=3) as u32,
            delay: Duration::from_micros(random.within(0..=300)),
        }
    }

    /// Checks what each rank gets of every step.
    fn play<const ALL: bool, S: Element, D: Element>(&self, in_place: Option<InPlace<ALL, S, D>>) {
        let planned = &self.steps[0];
        let reduction = Reduction { partials: partials::<S>(), average: self.average };
        on_threads(Group::local_with(planned.len() as u32, self.group).unwrap(), |rank| {
            let (columns, options, me) = (self.columns, self.options, rank.rank());
            let mut layer =
                Reduce::<ALL, S, D>::plan(&rank, planned, columns, options, reduction).unwrap();
            let stream = Stream::new(self.workers).unwrap();
            let mut delays = Random::of_stream(3, me.into());
            for (number, rows) in (0..).zip(&self.steps) {
                if delays.within(0..=3) == 0 {
                    std::thread::sleep(self.delay.mul_f64(delays.fraction()));
                }
                let step = Step { number, rows, columns };
                let (mut sums, own) = (step.brought::<S, D>(me), step.own(ALL, me));
                let mut d = vec![D::POISON; own.len()];
                let (replaced, got) = match in_place {
                    Some(enqueue) => {
                        enqueue(&mut layer, &stream, Some(rows), &mut sums).unwrap();
                        (own.clone(), bits(&sums[own.clone()]))
                    }
                    None => {
                        layer.enqueue(&stream, Some(rows), &sums, &mut d).unwrap();
                        (0..0, bits(&d))
                    }
                };
                let what = format!("rank {me}, {step:?}, average {}, {options:?}", self.average);
                step.check_totals::<S, D>(self.average, own, &got, &what);
                step.check_kept::<S, D>(me, &sums, &replaced, &what);
            }
            layer.flush().unwrap();
        });
    }

    /// Both operations, in the types that there are.
    fn play_all(&self) {
        self.play::<false, bf16, bf16>(None);
        self.play::<true, bf16, bf16>(Some(Reduce::enqueue_in_place));
        self.play::<false, f32, f32>(Some(Reduce::enqueue_in_place));
        self.play::<true, f32, f32>(None);
        self.play::<false, f32, f16>(None);
        self.play::<true, f32, bf16>(None);
        self.play::<false, bf16, f32>(None);
    }
}

proptest! {
    // Seeds, not structures, so there is nothing to shrink.
    #![proptest_config(ProptestConfig { max_shrink_iters: 0, ..ProptestConfig::default() })]

    #[test]
    fn every_bit_is_that_of_the_order_of_the_ranks(seed in any::<u64>()) {
        World::random(seed).play_all();
    }
}

/// A rank without rows waits for nobody's sums, and runs ahead of those that add up.
#[test]
fn many_steps_of_ranks_that_drift_apart_are_right() {
    let shapes = [[6, 0, 3], [0, 5, 1], [0, 0, 6]].map(Vec::from);
    let steps: Vec<Vec<u32>> = shapes.iter().cycle().take(600).cloned().collect();
    World { steps, columns: 5, ..World::random(11) }.play_all();
}

#[test]
fn another_order_of_additions_has_other_bits() {
    let step = Step { number: 0, rows: &[4; 4], columns: 24 };
    let of_ranks = [0, 1, 2, 3].map(|rank| step.brought::<f32, f32>(rank));
    let backwards: Vec<f32> = (0..step.elements())
        .map(|at| of_ranks.iter().rev().map(|sums| sums[at]).reduce(|a, b| a + b).unwrap())
        .collect();
    let right = bits(&step.totals::<f32, f32>(false));
    let differ = right.iter().zip(bits(&backwards)).filter(|(a, b)| *a != b).count();
    assert!(differ > 50, "{differ} of {}", right.len());
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_sent() {
    let ranks = Group::local(2).unwrap();
    let (options, sum) = (PlanOptions::new(), Reduction::default());
    let wide = Reduction { partials: Partials::F32, ..sum };
    let refused = |planned: Result<()>, words: &str| {
        let text = planned.unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    let plan = |rows: &[u32], columns, reduction| {
        ReduceScatter::<bf16>::plan(&ranks[0], rows, columns, options, reduction)
    };
    refused(plan(&[3, 1], 4, wide).map(|_| ()), "the element type of the sums is bf16");
    refused(plan(&[3, 1], 0, sum).map(|_| ()), "n is 0");
    refused(plan(&[3, 1, 1], 4, sum).map(|_| ()), "the number of ranks in the plan is 3");
    refused(plan(&[0, 0], 4, sum).map(|_| ()), "m is 0");
    let quantized = Reduce::<true, bf16, F8E4M3>::plan(&ranks[0], &[3, 1], 4, options, sum);
    refused(quantized.map(|_| ()), "e4m3");

    on_threads(&ranks, |rank| {
        let mut layer = ReduceScatter::<bf16>::plan(rank, &[3, 1], 4, options, sum).unwrap();
        let stream = Stream::new(1).unwrap();
        let own = [3, 1][rank.rank() as usize] * 4;
        let (mut sums, mut d) = ([bf16::ONE; 20], [bf16::ONE; 20]);
        for (rows, brought, got, words) in [
            (None, 15, own, "the length of the sums is 15, but must be 16"),
            (None, 16, 16, "the length of D is 16"),
            (Some(&[2, 3][..]), 20, own, "m of this step is 5"),
            (Some(&[0, 4][..]), 16, own, "the rows that one rank gets in this step is 4"),
            (Some(&[4][..]), 16, own, "the number of shards is 1"),
        ] {
            let step = layer.enqueue(&stream, rows, &sums[..brought], &mut d[..got]);
            refused(step, words);
        }
        let step = layer.enqueue_in_place(&stream, None, &mut sums[..17]);
        refused(step, "the length of the sums is 17");
        assert_eq!((sums, d), ([bf16::ONE; 20], [bf16::ONE; 20]));
        // None of them ended the operation.
        layer.enqueue(&stream, None, &sums[..16], &mut d[..own]).unwrap();
        assert!(d[..own].iter().all(|d| d.to_f32() == 2.0));
    });
}

#[test]
fn a_step_in_place_that_fails_leaves_no_sums_where_totals_belong() {
    let ranks = Group::local_with(2, patient(Duration::from_millis(100))).unwrap();
    let (options, sum) = (PlanOptions::new(), Reduction::default());
    let plan = |rank| ReduceScatter::<bf16>::plan(rank, &[1, 2], 4, options, sum).unwrap();
    let (mut here, _late) = (plan(&ranks[0]), plan(&ranks[1]));
    let mut sums = [bf16::ONE; 12];
    let error = here.enqueue_in_place(&Stream::new(1).unwrap(), None, &mut sums).unwrap_err();
    assert!(matches!(error, Error::PeerTimeout { rank: 0, peer: 1, .. }), "{error:?}");
    assert!(sums[..4].iter().all(|total| total.is_nan()));
    assert_eq!(sums[4..], [bf16::ONE; 8]);
}
