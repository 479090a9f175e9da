//! Whether a contender computes what it is timed for.
//!
//! Two looks at every result: all of D for NaNs (D is poisoned before, so a tile that nobody computed
//! shows), and results spread over all of D against the f64 reference. Invariant: the bound is the
//! reference's own, and since that covers the worst inputs, the error on these must be small as well.

use overlap_gemm::element::{Element, F8E4M3, F8E5M2, bf16, f16};
use overlap_gemm::plan::{BLayout, ElementTypes, Problem, Scaling};
use overlap_gemm::random::Random;
use overlap_gemm::reference::{Accumulation, Reference, Report};
use overlap_gemm::{ElementType, Error, Result};

use super::driver::Gpu;
use super::inputs::{InMemory, Inputs, Pools};

/// Rows and columns that are compared: each row meets each column.
const LINES: u32 = 32;

/// The largest error in norm, but for fp8 with fast accumulation ([`fast_allowance`]): rounding D to
/// bf16 costs a fifth of it.
const MOST_RELATIVE_ERROR: f64 = 1e-2;

/// What is compared in one case.
pub struct Check<'a> {
    pools: &'a Pools,
    problem: &'a Problem,
    fast_accumulation: bool,
    rows: Vec<u32>,
    columns: Vec<u32>,
    /// The set that is looked at: the last, since a mistake may well hide in the first.
    pub set: usize,
}

impl<'a> Check<'a> {
    /// Draws rows and columns, one from each of equal parts, so that no region is left out.
    pub fn new(
        pools: &'a Pools,
        problem: &'a Problem,
        inputs: &Inputs,
        fast_accumulation: bool,
        seed: u64,
    ) -> Self {
        let mut random = Random::of_stream(seed, 3);
        let rows = spread(problem.m(), &mut random);
        let columns = spread(problem.n(), &mut random);
        let set = inputs.sets.len().saturating_sub(1);
        Check { pools, problem, fast_accumulation, rows, columns, set }
    }

    /// Poisons D, lets `enqueue` compute it, and looks at it: what is wrong, if anything is.
    pub fn run(
        &self,
        gpu: &Gpu,
        inputs: &Inputs,
        enqueue: impl FnOnce(usize) -> Result<()>,
    ) -> Result<Result<(), String>> {
        let d = &inputs.sets[self.set].d;
        gpu.poison(d)?;
        enqueue(self.set)?;
        let mut bytes = vec![0; d.bytes as usize];
        gpu.download(d, &mut bytes)?;
        self.compare(inputs, &bytes)
    }

    fn compare(&self, inputs: &Inputs, d: &[u8]) -> Result<Result<(), String>> {
        use ElementType::*;
        let ElementTypes { a, b, d: out } = self.problem.elements();
        match (a, b, out) {
            (Bf16, Bf16, Bf16) => self.judge::<bf16, bf16, bf16>(inputs, d),
            (Bf16, Bf16, F16) => self.judge::<bf16, bf16, f16>(inputs, d),
            (Bf16, Bf16, F32) => self.judge::<bf16, bf16, f32>(inputs, d),
            (F16, F16, Bf16) => self.judge::<f16, f16, bf16>(inputs, d),
            (F16, F16, F16) => self.judge::<f16, f16, f16>(inputs, d),
            (F16, F16, F32) => self.judge::<f16, f16, f32>(inputs, d),
            (F32, F32, F32) => self.judge::<f32, f32, f32>(inputs, d),
            (E4m3, E4m3, Bf16) => self.judge::<F8E4M3, F8E4M3, bf16>(inputs, d),
            (E4m3, E4m3, F16) => self.judge::<F8E4M3, F8E4M3, f16>(inputs, d),
            (E4m3, E5m2, Bf16) => self.judge::<F8E4M3, F8E5M2, bf16>(inputs, d),
            (E4m3, E5m2, F16) => self.judge::<F8E4M3, F8E5M2, f16>(inputs, d),
            (E5m2, E4m3, Bf16) => self.judge::<F8E5M2, F8E4M3, bf16>(inputs, d),
            (E5m2, E4m3, F16) => self.judge::<F8E5M2, F8E4M3, f16>(inputs, d),
            // No `Problem` has such types.
            _ => Err(Error::Unsupported {
                what: format!("checking {a} × {b} → {out}"),
                why: "no reference is written down for it".into(),
                remedy: "use --no-check",
            }),
        }
    }

    fn judge<A: Element, B: Element, D: InMemory>(
        &self,
        inputs: &Inputs,
        d: &[u8],
    ) -> Result<Result<(), String>> {
        let Check { pools, problem, rows, columns, .. } = self;
        let (n, size) = (problem.n() as usize, D::TYPE.size() as usize);
        let hole = d.chunks_exact(size).position(|bytes| D::get(bytes).widen().is_nan());
        if let Some(place) = hole {
            let (row, column) = (place / n, place % n);
            let why = format!("D[{row}, {column}] is NaN: nobody wrote it, or it came out wrong");
            return Ok(Err(why));
        }
        let set = &inputs.sets[self.set];
        let a = pools.rows_of_a::<A>(problem, set, rows);
        let b = pools.columns_of_b::<B>(problem, set, columns);
        let got: Vec<D> = rows
            .iter()
            .flat_map(|&row| columns.iter().map(move |&column| row as usize * n + column as usize))
            .map(|place| D::get(&d[place * size..(place + 1) * size]))
            .collect();
        let pick = |scales: &[f32], lines: &[u32]| -> Vec<f32> {
            match problem.scaling() {
                Scaling::Rows => lines.iter().map(|&line| scales[line as usize]).collect(),
                _ => scales.to_vec(),
            }
        };
        let scales = [pick(&inputs.scales[0], rows), pick(&inputs.scales[1], columns)];
        let types = problem.elements();
        let sampled = Problem::builder(rows.len() as u64, columns.len() as u64, problem.k().into())
            .elements(types.a, types.b, types.d)
            .b_layout(BLayout::Nk)
            .scaling(problem.scaling())
            .build()?;
        let fast = types.a.is_fp8() && self.fast_accumulation;
        let accumulation = match (types.a.is_fp8(), self.fast_accumulation) {
            (false, _) => Accumulation::F32,
            (true, true) => Accumulation::Fp8,
            (true, false) => Accumulation::Fp8Promoted,
        };
        let reference = Reference::new(&sampled, &a, &b, &scales[0], &scales[1])?
            .with_accumulation(accumulation);
        let report = reference.compare(&got, 0..rows.len() as u32)?;
        let allowed = fast.then(|| fast_allowance(problem.k(), &got));
        Ok(verdict(&report, allowed, |row, column| (rows[row as usize], columns[column as usize])))
    }
}

/// How far an fp8 sum of random inputs may be off with fast accumulation, which cuts it to 13 fractional
/// bits every 32 products: on the way it seldom exceeds three times what sums come to. Then D is
/// rounded. (The reference's bound allows for the worst inputs: more than the sums themselves.)
fn fast_allowance<D: Element>(k: u32, sums: &[D]) -> f64 {
    let values = || sums.iter().map(|sum| f64::from(sum.widen()));
    let root_mean_square =
        (values().map(|value| value * value).sum::<f64>() / sums.len().max(1) as f64).sqrt();
    let largest = values().map(f64::abs).fold(0.0, f64::max);
    let cuts = f64::from(k.div_ceil(32)) * 2f64.powi(-13);
    3.0 * root_mean_square * cuts + 2.0 * D::TYPE.unit_roundoff() * largest
}

/// What a comparison of some rows with some columns says; the largest error may be as large as is
/// `allowed`, or if nothing is said, the error in norm must be small. `place` tells where they are in D.
fn verdict(
    report: &Report,
    allowed: Option<f64>,
    place: impl Fn(u32, u32) -> (u32, u32),
) -> Result<(), String> {
    let Report { compared, max_error, relative_error, .. } = *report;
    if let Some(wrong) = report.first_wrong {
        let (row, column) = place(wrong.row, wrong.column);
        return Err(format!(
            "{} of {compared} results are wrong; D[{row}, {column}] is {}, should be {} ± {:.1e}",
            report.wrong, wrong.got, wrong.expected, wrong.bound
        ));
    }
    // A NaN compares as no less, so it fails.
    let (what, error, most) = match allowed {
        Some(allowed) => ("the largest error", max_error, allowed),
        None => ("the error in norm", relative_error, MOST_RELATIVE_ERROR),
    };
    let small = error <= most;
    if !small {
        return Err(format!("{what} is {error:.1e} over {compared} results, more than {most:.1e}"));
    }
    Ok(())
}

/// One of each of up to [`LINES`] equal parts of `0..len`.
fn spread(len: u32, random: &mut Random) -> Vec<u32> {
    let parts = u64::from(len.min(LINES));
    let place = |part: u64| part * u64::from(len) / parts;
    (0..parts).map(|part| random.within(place(part)..=place(part + 1) - 1) as u32).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_spread_over_the_whole() {
        let mut random = Random::new(1);
        assert_eq!(spread(1, &mut random), [0]);
        assert_eq!(spread(32, &mut random), (0..32).collect::<Vec<_>>());
        for len in [33, 100, 3584] {
            let lines = spread(len, &mut random);
            assert!(lines.is_sorted_by(|one, next| one < next) && lines.len() == 32, "{lines:?}");
            assert!(lines[31] < len && lines[31] >= len - len.div_ceil(32), "{lines:?}");
        }
    }

    #[test]
    fn one_wrong_result_is_enough() {
        let problem = Problem::builder(2, 2, 1).build().unwrap();
        let (a, b) = ([1.0, 2.0].map(bf16::from_f32), [3.0, 4.0].map(bf16::from_f32));
        let reference = Reference::new(&problem, &a, &b, &[], &[]).unwrap();
        let judge = |d: [f32; 4], allowed| {
            let report = reference.compare(&d.map(bf16::from_f32), 0..2).unwrap();
            verdict(&report, allowed, |row, column| (10 * row, 100 * column))
        };
        assert_eq!(judge([3.0, 4.0, 6.0, 8.0], None), Ok(()));
        let why = judge([3.0, 4.0, 6.0, 8.5], None).unwrap_err();
        assert!(why.contains("1 of 4") && why.contains("D[10, 100] is 8.5"), "{why}");
        assert!(judge([3.0, 4.0, 6.0, f32::NAN], None).is_err());
        // Within its bound, an error may still be larger than it should be.
        let report =
            Report { compared: 4, max_error: 0.5, relative_error: 0.1, ..Report::default() };
        let judge = |allowed| verdict(&report, allowed, |row, column| (row, column));
        assert!(judge(None).unwrap_err().contains("in norm is 1.0e-1 over 4 results"));
        assert!(judge(Some(0.4)).unwrap_err().contains("largest error is 5.0e-1"));
        assert!(judge(Some(0.5)).is_ok());
        let unknown = Report { max_error: f64::NAN, ..report };
        assert!(verdict(&unknown, Some(0.5), |row, column| (row, column)).is_err());
    }

    #[test]
    fn fast_sums_may_be_off_by_less_than_what_they_are() {
        let sums: Vec<bf16> = (0..1000).map(|i| bf16::from_f32((i % 7) as f32 - 3.0)).collect();
        let allowed = fast_allowance(8192, &sums);
        assert!((0.1..0.5).contains(&allowed), "{allowed}: the sums' root mean square is 2");
    }
}
