//! Reduce-scatter and all-reduce without a product: what comes out is the sum of what the ranks brought.
//!
//! What belongs here: results, waits and refusals. Invariant: outputs are NaN before, and memory that a step has no business with
//! is as it was.

use std::time::Duration;

use overlap_gemm::cuda::cudarc::driver::{CudaSlice, DevicePtr};
use overlap_gemm::cuda::{CollectiveOptions, Reduce, ReduceScatter};
use overlap_gemm::element::{bf16, f16};
use overlap_gemm::plan::{Engine, Operation, Plan, PlanOptions, Reduction, Strategy};
use overlap_gemm::random::Random;
use overlap_gemm::{ElementType, Error};

use crate::gpu::call::Number;
use crate::gpu::ranks::{Rank, on_ranks, options};
use crate::gpu::{PATIENCE, captured};
use crate::totals::{Step, bits, partials};

const COLUMNS: u32 = 136;
const ENGINES: [Engine; 3] = [
    Engine::CopyEngines { streams: 1 },
    Engine::CopyEngines { streams: 2 },
    Engine::Kernel { blocks: 8 },
];

/// What all ranks do.
#[derive(Clone, Debug)]
struct Task {
    rows: Vec<u32>,
    average: bool,
    /// Totals take the place of sums, which have their type.
    in_place: bool,
    options: CollectiveOptions,
}

/// How steps come one after the other.
#[derive(Clone, Copy, Debug)]
enum Course {
    /// Each is awaited; the rows vary.
    Awaited,
    /// Nobody waits between them, and ranks drift apart.
    Drifting,
    /// Graphs of two shapes are launched in random order, with a plain step before and after.
    Replayed,
}

/// One rank's memory of a step.
struct Work<S, D> {
    number: u64,
    sums: CudaSlice<S>,
    d: CudaSlice<D>,
}

/// The step of that number, with these rows.
fn step_of(number: u64, rows: &[u32]) -> Step<'_> {
    Step { number, rows, columns: COLUMNS }
}

impl Task {
    fn len(&self) -> usize {
        step_of(0, &self.rows).elements()
    }

    fn plan<const ALL: bool, S: Number, D: Number>(
        &self,
        rank: &Rank,
    ) -> Result<Reduce<ALL, false>, Error> {
        let reduction = Reduction { partials: partials::<S>(), average: self.average };
        let options = rank.that_fit(&self.options, &step_of(0, &self.rows).problem::<D>());
        let (group, device) = (&rank.group, &rank.gpu.device);
        Reduce::<ALL, false>::plan(group, device, &self.rows, COLUMNS, D::TYPE, &options, reduction)
    }
}

impl<S: Number, D: Number> Work<S, D> {
    fn new(task: &Task, rank: &Rank) -> Self {
        let (sums, d) = (vec![S::POISON; task.len()], vec![D::POISON; task.len()]);
        Work { number: 0, sums: rank.gpu.upload(&sums), d: rank.gpu.upload(&d) }
    }

    /// Sums of step `number` with so many rows; NaN behind them and in D.
    fn renew(&mut self, task: &Task, rank: &Rank, number: u64, rows: &[u32]) {
        self.number = number;
        let mut sums = step_of(number, rows).brought::<S, D>(rank.rank());
        sums.resize(task.len(), S::POISON);
        let stream = &rank.gpu.stream;
        stream.memcpy_htod(&sums, &mut self.sums).unwrap();
        stream.memcpy_htod(&vec![D::POISON; task.len()], &mut self.d).unwrap();
        stream.synchronize().unwrap();
    }

    fn enqueue<const ALL: bool>(
        &self,
        task: &Task,
        rank: &Rank,
        layer: &mut Reduce<ALL, false>,
        rows: &[u32],
    ) -> Result<(), Error> {
        let stream = &rank.gpu.stream;
        let (sums, d) = (self.sums.device_ptr(stream).0, self.d.device_ptr(stream).0);
        let own = step_of(self.number, rows).own(ALL, rank.rank());
        let behind = own.start as u64 * u64::from(S::TYPE.size());
        let d = if task.in_place { sums + behind } else { d };
        // SAFETY: this value's own memory; tests await the stream before they drop or look at it.
        unsafe { layer.enqueue_raw(stream, Some(rows), sums, d) }
    }

    /// Looks at everything, when the stream is through; the bits of the totals.
    fn check<const ALL: bool>(&self, task: &Task, rank: &Rank, rows: &[u32]) -> Vec<u32> {
        let (sums, d) = (rank.gpu.download(&self.sums), rank.gpu.download(&self.d));
        let (step, me) = (step_of(self.number, rows), rank.rank());
        let own = step.own(ALL, me);
        let got = if task.in_place { bits(&sums[own.clone()]) } else { bits(&d[..own.len()]) };
        let what = format!("rank {me}, {step:?}, {task:?}");
        step.check_totals::<S, D>(task.average, own.clone(), &got, &what);
        let replaced = if task.in_place { own.clone() } else { 0..0 };
        step.check_kept::<S, D>(me, &sums[..step.elements()], &replaced, &what);
        let written = if task.in_place { 0 } else { own.len() };
        assert!(d[written..].iter().all(|d| d.widen().is_nan()), "{what}: beyond the end of D");
        assert!(
            sums[step.elements()..].iter().all(|sum| sum.widen().is_nan()),
            "{what}: behind sums"
        );
        got
    }
}

/// Steps of one operation; the ranks of an all-reduce have the same bits in the end.
fn play<const ALL: bool, S: Number, D: Number>(task: &Task, course: Course) {
    let ends = on_ranks(task.rows.len() as u32, |rank| {
        let mut layer = task.plan::<ALL, S, D>(&rank).unwrap();
        let (stream, mut delays) = (&rank.gpu.stream, Random::of_stream(5, rank.rank().into()));
        let fewer = task.rows.iter().rev().map(|rows| rows - rows / 3).collect();
        let shapes: [Vec<u32>; 2] = [task.rows.clone(), fewer];
        let mut works: Vec<Work<S, D>> = (0..12).map(|_| Work::new(task, &rank)).collect();
        let step = |work: &mut Work<S, D>, layer: &mut _, number| {
            let rows = &shapes[number as usize % 2];
            work.renew(task, &rank, number, rows);
            work.enqueue::<ALL>(task, &rank, layer, rows).unwrap();
            Reduce::<ALL, false>::synchronize(layer, stream).unwrap();
            work.check::<ALL>(task, &rank, rows)
        };
        let mut last = step(&mut works[0], &mut layer, 0);
        match course {
            Course::Awaited => (1..6).for_each(|at| last = step(&mut works[0], &mut layer, at)),
            Course::Drifting => {
                for (number, work) in (1..).zip(&mut works) {
                    work.renew(task, &rank, number, &shapes[0]);
                }
                for work in &works {
                    if delays.within(0..=3) == 0 {
                        std::thread::sleep(Duration::from_micros(delays.within(0..=1000)));
                    }
                    work.enqueue::<ALL>(task, &rank, &mut layer, &shapes[0]).unwrap();
                }
                layer.synchronize(stream).unwrap();
                for work in &works {
                    last = work.check::<ALL>(task, &rank, &shapes[0]);
                }
            }
            Course::Replayed => {
                let graphs = [0, 1].map(|shape| {
                    captured(stream, false, || {
                        for work in &works[..=shape] {
                            work.enqueue::<ALL>(task, &rank, &mut layer, &shapes[shape]).unwrap();
                        }
                    })
                });
                // The same on all ranks.
                let mut random = Random::new(71);
                for replay in 0..30 {
                    let shape = random.within(0..=1) as usize;
                    for (nth, work) in (0..).zip(&mut works[..=shape]) {
                        work.renew(task, &rank, 10 + 2 * replay + nth, &shapes[shape]);
                    }
                    graphs[shape].launch().unwrap();
                    layer.synchronize(stream).unwrap();
                    for work in &works[..=shape] {
                        work.check::<ALL>(task, &rank, &shapes[shape]);
                    }
                }
                last = step(&mut works[0], &mut layer, 1);
            }
        }
        rank.through();
        last
    });
    assert!(!ALL || ends.iter().all(|bits| *bits == ends[0]), "{task:?}: ranks differ");
}

/// Both operations, by each engine, with these rows, in the types that there are.
fn play_all(rows: &[u32], course: Course) {
    for engine in ENGINES {
        for [average, in_place] in [[false, false], [true, true], [false, true]] {
            let options = options(engine).with_pieces(3);
            let task = Task { rows: rows.to_vec(), average, in_place, options };
            play::<false, bf16, bf16>(&task, course);
            play::<true, bf16, bf16>(&task, course);
            play::<false, f32, f32>(&task, course);
            play::<true, f32, f32>(&task, course);
            if !in_place {
                play::<false, f32, f16>(&task, course);
                play::<true, f32, bf16>(&task, course);
                play::<false, bf16, f32>(&task, course);
            }
        }
        println!("{rows:?}, {engine}, {course:?}: right");
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn totals_of_varying_rows_are_right() {
    [&[50, 0, 33, 64][..], &[7], &[3, 200]].into_iter().for_each(|rows| {
        play_all(rows, Course::Awaited);
    });
}

/// A rank without rows waits for nobody's sums, and runs ahead of the owner of all rows.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn steps_that_nobody_waits_for_are_right() {
    [&[0, 400][..], &[90, 0, 130]].into_iter().for_each(|rows| play_all(rows, Course::Drifting));
}

/// An all-reduce by a kernel has two shots of many rows, and one of the fewer rows of every second step.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn totals_that_a_kernel_sends_are_right() {
    let task = |rows: &[u32], average, in_place| {
        let options = options(ENGINES[2]);
        Task { rows: rows.to_vec(), average, in_place, options }
    };
    for rows in [&[2500, 0, 4500][..], &[1000, 3000, 3000]] {
        let has_two_shots = |rows: &[u32]| {
            let options = PlanOptions { operation: Operation::AllReduce, ..PlanOptions::new() };
            let options = options.with_strategy(Strategy::Sequential).with_engine(ENGINES[2]);
            Plan::new(&step_of(0, rows).problem::<bf16>(), options).unwrap().has_two_shots()
        };
        let fewer: Vec<u32> = rows.iter().map(|rows| rows - rows / 3).collect();
        assert!(has_two_shots(rows) && !has_two_shots(&fewer));
        play::<true, bf16, bf16>(&task(rows, true, true), Course::Awaited);
        play::<true, f32, f16>(&task(rows, false, false), Course::Awaited);
        play::<true, bf16, bf16>(&task(rows, false, true), Course::Drifting);
        play::<true, f32, bf16>(&task(rows, true, false), Course::Replayed);
    }
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn graphs_replay_with_changing_sums() {
    play_all(&[70, 100], Course::Replayed);
}

#[test]
#[ignore = "needs 1 Hopper GPU"]
fn no_sum_of_a_step_without_a_rank_passes_for_a_total() {
    for engine in ENGINES {
        let options = options(engine).with_poison(false);
        let options = options.with_timeouts(PATIENCE, Duration::from_secs(1));
        let task = Task { rows: vec![40, 30], average: false, in_place: false, options };
        on_ranks(2, |rank| {
            let mut layer = task.plan::<true, f32, f32>(&rank).unwrap();
            let mut work = Work::<f32, f32>::new(&task, &rank);
            for number in 0..3 {
                work.renew(&task, &rank, number, &task.rows);
                work.enqueue::<true>(&task, &rank, &mut layer, &task.rows).unwrap();
                layer.synchronize(&rank.gpu.stream).unwrap();
            }
            if rank.rank() == 0 {
                work.renew(&task, &rank, 3, &task.rows);
                let step = work.enqueue::<true>(&task, &rank, &mut layer, &task.rows);
                let told = step.and_then(|()| layer.synchronize(&rank.gpu.stream)).unwrap_err();
                assert!(matches!(told, Error::PeerTimeout { peer: 1, .. }), "{told}");
                let d = rank.gpu.download(&work.d);
                assert!(d.iter().all(|d| d.is_nan()), "{engine}: a total of a failed step");
            }
            rank.through();
        });
    }
}

/// What cannot be is refused on all ranks, and the group lives on.
#[test]
#[ignore = "needs 1 Hopper GPU"]
fn wrong_reductions_are_refused() {
    let options = options(Engine::CopyEngines { streams: 1 });
    let task = Task { rows: vec![64, 32], average: false, in_place: true, options };
    on_ranks(2, |rank| {
        let refused = |columns, d, engine| {
            let options = task.options.clone().with_engine(engine);
            let (group, device, sum) = (&rank.group, &rank.gpu.device, Reduction::default());
            let planned = ReduceScatter::plan(group, device, &[64, 32], columns, d, &options, sum);
            planned.unwrap_err().to_string()
        };
        let text = refused(COLUMNS, ElementType::Bf16, Engine::Thread);
        assert!(text.starts_with("moving rows between GPUs by threads"), "{text}");
        let text = refused(12, ElementType::F32, ENGINES[0]);
        assert!(text.contains("multiple of 16"), "{text}");

        let mut layer = task.plan::<false, bf16, bf16>(&rank).unwrap();
        let mut work = Work::<bf16, bf16>::new(&task, &rank);
        work.renew(&task, &rank, 0, &task.rows);
        let stream = &rank.gpu.stream;
        let at = work.sums.device_ptr(stream).0;
        let out = work.d.device_ptr(stream).0;
        for (rows, sums, d, expected) in [
            (&[31, 65][..], at, out, "the rows of one rank in this step is 65"),
            (&[64], at, out, "the number of shards is 1"),
            (&[64, 33], at, out, "m of this step is 97"),
            (&[64, 32], 0, out, "the address of the sums is 0"),
            (&[64, 32], at, 0, "the address of D is 0"),
            (&[64, 32], at, at + 16, "the address of D is"),
        ] {
            // SAFETY: refused before anything is enqueued.
            let error = unsafe { layer.enqueue_raw(stream, Some(rows), sums, d) }.unwrap_err();
            assert!(error.to_string().starts_with(expected), "{error}");
        }
        // None of them has reached the other rank.
        work.enqueue::<false>(&task, &rank, &mut layer, &task.rows).unwrap();
        layer.synchronize(stream).unwrap();
        work.check::<false>(&task, &rank, &task.rows);
        rank.through();
    });
}
