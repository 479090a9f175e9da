//! The results as pictures: time against M, and a heat map of what overlapping gained.
//!
//! Invariant: a contender has the same colour in every picture; nothing is drawn for a wrong result.

use std::cmp::Reverse;

use super::super::gather::Gatherer;
use super::compare::{Compared, Comparison, Entry};
use super::{Kind, launch_name};
use crate::plot::{Cell, Columns, HeatMap, Line, LineChart, Panel, Ramp, SLOTS, Series};

/// Who has which colour and mark, the first first in the legend; others have what these leave over.
const KNOWN: [&str; SLOTS] = [
    Gatherer::Fused.name(),
    Gatherer::Auto.name(),
    Gatherer::Pipelined.name(),
    Gatherer::Sequential.name(),
    Gatherer::NcclOwn.name(),
    Gatherer::NcclCublaslt.name(),
    "torch-fused",
    "torch-native",
    "torch-nccl-mm",
];

/// The colours of what was won: 1 where the gather is free, 0 where nothing was, and below.
const GAIN: [(f64, [u8; 3]); 3] =
    [(-0.5, [179, 88, 6]), (0.0, [247, 244, 238]), (1.0, [33, 102, 172])];

/// What a heat map shows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
pub enum Heat {
    /// The overlap efficiency E, in per cent of the gather's cost that was hidden: of NCCL's, on threads of the library's own
    #[default]
    Efficiency,
    /// The time as a multiple of T_gemm
    OverGemm,
}

/// Who is drawn.
pub struct Drawn<'a> {
    /// By name; all if empty.
    pub only: &'a [String],
}

/// What is said of a name that nobody has.
pub fn nobody(name: &str, names: &[&str]) -> String {
    format!("nobody is called '{name}'; there are {}", names.join(", "))
}

impl Drawn<'_> {
    fn has(&self, entry: &Entry<'_>) -> bool {
        self.only.is_empty()
            || self.only.iter().any(|name| *name == entry.row.who || *name == entry.label)
    }

    /// A name that nobody has, and the names that there are.
    pub fn unknown(&self, all: &Comparison<'_>) -> Option<String> {
        let mut names: Vec<&str> = Vec::new();
        for entry in all.cases.iter().flat_map(|case| &case.entries) {
            if !names.contains(&entry.row.who.as_str()) {
                names.push(&entry.row.who);
            }
        }
        let is_label = |name: &String| {
            let mut entries = all.cases.iter().flat_map(|case| &case.entries);
            entries.any(|entry| entry.label == *name)
        };
        let unknown =
            self.only.iter().find(|name| !names.contains(&name.as_str()) && !is_label(name))?;
        Some(nobody(unknown, &names))
    }

    /// The labels of all that a kind's picture shows, in the order of [`KNOWN`], and how each is drawn.
    fn series(&self, all: &Comparison<'_>, shown: impl Fn(&Entry<'_>) -> bool) -> Vec<Series> {
        let mut labels: Vec<(&str, &str)> = Vec::new();
        for entry in all.cases.iter().flat_map(|case| &case.entries) {
            let known = labels.iter().any(|(label, _)| *label == entry.label);
            if !known && self.has(entry) && shown(entry) && entry.times.is_some() {
                labels.push((&entry.label, &entry.row.who));
            }
        }
        let place = |who: &str| KNOWN.iter().position(|known| *known == who);
        labels.sort_by_key(|(_, who)| place(who).unwrap_or(SLOTS));
        let taken: Vec<usize> = labels.iter().filter_map(|(_, who)| place(who)).collect();
        let mut left = (0..SLOTS).filter(|slot| !taken.contains(slot)).chain(SLOTS..);
        let mut series: Vec<Series> = Vec::new();
        let mut slots: Vec<(&str, usize)> = Vec::new();
        for (label, who) in labels {
            let variant = slots.iter().filter(|(other, _)| *other == who).count();
            let slot = match slots.iter().find(|(other, _)| *other == who) {
                Some((_, slot)) => *slot,
                None => place(who).or_else(|| left.next()).unwrap_or(SLOTS),
            };
            slots.push((who, slot));
            series.push(Series { name: label.to_owned(), slot, variant });
        }
        series
    }
}

/// Where it ran, in a line.
fn subtitle(all: &Comparison<'_>, what: &str) -> String {
    let setups: Vec<_> =
        all.setups.iter().map(|setup| format!("{} × {}", setup.ranks, setup.gpu)).collect();
    format!("{}; {what}", setups.join(", "))
}

/// A case without its M: what a panel shows. The name begins with `M×`.
fn beyond_m<'a>(case: &Compared<'a>) -> &'a str {
    case.name.split_once('×').map_or(case.name, |(_, rest)| rest)
}

/// What differs by more than M, those with the most of it first.
fn kinds<'a>(all: &Comparison<'a>) -> Vec<(usize, &'a str)> {
    let mut kinds: Vec<((usize, &str), usize)> = Vec::new();
    for case in &all.cases {
        let kind = (case.setup, beyond_m(case));
        match kinds.iter_mut().find(|(known, _)| *known == kind) {
            Some((_, count)) => *count += 1,
            None => kinds.push((kind, 1)),
        }
    }
    kinds.sort_by_key(|(_, count)| Reverse(*count));
    kinds.into_iter().map(|(kind, _)| kind).collect()
}

/// Time against M, on logarithmic axes, above the floor T_gemm; a panel for each N, K and types.
pub fn time_against_m(all: &Comparison<'_>, drawn: &Drawn<'_>, graph: bool) -> String {
    let does_both = |entry: &Entry<'_>| {
        entry.row.graph == graph
            && matches!(entry.row.kind, Kind::AllGatherGemm | Kind::GemmBesideCopies)
    };
    let series = drawn.series(all, does_both);
    let kinds = kinds(all);
    let panel = |&(setup, rest): &(usize, &str)| {
        let mut panel = Panel { title: format!("N×K = {rest}"), ..Panel::default() };
        if all.setups.len() > 1 {
            let setup = &all.setups[setup];
            panel.title += &format!(" on {} × {}", setup.ranks, setup.gpu);
        }
        panel.lines = (0..series.len()).map(|series| Line { series, points: Vec::new() }).collect();
        for case in all.cases.iter().filter(|case| (case.setup, beyond_m(case)) == (setup, rest)) {
            let m = f64::from(case.problem.m());
            panel.floor.extend(case.gemm(graph).and_then(Entry::median).map(|time| (m, time)));
            for entry in case.entries.iter().filter(|entry| does_both(entry)) {
                let line = series.iter().position(|series| series.name == entry.label);
                if let (Some(line), Some(time)) = (line, entry.median()) {
                    panel.lines[line].points.push((m, time));
                }
            }
        }
        panel
    };
    let mut panels: Vec<Panel> = kinds.iter().map(panel).collect();
    panels.retain(|panel| panel.lines.iter().any(|line| !line.points.is_empty()));
    // One M is no curve; where there is no other there is nothing better.
    let is_curve = |panel: &Panel| panel.lines.iter().any(|line| line.points.len() > 1);
    let mut note = String::new();
    if panels.iter().any(is_curve) {
        let left_out = panels.extract_if(.., |panel| !is_curve(panel));
        let names: Vec<String> = left_out.map(|panel| panel.title).collect();
        if !names.is_empty() {
            note = format!("Not drawn, for it was measured at one M only: {}", names.join("; "));
        }
    }
    let how = if graph { "in CUDA graphs" } else { "launched one by one" };
    let chart = LineChart {
        title: "All-gather + GEMM: time against M".into(),
        subtitle: subtitle(all, &format!("steady loops {how}, medians of the slowest rank")),
        x: "M: rows of all ranks together".into(),
        y: "µs a step".into(),
        floor: "T_gemm: the fastest product alone, all of A there".into(),
        note,
        series,
        panels,
    };
    chart.to_svg()
}

/// All problems by all who gather and multiply, in both launches.
pub fn heat_map(all: &Comparison<'_>, drawn: &Drawn<'_>, heat: Heat) -> String {
    let does_both = |entry: &Entry<'_>| entry.row.kind == Kind::AllGatherGemm;
    // Who was always wrong is not in it: there is no number to show.
    let series = drawn.series(all, does_both);
    let value = |case: &Compared<'_>, entry: &Entry<'_>| match heat {
        Heat::Efficiency => case.efficiency(entry),
        Heat::OverGemm => entry.over(case.gemm(entry.row.graph)?),
    };
    // What is best has the largest number in the one, and the least in the other.
    let sign = if heat == Heat::Efficiency { 1.0 } else { -1.0 };
    let cell = |case: &Compared<'_>, label: &str, graph: bool| {
        let mut entries = case.entries.iter().filter(|entry| entry.row.graph == graph);
        let Some(entry) = entries.find(|entry| entry.label == label) else { return Cell::Nothing };
        if let Some(why) = &entry.row.failed {
            return Cell::Note { text: "FAILED".into(), why: why.clone() };
        }
        let Some(figure) = value(case, entry) else { return Cell::Nothing };
        let all = case.entries.iter().filter(|other| other.row.graph == graph && drawn.has(other));
        let all = all.filter(|other| does_both(other)).filter_map(|other| value(case, other));
        let best = all.map(|figure| sign * figure.value).fold(f64::NEG_INFINITY, f64::max);
        let about = if figure.paired { "" } else { "~" };
        let text = match heat {
            Heat::Efficiency => format!("{about}{} %", whole(100.0 * figure.value)),
            Heat::OverGemm => format!("{about}{:.2}", figure.value),
        };
        let best = sign * figure.value >= best;
        let value = match heat {
            Heat::Efficiency => figure.value,
            Heat::OverGemm => gain_of(figure.value),
        };
        Cell::Value { value, text, best }
    };
    let kinds = kinds(all);
    let kind_of =
        |case: &Compared<'_>| kinds.iter().position(|kind| *kind == (case.setup, beyond_m(case)));
    let mut cases: Vec<&Compared<'_>> = all.cases.iter().collect();
    cases.sort_by_key(|case| (kind_of(case), case.problem.m()));
    let group = |graph: bool| {
        let column = |series: &Series| {
            let cells = cases.iter().map(|case| cell(case, &series.name, graph)).collect();
            (series.name.clone(), cells)
        };
        let columns: Vec<(String, Vec<Cell>)> = series.iter().map(column).collect();
        let how = if graph { "in CUDA graphs" } else { "launched one by one" };
        Columns { head: format!("{}: {how}", launch_name(graph)), columns }
    };
    let mut groups = vec![group(true), group(false)];
    groups.retain(|group| {
        group.columns.iter().flat_map(|(_, cells)| cells).any(|cell| *cell != Cell::Nothing)
    });
    let name = |case: &&Compared<'_>| match all.setups.len() {
        0 | 1 => case.name.to_owned(),
        _ => format!(
            "{} × {}: {}",
            all.setups[case.setup].ranks, all.setups[case.setup].gpu, case.name
        ),
    };
    let (title, legend, ticks): (_, String, Vec<(f64, String)>) = match heat {
        Heat::Efficiency => (
            "All-gather + GEMM: how much of the gather was hidden",
            format!(
                "E = 1 − (T − T_gemm) ÷ (T of {} − T_gemm); 100 %: the gather costs nothing; framed: the best of its row",
                behind(all).join(" or ")
            ),
            [-50, 0, 50, 100]
                .map(|e| (f64::from(e) / 100.0, format!("{} %", whole(f64::from(e)))))
                .to_vec(),
        ),
        Heat::OverGemm => (
            "All-gather + GEMM: time as a multiple of the product's alone",
            "T ÷ T_gemm; 1: the gather costs nothing; framed: the best of its row".into(),
            [2.83, 2.0, 1.41, 1.0].map(|over| (gain_of(over), number(over))).to_vec(),
        ),
    };
    let map = HeatMap {
        title: title.into(),
        subtitle: subtitle(all, "M×N×K, N of one GPU"),
        legend,
        ramp: Ramp::of(&GAIN),
        ticks,
        rows: cases.iter().map(name).collect(),
        groups,
    };
    map.to_svg()
}

/// What efficiencies are told beside, by name.
fn behind<'a>(all: &'a Comparison<'_>) -> Vec<&'a str> {
    let mut names: Vec<&str> = Vec::new();
    let launches = all.cases.iter().flat_map(|case| [true, false].map(|graph| (case, graph)));
    for entry in launches.filter_map(|(case, graph)| case.one_after_the_other(graph)) {
        if !names.contains(&entry.row.who.as_str()) {
            names.push(&entry.row.who);
        }
    }
    names
}

/// Where a multiple of T_gemm is on the colours: 1 at the best, 2 where the colours turn.
fn gain_of(over: f64) -> f64 {
    1.0 - over.log2()
}

/// Without digits behind the point, with a real minus, and never a zero below zero.
fn whole(number: f64) -> String {
    let rounded = number.round();
    let sign = if rounded < 0.0 { "−" } else { "" };
    format!("{sign}{:.0}", rounded.abs())
}

fn number(over: f64) -> String {
    if over.fract() == 0.0 { format!("{over:.0}") } else { format!("{over:.1}") }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{case, row, run, usual_case, wrong};
    use super::*;

    const EVERYBODY: Drawn<'static> = Drawn { only: &[] };

    #[test]
    fn who_gathers_and_multiplies_is_drawn_over_the_floor() {
        let mut other = usual_case(64);
        other.rows.iter_mut().for_each(|row| row.graph = false);
        let runs = [run(vec![usual_case(1024), usual_case(4096), other])];
        let all = Comparison::of(&runs);
        let picture = time_against_m(&all, &EVERYBODY, true);
        assert_eq!(picture.matches("</title></").count(), 3 * 2, "three contenders, two cases");
        for told in
            ["fused, 1024: 105.0 µs", "torch-fused, 4096: 520.0 µs", "T_gemm", "3584×8192 bf16"]
        {
            assert!(picture.contains(told), "no {told} in {picture}");
        }
        assert!(!picture.contains("torch-native") && !picture.contains("gather, "), "{picture}");
        let plain = time_against_m(&all, &EVERYBODY, false);
        assert!(plain.contains("fused, 64: 6.6 µs") && plain.contains("one by one"), "{plain}");
    }

    #[test]
    fn what_is_no_curve_is_named_and_not_drawn() {
        let mut single = usual_case(512);
        single.name = "512×64×8192 bf16".into();
        let runs = [run(vec![single, usual_case(1024), usual_case(4096)])];
        let all = Comparison::of(&runs);
        let picture = time_against_m(&all, &EVERYBODY, true);
        assert!(picture.contains("one M only: N×K = 64×8192 bf16"), "{picture}");
        assert!(!picture.contains("fused, 512:") && picture.contains("fused, 1024:"), "{picture}");
        // Alone it is drawn.
        let runs = [run(vec![usual_case(512)])];
        let picture = time_against_m(&Comparison::of(&runs), &EVERYBODY, true);
        assert!(picture.contains("fused, 512:") && !picture.contains("Not drawn"), "{picture}");
    }

    #[test]
    fn some_can_be_left_out_but_nobody_who_is_not_there_asked_for() {
        let runs = [run(vec![usual_case(1024)])];
        let all = Comparison::of(&runs);
        let only = ["fused".to_owned(), "nccl-cublaslt".into()];
        let drawn = Drawn { only: &only };
        assert_eq!(drawn.unknown(&all), None);
        for picture in
            [time_against_m(&all, &drawn, true), heat_map(&all, &drawn, Heat::Efficiency)]
        {
            assert!(picture.contains("fused") && !picture.contains("torch-"), "{picture}");
        }
        let only = ["fsued".to_owned()];
        let why = Drawn { only: &only }.unknown(&all).unwrap();
        assert!(why.contains("'fsued'; there are cublaslt, torch-mm, own"), "{why}");
    }

    #[test]
    fn the_legend_says_what_efficiency_is_told_beside() {
        let mut on_threads = usual_case(64);
        on_threads.rows.retain(|row| row.who != "nccl-cublaslt");
        on_threads.rows.push(row("sequential", Kind::AllGatherGemm, &[9.0]));
        let runs = [run(vec![usual_case(1024), on_threads])];
        let picture = heat_map(&Comparison::of(&runs), &EVERYBODY, Heat::Efficiency);
        assert!(picture.contains("T of nccl-cublaslt or sequential − T_gemm"), "{picture}");
    }

    #[test]
    fn cells_say_what_was_won() {
        let runs = [run(vec![usual_case(1024), case(64, vec![wrong("fused")])])];
        let all = Comparison::of(&runs);
        let picture = heat_map(&all, &EVERYBODY, Heat::Efficiency);
        for told in
            ["fused: 90 %", "nccl-cublaslt: 0 %", "64×3584×8192 bf16, fused: off by 1", "FAILED"]
        {
            assert!(picture.contains(told), "no {told} in {picture}");
        }
        assert!(!picture.contains("plain"), "nobody was launched so");
        let picture = heat_map(&all, &EVERYBODY, Heat::OverGemm);
        for told in ["fused: 1.05", "torch-fused: 1.30", "nccl-cublaslt: 1.50"] {
            assert!(picture.contains(told), "no {told} in {picture}");
        }
        assert_eq!(picture.matches("class=\"best\"").count(), 1, "one is the best");
    }

    #[test]
    fn runs_and_machines_are_told_apart() {
        let mut other = run(vec![usual_case(1024)]);
        other.ranks = 4;
        let runs = [run(vec![usual_case(1024)]), run(vec![usual_case(1024)]), other];
        let all = Comparison::of(&runs);
        let picture = time_against_m(&all, &EVERYBODY, true);
        for told in
            ["fused [1]", "fused [2]", "fused [3]", "on 4 × NVIDIA H200", "on 2 × NVIDIA H200"]
        {
            assert!(picture.contains(told), "no {told} in {picture}");
        }
        assert!(heat_map(&all, &EVERYBODY, Heat::OverGemm).contains("4 × NVIDIA H200: 1024×"));
    }

    #[test]
    fn nothing_measured_is_no_panic() {
        for runs in [
            vec![],
            vec![run(vec![])],
            vec![run(vec![case(8, vec![row("x", Kind::Gemm, &[1.0])])])],
        ] {
            let all = Comparison::of(&runs);
            for picture in
                [time_against_m(&all, &EVERYBODY, true), heat_map(&all, &EVERYBODY, Heat::OverGemm)]
            {
                assert!(picture.contains("nothing was measured"), "{picture}");
            }
        }
    }
}
