//! The results as pictures: time against M, and a heat map of what overlapping gained.
//!
//! Invariant: a contender has the same colour in every picture; nothing is drawn for a wrong result.

use std::cmp::Reverse;

use super::super::gather::Gatherer;
use super::compare::{Compared, Comparison, Entry, Setup};
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

/// Where something ran, in a few words.
fn place(all: &Comparison<'_>, setup: usize) -> String {
    format!("{} × {}", all.setups[setup].ranks, all.setups[setup].gpu)
}

/// Where it ran, in a line.
fn subtitle(all: &Comparison<'_>, setups: impl Iterator<Item = usize>, what: &str) -> String {
    let mut places: Vec<String> = setups.map(|setup| place(all, setup)).collect();
    // Those of two drivers have one name.
    places.dedup();
    match places[..] {
        [] => what.to_owned(),
        _ => format!("{}; {what}", places.join(", ")),
    }
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
            panel.title += &format!(" on {}", place(all, setup));
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
        (setup, panel)
    };
    let mut panels: Vec<(usize, Panel)> = kinds.iter().map(panel).collect();
    let is_empty = |panel: &Panel| panel.lines.iter().all(|line| line.points.is_empty());
    let empty: Vec<_> = panels.extract_if(.., |(_, panel)| is_empty(panel)).collect();
    // A setup of which nothing is drawn is one name, not one for each of its panels.
    let mut names: Vec<String> = empty
        .into_iter()
        .map(|(setup, panel)| match panels.iter().any(|(drawn, _)| *drawn == setup) {
            true => panel.title,
            false => place(all, setup),
        })
        .collect();
    names.dedup();
    let mut notes = Vec::new();
    let why_empty = why_no_line(all, drawn, graph);
    if !panels.is_empty() && !names.is_empty() {
        notes.extend([format!("Not drawn, for {why_empty}:"), names.join("; ")]);
    }
    // One M is no curve; where there is no other there is nothing better.
    let is_curve = |panel: &Panel| panel.lines.iter().any(|line| line.points.len() > 1);
    if panels.iter().any(|(_, panel)| is_curve(panel)) {
        let left_out = panels.extract_if(.., |(_, panel)| !is_curve(panel));
        let names: Vec<String> = left_out.map(|(_, panel)| panel.title).collect();
        if !names.is_empty() {
            notes.push(format!(
                "Not drawn, for it was measured at one M only: {}",
                names.join("; ")
            ));
        }
    }
    let mut setups: Vec<usize> = panels.iter().map(|(setup, _)| *setup).collect();
    setups.sort_unstable();
    setups.dedup();
    let what = format!("steady loops {}, medians of the slowest rank", launched(graph));
    let chart = LineChart {
        title: "All-gather + GEMM: time against M".into(),
        subtitle: subtitle(all, setups.into_iter(), &what),
        x: "M: rows of all ranks together".into(),
        y: "µs a step".into(),
        floor: "T_gemm: the fastest product alone, all of A there".into(),
        notes,
        nothing: format!("nothing is drawn: {why_empty}"),
        series,
        panels: panels.into_iter().map(|(_, panel)| panel).collect(),
    };
    chart.to_svg()
}

/// As sentences have it.
fn launched(graph: bool) -> &'static str {
    if graph { "in CUDA graphs" } else { "launched one by one" }
}

/// Why there are problems without a line: of nobody who is drawn is a time.
fn why_no_line(all: &Comparison<'_>, drawn: &Drawn<'_>, graph: bool) -> String {
    let mut entries = all.cases.iter().flat_map(|case| &case.entries);
    let elsewhere = entries.any(|entry| {
        let does_both = entry.row.kind == Kind::AllGatherGemm && entry.times.is_some();
        does_both && entry.row.graph != graph && drawn.has(entry)
    });
    let (other, how) = if graph { ("plain", launched(graph)) } else { ("graph", launched(graph)) };
    match elsewhere {
        true => {
            format!("nobody gathers and multiplies {how} (--plot-launch {other} draws the others)")
        }
        false => format!("nobody gathers and multiplies {how}{}", who_would(drawn)),
    }
}

/// What helps where nobody who is drawn gathers and multiplies.
fn who_would(drawn: &Drawn<'_>) -> &'static str {
    match drawn.only {
        [] => ": --contenders fused or auto, say, does",
        _ => " of those that --draw names",
    }
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
        Columns { head: format!("{}: {}", launch_name(graph), launched(graph)), columns }
    };
    let mut groups = vec![group(true), group(false)];
    groups.retain(|group| {
        group.columns.iter().flat_map(|(_, cells)| cells).any(|cell| *cell != Cell::Nothing)
    });
    let name = |case: &&Compared<'_>| match all.setups.len() {
        0 | 1 => case.name.to_owned(),
        // A setup's name is long, and would take the place of the problem's.
        _ => format!("{} ({})", case.name, letter(case.setup)),
    };
    let rows = match groups[..] {
        [] => Vec::new(),
        _ => cases.iter().map(name).collect(),
    };
    let mut notes = Vec::new();
    if all.setups.len() > 1 && !rows.is_empty() {
        let setups = all.setups.iter().enumerate();
        notes.extend(setups.map(|(nth, setup)| format!("({}): {setup}", letter(nth))));
    }
    let (title, legend, ticks): (_, String, Vec<(f64, String)>) = match heat {
        Heat::Efficiency => (
            "All-gather + GEMM: how much of the gather was hidden",
            format!(
                "E = 1 − (T − T_gemm) ÷ ({} − T_gemm); 100 %: the gather costs nothing; framed: the best of its row",
                match &behind(all)[..] {
                    [] => "T_seq".into(),
                    names => format!("T of {}", names.join(" or ")),
                }
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
    let one = match all.setups.iter().any(Setup::is_of_threads) {
        true => "M×N×K, N of one rank",
        false => "M×N×K, N of one GPU",
    };
    let setups = if notes.is_empty() { 0..all.setups.len() } else { 0..0 };
    let map = HeatMap {
        title: title.into(),
        subtitle: subtitle(all, setups, one),
        legend,
        ramp: Ramp::of(&GAIN),
        ticks,
        rows,
        groups,
        notes,
        nothing: why_no_cell(all, drawn, heat),
    };
    map.to_svg()
}

/// What a setup is called in a row; numbers are those of runs.
fn letter(setup: usize) -> String {
    match u8::try_from(setup) {
        Ok(nth @ 0..26) => char::from(b'A' + nth).into(),
        _ => format!("setup {}", setup + 1),
    }
}

/// Why no cell has a number or a failure, and what helps: in lines.
fn why_no_cell(all: &Comparison<'_>, drawn: &Drawn<'_>, heat: Heat) -> Vec<String> {
    let mut entries = all.cases.iter().flat_map(|case| &case.entries);
    let does_both = |entry: &Entry<'_>| entry.row.kind == Kind::AllGatherGemm && drawn.has(entry);
    if !entries.any(|entry| does_both(entry) && entry.times.is_some()) {
        return vec![format!("nobody gathers and multiplies{}", who_would(drawn))];
    }
    let mut launches = all.cases.iter().flat_map(|case| [true, false].map(|graph| (case, graph)));
    let has_gemm = launches.any(|(case, graph)| case.gemm(graph).is_some());
    const GEMM: &str = "a product alone for T_gemm: --contenders own or cublaslt";
    const SEQ: &str =
        "one who gathers first and multiplies then: --contenders sequential or nccl-cublaslt";
    const OVER: &str = "or give --heat over-gemm, which needs T_gemm alone";
    let lines: &[&str] = match (heat, has_gemm, behind(all).is_empty()) {
        (Heat::Efficiency, true, true) => &["no cell has a number: E needs", SEQ, OVER],
        (Heat::Efficiency, false, true) => &["no cell has a number: E needs", GEMM, SEQ],
        (Heat::Efficiency, false, false) => &["no cell has a number: E needs", GEMM],
        (Heat::Efficiency, true, false) => {
            &["T_seq is not above T_gemm anywhere, or they are of other problems or launches", OVER]
        }
        (Heat::OverGemm, false, _) => &["no cell has a number: T ÷ T_gemm needs", GEMM],
        (Heat::OverGemm, true, _) => &["T_gemm is of other problems or launches"],
    };
    lines.iter().map(|line| line.to_string()).collect()
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
#[path = "pictures_tests.rs"]
mod tests;
