//! Rows beside each other: which belong together, and how one compares with another.
//!
//! Invariant: only what ran on one [`Setup`] is compared. T_gemm is the fastest plain GEMM with A already
//! gathered, whoever's, launched alike; so is the peer that others are compared with. Ratios within a run are of rounds, so
//! that what drifts cancels, and so is the overlap efficiency; across runs nothing but the medians can be
//! compared, and that is said ([`Figure::paired`]).

use std::fmt;

use overlap_gemm::plan::Problem;

use super::super::statistics::{Summary, ratios};
use super::super::wanted::Gatherer;
use super::{CaseReport, Kind, Row, Run};

/// What has to be alike for times to be comparable.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Setup<'a> {
    pub ranks: u32,
    pub gpu: &'a str,
    sm_count: u32,
    /// `None`: nobody said, and it fits any.
    driver: Option<&'a str>,
}

impl<'a> Setup<'a> {
    /// That of a run.
    pub fn of(run: &'a Run) -> Setup<'a> {
        let machine = &run.machine;
        Setup {
            ranks: run.ranks,
            gpu: &machine.gpu,
            sm_count: machine.sm_count,
            driver: machine.driver.as_deref(),
        }
    }

    /// What keeps times of the other from being compared with these.
    pub fn differs(&self, other: &Setup<'_>) -> Option<String> {
        if self.ranks != other.ranks {
            return Some(format!("{} ranks, not {}", other.ranks, self.ranks));
        }
        if (self.gpu, self.sm_count) != (other.gpu, other.sm_count) {
            return Some(format!("{}, not {}", other.with_sms(), self.with_sms()));
        }
        match (self.driver, other.driver) {
            (Some(this), Some(that)) if this != that => Some(format!("driver {that}, not {this}")),
            _ => None,
        }
    }

    /// How many of which.
    pub fn place(&self) -> String {
        match self.gpu.strip_prefix("rank on threads") {
            Some(which) => format!("{} ranks on threads{which}", self.ranks),
            None => format!("{} × {}", self.ranks, self.gpu),
        }
    }

    /// Threads have no SMs; what they differ by is in their names.
    fn with_sms(&self) -> String {
        match self.sm_count {
            0 => self.gpu.to_owned(),
            sms => format!("{} with {sms} SMs", self.gpu),
        }
    }
}

impl fmt::Display for Setup<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.place())?;
        self.driver.map_or(Ok(()), |driver| write!(f, ", driver {driver}"))
    }
}

/// Several runs, their cases side by side.
pub struct Comparison<'a> {
    pub runs: &'a [Run],
    /// All that differ, in the order of their first runs.
    pub setups: Vec<Setup<'a>>,
    /// By problem and setup, in the order in which they first appear.
    pub cases: Vec<Compared<'a>>,
}

/// All rows of one problem on one setup.
pub struct Compared<'a> {
    pub name: &'a str,
    pub problem: &'a Problem,
    /// The place in [`Comparison::setups`].
    pub setup: usize,
    pub entries: Vec<Entry<'a>>,
}

/// A row, and the run that it is of.
#[derive(Clone)]
pub struct Entry<'a> {
    pub run: usize,
    pub row: &'a Row,
    /// Of its times; `None` if it failed.
    pub times: Option<Summary>,
    /// As it is called beside the others: with the number of its run, where others have the same name.
    pub label: String,
}

/// A number that compares rows.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub value: f64,
    /// Whether the rows are of one run, and so of the same rounds.
    pub paired: bool,
    /// The least and the largest of the rounds' figures, where that is what it is the median of.
    pub range: Option<(f64, f64)>,
}

impl Figure {
    /// The median of the rounds' figures.
    pub fn of_rounds(rounds: &[f64]) -> Option<Figure> {
        let Summary { median, min, max, .. } = Summary::of(rounds)?;
        Some(Figure { value: median, paired: true, range: Some((min, max)) })
    }
}

impl<'a> Comparison<'a> {
    /// Of all runs.
    pub fn of(runs: &'a [Run]) -> Comparison<'a> {
        let mut setups: Vec<Setup<'a>> = Vec::new();
        let mut cases: Vec<Compared<'a>> = Vec::new();
        for (nth, run) in runs.iter().enumerate() {
            let own = Setup::of(run);
            let known = setups.iter().position(|setup| setup.differs(&own).is_none());
            let setup = known.unwrap_or_else(|| {
                setups.push(own);
                setups.len() - 1
            });
            // Whose driver is known says more than one that fits any.
            setups[setup].driver = setups[setup].driver.or(own.driver);
            for case in &run.cases {
                let entries = case.rows.iter().map(|row| Entry::of(nth, row));
                let same =
                    |other: &&mut Compared<'_>| other.name == case.name && other.setup == setup;
                match cases.iter_mut().find(same) {
                    Some(compared) => compared.entries.extend(entries),
                    None => {
                        let (name, problem) = (case.name.as_str(), &case.problem);
                        cases.push(Compared { name, problem, setup, entries: entries.collect() });
                    }
                }
            }
        }
        let ambiguous = ambiguous(&cases);
        for entry in cases.iter_mut().flat_map(|case| &mut case.entries) {
            if ambiguous.contains(&entry.label) {
                entry.label = format!("{} [{}]", entry.label, entry.run + 1);
            }
        }
        Comparison { runs, setups, cases }
    }
}

impl Comparison<'_> {
    /// The first run that cannot be compared with the first, and why.
    pub fn stranger(&self) -> Option<(usize, String)> {
        let first = self.setups.first()?;
        let why = |(nth, run)| Some((nth, first.differs(&Setup::of(run))?));
        self.runs.iter().enumerate().find_map(why)
    }

    /// How everybody is called, in the order in which they first appear.
    pub fn labels(&self) -> Vec<&str> {
        let mut labels: Vec<&str> = Vec::new();
        for entry in self.cases.iter().flat_map(|case| &case.entries) {
            if !labels.contains(&entry.label.as_str()) {
                labels.push(&entry.label);
            }
        }
        labels
    }

    /// Whose the other programs are, as far as their names say it.
    pub fn peers(&self) -> &'static str {
        let mut entries = self.cases.iter().flat_map(|case| &case.entries);
        match entries.all(|entry| !entry.row.peer || entry.row.who.starts_with("torch-")) {
            true => "PyTorch",
            false => "peer",
        }
    }
}

/// The names that several runs have in one case.
fn ambiguous(cases: &[Compared<'_>]) -> Vec<String> {
    let mut names = Vec::new();
    for case in cases {
        for entry in &case.entries {
            let others = case.entries.iter().filter(|other| other.run != entry.run);
            let mut clashes = others.filter(|other| other.row.who == entry.row.who);
            if clashes.next().is_some() && !names.contains(&entry.label) {
                names.push(entry.label.clone());
            }
        }
    }
    names
}

impl<'a> Entry<'a> {
    fn of(run: usize, row: &'a Row) -> Entry<'a> {
        Entry { run, row, times: Summary::of(&row.rounds_us), label: row.who.clone() }
    }

    /// The middle of its times.
    pub fn median(&self) -> Option<f64> {
        self.times.map(|times| times.median)
    }

    /// How long it takes, as a multiple of another.
    pub fn over(&self, under: &Entry<'_>) -> Option<Figure> {
        if self.run == under.run {
            return Figure::of_rounds(&ratios(&self.row.rounds_us, &under.row.rounds_us));
        }
        let value = self.median()? / under.median()?;
        Some(Figure { value, paired: false, range: None })
    }
}

impl<'a> Compared<'a> {
    /// A case of one run.
    pub fn of(case: &'a CaseReport) -> Compared<'a> {
        let entries = case.rows.iter().map(|row| Entry::of(0, row)).collect();
        Compared { name: &case.name, problem: &case.problem, setup: 0, entries }
    }

    /// The fastest that will do, launched alike.
    fn best(&self, graph: bool, will_do: impl Fn(&Row) -> bool) -> Option<&Entry<'a>> {
        let entries =
            self.entries.iter().filter(|entry| entry.row.graph == graph && will_do(entry.row));
        let timed = entries.filter_map(|entry| Some((entry, entry.median()?)));
        timed.min_by(|(_, one), (_, other)| one.total_cmp(other)).map(|(entry, _)| entry)
    }

    /// The fastest plain GEMM with A already gathered: T_gemm.
    pub fn gemm(&self, graph: bool) -> Option<&Entry<'a>> {
        self.best(graph, |row| row.kind == Kind::Gemm)
    }

    /// NCCL's gather, then cuBLASLt's product.
    pub fn nccl(&self, graph: bool) -> Option<&Entry<'a>> {
        self.best(graph, |row| row.who == Gatherer::NcclCublaslt.name())
    }

    /// The fastest of other programs.
    pub fn peer(&self, graph: bool) -> Option<&Entry<'a>> {
        self.best(graph, |row| row.peer && row.kind == Kind::AllGatherGemm)
    }

    /// The fastest strategy, the library's choice among them aside, where all of them have times.
    pub fn strategy(&self, graph: bool) -> Option<&Entry<'a>> {
        let all = [Gatherer::Sequential, Gatherer::Pipelined, Gatherer::Fused].map(Gatherer::name);
        let took_part = |who: &&str| self.best(graph, |row| row.who == **who).is_some();
        if !all.iter().all(took_part) {
            return None;
        }
        self.best(graph, |row| all.contains(&row.who.as_str()))
    }

    /// Whoever is called so, if it has times.
    pub fn labelled(&self, label: &str, graph: bool) -> Option<&Entry<'a>> {
        let mut entries = self.entries.iter();
        entries
            .find(|entry| entry.label == label && entry.row.graph == graph && entry.times.is_some())
    }

    /// Whether a result of whoever is called so was wrong.
    pub fn failed(&self, label: &str, graph: bool) -> bool {
        let mut entries = self.entries.iter();
        entries.any(|entry| {
            entry.label == label && entry.row.graph == graph && entry.row.failed.is_some()
        })
    }

    /// One contender's time over another's; the fastest variant of each.
    pub fn pair(&self, over: &str, under: &str, graph: bool) -> Option<Figure> {
        let of = |who: &str| self.best(graph, |row| row.who == who);
        of(over)?.over(of(under)?)
    }

    /// The baseline of E, which gathers first and multiplies then: NCCL and cuBLASLt, or, where they are no contender (on
    /// threads), the library's own.
    pub fn baseline(&self, graph: bool) -> Option<&Entry<'a>> {
        let names = [Gatherer::NcclCublaslt, Gatherer::Sequential].map(Gatherer::name);
        let takes_part = |name: &&str| {
            let mut entries = self.entries.iter();
            entries.any(|entry| entry.row.who == **name && entry.row.graph == graph)
        };
        let name = names.into_iter().find(|name| takes_part(name))?;
        self.best(graph, |row| row.who == name)
    }

    /// The overlap efficiency, E = 1 − (T − T_gemm) / (T_baseline − T_gemm): 1 where the gather costs nothing, 0 where it
    /// costs what it does in the [baseline](Compared::baseline). `None` for what does not do both, and
    /// where the gather costs nothing there in half of the rounds.
    pub fn efficiency(&self, entry: &Entry<'_>) -> Option<Figure> {
        let graph = entry.row.graph;
        let (gemm, seq) = (self.gemm(graph)?, self.baseline(graph)?);
        if entry.row.kind != Kind::AllGatherGemm {
            return None;
        }
        let of = |time: f64, gemm: f64, seq: f64| {
            (seq > gemm).then(|| 1.0 - (time - gemm) / (seq - gemm))
        };
        let paired = entry.run == gemm.run && entry.run == seq.run;
        match paired {
            true => {
                let [times, gemm, seq] = [entry, gemm, seq].map(|entry| &entry.row.rounds_us);
                let rounds = times.iter().zip(gemm).zip(seq);
                let told = rounds.clone().filter_map(|((&time, &gemm), &seq)| of(time, gemm, seq));
                let told: Vec<f64> = told.collect();
                // A disturbed round says nothing; most have to.
                if 2 * told.len() <= rounds.len() {
                    return None;
                }
                Figure::of_rounds(&told)
            }
            false => {
                let value = of(entry.median()?, gemm.median()?, seq.median()?)?;
                Some(Figure { value, paired, range: None })
            }
        }
    }

    /// Operations a second at `microseconds` a product, in units of 10¹².
    pub fn teraflops(&self, microseconds: f64) -> f64 {
        self.problem.flops() as f64 / microseconds * 1e-6
    }

    /// What every rank receives of the others' A at `microseconds` a gather, in GB/s; of the rank with the fewest rows.
    pub fn gigabytes(&self, microseconds: f64) -> f64 {
        let shards = self.problem.shards();
        let of = |rank| shards.rows(rank).len() as u64;
        let received = u64::from(self.problem.m()) - (0..shards.ranks()).map(of).min().unwrap_or(0);
        let row = u64::from(self.problem.k()) * u64::from(self.problem.elements().a.size());
        (received * row) as f64 / microseconds * 1e-3
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{case, row, run, usual_case};
    use super::*;

    fn close(figure: Option<Figure>, value: f64, paired: bool) {
        let figure = figure.expect("a figure");
        assert!((figure.value - value).abs() < 1e-9, "{figure:?} is not {value}");
        assert_eq!(figure.paired, paired);
    }

    #[test]
    fn rows_are_compared_with_the_fastest_of_each_kind() {
        let report = usual_case(1024);
        let case = Compared::of(&report);
        let of = |who: &str| case.entries.iter().find(|entry| entry.row.who == who).unwrap();
        assert_eq!(case.gemm(true).unwrap().row.who, "cublaslt");
        assert_eq!(case.peer(true).unwrap().row.who, "torch-fused", "another is wrong");
        assert!(case.gemm(false).is_none(), "launched otherwise");
        close(of("fused").over(of("cublaslt")), 1.05, true);
        close(case.efficiency(of("fused")), 0.9, true);
        close(case.efficiency(of("nccl-cublaslt")), 0.0, true);
        close(case.pair("own", "cublaslt", true), 1.03, true);
        assert_eq!(case.efficiency(of("own")), None);
        for (disturbed, efficiency) in [(1, Some(0.9)), (2, None)] {
            let mut report = report.clone();
            let own = report.rows.iter_mut().filter(|row| row.kind == Kind::Gemm);
            own.for_each(|row| row.rounds_us[..disturbed].fill(500.0));
            let case = Compared::of(&report);
            let fused = case.entries.iter().find(|entry| entry.row.who == "fused").unwrap();
            let told = case.efficiency(fused).map(|figure| (10.0 * figure.value).round() / 10.0);
            assert_eq!(told, efficiency, "{disturbed} of 3 rounds are disturbed");
        }
        assert_eq!(case.efficiency(of("torch-native")), None);
        let rate = case.gigabytes(1.0);
        assert_eq!(rate, 512.0 * 8192.0 * 2.0 * 1e-3);
    }

    #[test]
    fn runs_that_fit_share_their_cases_and_say_so() {
        let mut peers =
            case(1024, vec![row("torch-new", Kind::AllGatherGemm, &[90.0, 99.0, 120.0])]);
        peers.rows.push(row("fused", Kind::AllGatherGemm, &[100.0]));
        let mut second = run(vec![peers, usual_case(64)]);
        second.machine.driver = None;
        let runs = [run(vec![usual_case(1024)]), second];
        let all = Comparison::of(&runs);
        assert_eq!((all.setups.len(), all.cases.len()), (1, 2));
        let labels: Vec<_> =
            all.cases[0].entries.iter().map(|entry| entry.label.as_str()).collect();
        assert_eq!(labels[5..], ["torch-native", "fused [1]", "gather", "torch-new", "fused [2]"]);
        let new = &all.cases[0].entries[8];
        close(new.over(all.cases[0].gemm(true).unwrap()), 0.99, false);
        close(all.cases[0].efficiency(new), 1.02, false);
    }

    #[test]
    fn other_machines_and_ranks_are_not_compared() {
        let first = run(vec![usual_case(1024)]);
        let other = |change: fn(&mut Run)| {
            let mut other = first.clone();
            change(&mut other);
            other
        };
        for (other, why) in [
            (other(|run| run.ranks = 4), "4 ranks, not 2"),
            (other(|run| run.machine.gpu = "NVIDIA H100".into()), "NVIDIA H100"),
            (other(|run| run.machine.sm_count = 66), "66 SMs"),
            (other(|run| run.machine.driver = Some("1".into())), "driver 1, not 580.1"),
        ] {
            let differs = Setup::of(&first).differs(&Setup::of(&other)).unwrap();
            assert!(differs.contains(why), "{differs}");
            let runs = [first.clone(), other];
            let all = Comparison::of(&runs);
            assert_eq!((all.setups.len(), all.cases.len()), (2, 2));
            assert!(all.cases.iter().all(|case| case.entries.len() == 8));
        }
        assert_eq!(Setup::of(&first).differs(&Setup::of(&first)), None);
        let threads = |link: &str| {
            let mut run = first.clone();
            (run.machine.gpu, run.machine.sm_count) = (format!("rank on threads, {link}"), 0);
            run
        };
        let (slow, fast) = (threads("9 MB/s"), threads("80 MB/s"));
        let differs = |one, other| Setup::of(one).differs(&Setup::of(other)).unwrap();
        let expected = "rank on threads, 80 MB/s, not rank on threads, 9 MB/s";
        assert_eq!(differs(&slow, &fast), expected);
        assert!(differs(&slow, &first).contains("SMs, not rank on threads, 9 MB/s"));
    }
}
