//! Rows of one case beside each other: the fastest of each kind, ratios and the overlap efficiency.
//!
//! Invariant: only rows of one case of one run are compared, round by round, so that drifting clocks cancel. A figure is
//! the list of the rounds' figures, empty where a row has no times. T_gemm is the fastest plain GEMM, whose inputs are
//! there, of any contender, launched alike.

use super::super::wanted::Contender;
use super::{CaseReport, Kind, Row};
use crate::statistics::{median, ratios};

impl Row {
    /// The median of its times, if it has any.
    pub fn median(&self) -> Option<f64> {
        median(&self.rounds_us)
    }

    /// Its time as a multiple of another's, in each round.
    pub fn over(&self, under: &Row) -> Vec<f64> {
        ratios(&self.rounds_us, &under.rounds_us)
    }
}

impl CaseReport {
    /// The fastest row that fits, launched alike.
    fn fastest(&self, graph: bool, fits: impl Fn(&Row) -> bool) -> Option<&Row> {
        let rows = self.rows.iter().filter(|row| row.graph == graph && fits(row));
        let timed = rows.filter_map(|row| Some((row, row.median()?)));
        timed.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(row, _)| row)
    }

    /// The contender of this name; its fastest variant, if it has several. `T_gemm` is the fastest plain GEMM, whose inputs are
    /// there, and `best peer` the fastest of another program that does the whole.
    pub fn named(&self, who: &str, graph: bool) -> Option<&Row> {
        self.fastest(graph, |row| match who {
            "T_gemm" => row.kind == Kind::Gemm,
            "best peer" => row.peer && row.kind.is_whole(),
            who => row.who == who,
        })
    }

    /// The baseline of E, which gathers first, or reduces last: NCCL and cuBLASLt, or, where that is no contender,
    /// `sequential`.
    fn baseline(&self, graph: bool) -> Option<&Row> {
        let nccl = Contender::NcclCublaslt.name();
        let takes_part = self.rows.iter().any(|row| row.who == nccl && row.graph == graph);
        let who = if takes_part { nccl } else { Contender::Sequential.name() };
        self.named(&who, graph)
    }

    /// The overlap efficiency, E = 1 − (T − T_gemm) ÷ (T_baseline − T_gemm): 1 where the transfer costs nothing, 0 where
    /// it costs as much as in the [baseline](CaseReport::baseline). Only of what does the [whole](Kind::is_whole). A round
    /// in which the baseline is faster than T_gemm was disturbed and does not count; most rounds have to.
    pub fn efficiency(&self, row: &Row) -> Vec<f64> {
        let (Some(gemm), Some(baseline)) =
            (self.named("T_gemm", row.graph), self.baseline(row.graph))
        else {
            return Vec::new();
        };
        if !row.kind.is_whole() {
            return Vec::new();
        }
        let rounds = row.rounds_us.iter().zip(&gemm.rounds_us).zip(&baseline.rounds_us);
        let counted = rounds.clone().filter(|((_, gemm), baseline)| baseline > gemm);
        let efficiencies: Vec<f64> = counted
            .map(|((time, gemm), baseline)| 1.0 - (time - gemm) / (baseline - gemm))
            .collect();
        if 2 * efficiencies.len() > rounds.len() { efficiencies } else { Vec::new() }
    }

    /// Operations a second if the GEMM (in an MLP: both together) takes `microseconds`, in units of 10¹².
    pub fn teraflops(&self, microseconds: f64) -> f64 {
        let products = [Some(&self.problem), self.before.as_ref()].into_iter().flatten();
        products.map(|problem| problem.flops() as f64).sum::<f64>() / microseconds * 1e-6
    }

    /// The bytes that a rank receives, rows of A or sums, at `microseconds` a gather or a reduction, in GB/s; of the rank
    /// that has the fewest rows, and so gets the most of A, or sends the most sums. Of an all-reduce: the bytes of all rows of
    /// D.
    pub fn gigabytes(&self, kind: Kind, microseconds: f64) -> f64 {
        let (problem, types) = (&self.problem, self.problem.elements());
        let shards = problem.shards();
        let of = |rank| shards.rows(rank).len() as u64;
        let fewest = (0..shards.ranks()).map(of).min().unwrap_or(0);
        let rows = u64::from(problem.m()) - if kind == Kind::AllReduce { 0 } else { fewest };
        let (columns, element) = match kind {
            Kind::ReduceScatter | Kind::AllReduce => (problem.n(), types.d),
            _ => (problem.k(), types.a),
        };
        let row = u64::from(columns) * u64::from(element.size());
        (rows * row) as f64 / microseconds * 1e-3
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{reduced_case, usual_case};
    use super::*;

    #[test]
    fn rows_are_compared_with_the_fastest_of_each_kind() {
        let mut case = usual_case(1024);
        let close = |rounds: Vec<f64>, value: f64| {
            let middle = median(&rounds).expect("a figure");
            assert!((middle - value).abs() < 1e-9, "{rounds:?} is not {value}");
        };
        let of = |case: &CaseReport, who: &str| {
            case.rows.iter().find(|row| row.who == who).unwrap().clone()
        };
        assert_eq!(case.named("T_gemm", true).unwrap().who, "cublaslt");
        assert_eq!(case.named("best peer", true).unwrap().who, "torch-fused", "another is wrong");
        assert!(case.named("T_gemm", false).is_none(), "launched otherwise");
        let fused = of(&case, "fused");
        close(fused.over(case.named("T_gemm", true).unwrap()), 1.05);
        close(case.efficiency(&fused), 0.9);
        close(case.efficiency(case.named("nccl-cublaslt", true).unwrap()), 0.0);
        for none in ["own", "torch-native"] {
            assert!(case.efficiency(&of(&case, none)).is_empty(), "{none}");
        }
        assert_eq!(case.gigabytes(Kind::AllGather, 1.0), 512.0 * 8192.0 * 2.0 * 1e-3);
        assert_eq!(case.gigabytes(Kind::ReduceScatter, 1.0), 512.0 * 3584.0 * 2.0 * 1e-3);
        assert_eq!(case.gigabytes(Kind::AllReduce, 1.0), 1024.0 * 3584.0 * 2.0 * 1e-3);
        for (disturbed, counted) in [(1, 2), (2, 0)] {
            let mut case = case.clone();
            let gemms = case.rows.iter_mut().filter(|row| row.kind == Kind::Gemm);
            gemms.for_each(|row| row.rounds_us[..disturbed].fill(500.0));
            assert_eq!(case.efficiency(&fused).len(), counted, "{disturbed} of 3 are disturbed");
        }
        case.rows.retain(|row| row.who != "nccl-cublaslt");
        assert!(case.efficiency(&fused).is_empty(), "no baseline");
        case.rows.push(Row { who: "sequential".into(), ..of(&case, "torch-fused") });
        close(case.efficiency(&fused), 1.0 - 5.0 / 30.0);
    }
    #[test]
    fn reductions_are_compared_like_gathers() {
        let (gathered, reduced) = (usual_case(1024), reduced_case(1024));
        let peer = reduced.named("best peer", true).unwrap();
        assert_eq!((peer.who.as_str(), peer.kind), ("torch-fused", Kind::GemmReduceScatter));
        for (one, other) in gathered.rows.iter().zip(&reduced.rows) {
            assert_eq!(gathered.efficiency(one), reduced.efficiency(other), "{}", one.who);
        }
        let nccl = reduced.rows.iter().find(|row| row.kind == Kind::ReduceScatter).unwrap();
        assert!(reduced.efficiency(nccl).is_empty(), "it does not multiply");
    }
}
