//! The results as a picture: time against M.
//!
//! Invariant: a contender has the same colour in every panel and picture; nothing is drawn for a wrong result.

use std::cmp::Reverse;

use super::super::wanted::Gatherer;
use super::Kind;
use super::compare::{Compared, Comparison, Entry};
use crate::plot::{Line, LineChart, Panel, SLOTS, Series};

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
    all.setups[setup].place()
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

#[cfg(test)]
#[path = "pictures_tests.rs"]
mod tests;
