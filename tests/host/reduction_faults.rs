//! Reductions on threads, with and without a product: what is refused, and ranks that are late, leave or abort.

use std::time::Duration;

use overlap_gemm::Error;
use overlap_gemm::element::bf16;
use overlap_gemm::host::{
    Aborter, AllReduce, GemmAllReduce, GemmReduce, GemmReduceScatter, Group, Product, Rank, Reduce,
    ReduceScatter, Shard, Stream,
};
use overlap_gemm::plan::{Epilogue, PlanOptions, Problem, Reduction, Strategy};

use crate::patient;
use crate::threads::on_threads;

fn plan(rank: &Rank, problem: &Problem) -> GemmReduceScatter<bf16> {
    GemmReduceScatter::plan(rank, problem, PlanOptions::new(), Reduction::default()).unwrap()
}

#[test]
fn what_does_not_fit_is_refused_and_nothing_is_sent() {
    let (ranks, stream) = (Group::local(1).unwrap(), Stream::new(1).unwrap());
    let mut layer = plan(&ranks[0], &Problem::builder(8, 4, 16).build().unwrap());
    let (a, b) = (vec![bf16::ONE; 8 * 16], vec![bf16::ONE; 4 * 16]);
    let mut d = vec![bf16::ZERO; 8 * 4];
    let mut refused = |a: Shard<'_, bf16>, b: &[bf16], d: &mut [bf16], words: &str| {
        let text = layer.enqueue(&stream, a, b, d).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    };
    refused(Shard::at(&a[1..]), &b, &mut d, "the length of A is 127");
    refused(Shard::at(&a), &b[1..], &mut d, "the length of B is 63");
    refused(Shard::at(&a), &b, &mut d[1..], "the length of D is 31");
    refused(Shard::at(&a).scales(&[1.0]), &b, &mut d, "the number of the scales of A");
    refused(Shard::in_place(), &b, &mut d, "pass the rows with Shard::at");
    refused(Shard::at(&a).rows(&[9]), &b, &mut d, "m of this step is 9");
    let ones = [bf16::ONE; 8 * 4];
    let refusals = [
        (Epilogue { c: Some(&ones[1..]), ..Epilogue::default() }, "the length of C is 31"),
        (Epilogue { bias: Some(&ones[..5]), ..Epilogue::default() }, "the length of the bias is 5"),
        (Epilogue { alpha: f32::NAN, ..Epilogue::default() }, "alpha is NaN"),
        (Epilogue { beta: f32::INFINITY, ..Epilogue::default() }, "beta is inf"),
    ];
    for (epilogue, words) in refusals {
        let mut product = [Product::new(&b, &mut d).epilogue(epilogue)];
        let text = layer.enqueue_all(&stream, &a, &mut product).unwrap_err().to_string();
        assert!(text.contains(words), "{text}");
    }
    let mut wide = [bf16::ZERO; 8 * 5];
    let five = [bf16::ONE; 5 * 16];
    let mut product = [Product::new(&five, &mut wide).n(5)];
    let text = layer.enqueue_all(&stream, &a, &mut product).unwrap_err().to_string();
    assert!(text.contains("the columns of all products together is 5"), "{text}");
    // None of them ended the operation.
    layer.enqueue(&stream, &a, &b, &mut d).unwrap();
    assert!(d.iter().all(|d| d.to_f32() == 16.0));
}

#[test]
fn a_rank_gets_no_more_rows_than_were_planned_for_any() {
    let problem = Problem::builder(8, 4, 16).ranks(2).build().unwrap();
    let ranks = Group::local(2).unwrap();
    let mut layer = plan(&ranks[0], &problem);
    let (a, b, mut d) = ([bf16::ONE; 96], [bf16::ONE; 64], [bf16::ZERO; 20]);
    let shard = Shard::at(&a).rows(&[5, 1]);
    let error = layer.enqueue(&Stream::new(1).unwrap(), shard, &b, &mut d).unwrap_err();
    let words = "the rows that one rank gets in this step is 5, but must be between 0 and 4";
    assert!(error.to_string().starts_with(words), "{error}");
    // The other rank plans another reduction.
    let (options, average) =
        (PlanOptions::new(), Reduction { average: true, ..Reduction::default() });
    let error = GemmReduceScatter::<bf16>::plan(&ranks[1], &problem, options, average).unwrap_err();
    assert!(error.to_string().starts_with("the reduction is"), "{error}");
}

#[test]
fn ranks_that_give_other_products_are_refused_before_anything_is_sent() {
    let ranks = Group::local(2).unwrap();
    let problem = Problem::builder(8, 8, 16).ranks(2).build().unwrap();
    let results = on_threads(ranks.iter().zip([[4, 4], [2, 6]]), |(rank, columns)| {
        let mut layer = plan(rank, &problem);
        let a = vec![bf16::ONE; 8 * 16];
        let b = columns.map(|n: u64| vec![bf16::ONE; n as usize * 16]);
        let mut d = columns.map(|n| vec![bf16::ONE; 4 * n as usize]);
        let mut products: Vec<_> = (d.iter_mut().zip(&b).zip(columns))
            .map(|((d, b), n)| Product::new(b, d).n(n))
            .collect();
        let result = layer.enqueue_all(&Stream::new(1).unwrap(), &a, &mut products);
        assert!(d.concat().iter().all(|d| d.is_nan()));
        result.unwrap_err().to_string()
    });
    // Whoever comes second says so, and the other hears of it.
    let words = "the columns of the products that rank";
    assert!(results.iter().all(|text| text.contains(words)), "{results:?}");
}

/// One rank's reduction in a small world, its inputs ones.
trait Layer: Sized + Send + 'static {
    /// Every rank gets all rows.
    const ALL: bool;
    fn plan(rank: &Rank, rows: &[u32], options: PlanOptions) -> Self;
    fn step(&mut self, d: &mut [bf16]) -> Result<(), Error>;
    fn aborter(&self) -> Aborter;
}

impl<const ALL_ROWS: bool> Layer for GemmReduce<ALL_ROWS, bf16> {
    const ALL: bool = ALL_ROWS;

    fn plan(rank: &Rank, rows: &[u32], options: PlanOptions) -> Self {
        let problem = Problem::builder(16, 4, 8).shards(rows).build().unwrap();
        GemmReduce::plan(rank, &problem, options, Reduction::default()).unwrap()
    }

    fn step(&mut self, d: &mut [bf16]) -> Result<(), Error> {
        let (a, b) = ([bf16::ONE; 16 * 8], [bf16::ONE; 4 * 8]);
        self.enqueue(&Stream::new(1).unwrap(), &a[..], &b, d)
    }

    fn aborter(&self) -> Aborter {
        self.aborter()
    }
}

impl<const ALL_ROWS: bool> Layer for Reduce<ALL_ROWS, bf16> {
    const ALL: bool = ALL_ROWS;

    fn plan(rank: &Rank, rows: &[u32], options: PlanOptions) -> Self {
        Reduce::plan(rank, rows, 4, options, Reduction::default()).unwrap()
    }

    fn step(&mut self, d: &mut [bf16]) -> Result<(), Error> {
        self.enqueue(&Stream::new(1).unwrap(), None, &[bf16::ONE; 16 * 4], d)
    }

    fn aborter(&self) -> Aborter {
        self.aborter()
    }
}

/// Ranks of `rows` rows, and D of rank 0.
fn of_two<L: Layer>(
    limit: Duration,
    (strategy, rows): (Strategy, [u32; 2]),
) -> ([L; 2], Vec<bf16>) {
    let ranks = Group::local_with(2, patient(limit)).unwrap();
    let plan = |rank| L::plan(rank, &rows, PlanOptions::new().with_strategy(strategy));
    let d = vec![bf16::ONE; if L::ALL { 16 } else { rows[0] as usize } * 4];
    ([plan(&ranks[0]), plan(&ranks[1])], d)
}

fn a_late_rank_is_named<L: Layer>(way: (Strategy, [u32; 2])) {
    let ([mut here, _late], mut d) = of_two::<L>(Duration::from_millis(200), way);
    let error = here.step(&mut d).unwrap_err();
    assert!(matches!(error, Error::PeerTimeout { rank: 0, peer: 1, .. }), "{error:?}");
    assert!(error.to_string().contains("the sums or total of chunk 0"), "{error}");
    assert!(d.iter().all(|d| d.is_nan()), "{way:?}");
    assert!(matches!(here.step(&mut d), Err(Error::Over { .. })));
}

fn whoever_leaves_or_aborts_ends_the_step<L: Layer>(way: (Strategy, [u32; 2])) {
    let ([mut here, gone], mut d) = of_two::<L>(Duration::from_secs(60), way);
    drop(gone);
    let error = here.step(&mut d).unwrap_err();
    assert!(matches!(error, Error::PeerLost { rank: 0, peer: 1, .. }), "{error:?}");
    assert!(d.iter().all(|d| d.is_nan()), "{way:?}");

    let ([mut here, there], mut d) = of_two::<L>(Duration::from_secs(60), way);
    let waiting = std::thread::spawn(move || (here.step(&mut d), d));
    there.aborter().abort("enough");
    let (result, d) = waiting.join().unwrap();
    let error = result.unwrap_err();
    assert!(error.to_string().contains("enough"), "{error}");
    assert!(d.iter().all(|d| d.is_nan()), "{way:?}");
}

#[test]
fn a_late_rank_is_named_and_no_partial_sum_passes_for_a_result() {
    a_late_rank_is_named::<GemmReduceScatter<bf16>>((Strategy::Fused, [8, 8]));
    a_late_rank_is_named::<ReduceScatter<bf16>>((Strategy::Fused, [8, 8]));
    // In one shot, in two, and a rank that waits for totals alone.
    a_late_rank_is_named::<GemmAllReduce<bf16>>((Strategy::Sequential, [8, 8]));
    a_late_rank_is_named::<GemmAllReduce<bf16>>((Strategy::Fused, [8, 8]));
    a_late_rank_is_named::<GemmAllReduce<bf16>>((Strategy::Fused, [0, 16]));
    a_late_rank_is_named::<AllReduce<bf16>>((Strategy::Fused, [8, 8]));
    a_late_rank_is_named::<AllReduce<bf16>>((Strategy::Fused, [0, 16]));
}

#[test]
fn a_rank_that_leaves_or_aborts_ends_the_step_of_the_others() {
    whoever_leaves_or_aborts_ends_the_step::<GemmReduceScatter<bf16>>((Strategy::Fused, [8, 8]));
    whoever_leaves_or_aborts_ends_the_step::<ReduceScatter<bf16>>((Strategy::Fused, [8, 8]));
    whoever_leaves_or_aborts_ends_the_step::<GemmAllReduce<bf16>>((Strategy::Sequential, [8, 8]));
    whoever_leaves_or_aborts_ends_the_step::<GemmAllReduce<bf16>>((Strategy::Fused, [8, 8]));
    whoever_leaves_or_aborts_ends_the_step::<GemmAllReduce<bf16>>((Strategy::Fused, [0, 16]));
    whoever_leaves_or_aborts_ends_the_step::<AllReduce<bf16>>((Strategy::Fused, [8, 8]));
    whoever_leaves_or_aborts_ends_the_step::<AllReduce<bf16>>((Strategy::Fused, [0, 16]));
}
