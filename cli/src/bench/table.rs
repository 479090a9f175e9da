//! The results as text: one line a case, variants of a sweep below it, the bars at the end.
//!
//! Invariant: the text says nothing that the JSON does not; a number that was not measured is a dash,
//! a wrong result is FAILED, and why stands below the table.

use std::fmt::{self, Formatter, Write as _};

use super::bars::Verdict;
use super::cases::Group;
use super::gemm::Who;
use super::results::{CaseResult, Method, Outcome, Results};
use super::statistics::{geometric_mean, median};

impl fmt::Display for Results {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        writeln!(f, "overlap-gemm {} on {}", self.version, self.machine)?;
        writeln!(f, "{}", self.method)?;
        writeln!(f, "command: {}", self.command)?;
        let mut groups: Vec<Group> = self.cases.iter().map(|case| case.group).collect();
        groups.dedup();
        for group in groups {
            let cases: Vec<_> = self.cases.iter().filter(|case| case.group == group).collect();
            write_group(f, group, &cases)?;
        }
        writeln!(f)?;
        writeln!(f, "{LEGEND}")?;
        write_notes(f, &self.cases)?;
        if !self.verdicts.is_empty() {
            writeln!(f, "\nbars")?;
        }
        for verdict in &self.verdicts {
            writeln!(f, "  {verdict}")?;
        }
        if let Some(why) = &self.ended_early {
            writeln!(f, "\nended before the last case: {why}")?;
        }
        writeln!(f, "\n{:.0} s in all", self.seconds)
    }
}

const LEGEND: &str = "\
µs: median over the rounds, ±: distance of the quartiles; own÷cuBLASLt: median of the rounds' ratios, with \
the least\nand the largest; ÷meds: ratio of the medians; set÷own: all signals set, over none; \
trickle: chunks arriving, over\nmax(product, last arrival + what it alone gates)";

const WIDTH: usize = 34;

fn write_group(f: &mut Formatter<'_>, group: Group, cases: &[&CaseResult]) -> fmt::Result {
    writeln!(f, "\n{}", group.name())?;
    writeln!(
        f,
        "  {:<WIDTH$} {:>9} {:>5} {:>7} {:>9} {:>5} {:>24} {:>6} {:>7} {:>7}  kernel",
        "M×N×K",
        "own µs",
        "±",
        "TFLOP/s",
        "cuBLASLt",
        "±",
        "own÷cuBLASLt",
        "÷meds",
        "set÷own",
        "trickle"
    )?;
    for case in cases {
        write_case(f, case)?;
    }
    let all = |of: &dyn Fn(&CaseResult) -> Option<f64>| -> Vec<f64> {
        cases.iter().filter_map(|case| of(case)).collect()
    };
    let lists = [
        all(&|case| Some(case.ratio(Who::Own, Who::Cublaslt)?.of_rounds)),
        all(&|case| Some(case.ratio(Who::OwnSet, Who::Own)?.of_rounds)),
        all(&|case| median(&case.trickle.as_ref()?.over_ideal)),
    ];
    if cases.len() > 1 && lists.iter().any(|list| !list.is_empty()) {
        for (name, of) in [("geometric mean", mean as fn(&[f64]) -> _), ("worst", worst)] {
            let [beside, set, trickle] = lists.each_ref().map(|list| factor(of(list)));
            let blank = "";
            writeln!(
                f,
                "  {name:<WIDTH$} {blank:>9} {blank:>5} {blank:>7} {blank:>9} {blank:>5} \
                 {beside:>24} {blank:>6} {set:>7} {trickle:>7}"
            )?;
        }
    }
    Ok(())
}

fn mean(values: &[f64]) -> Option<f64> {
    geometric_mean(values)
}

fn worst(values: &[f64]) -> Option<f64> {
    values.iter().copied().max_by(f64::total_cmp)
}

fn write_case(f: &mut Formatter<'_>, case: &CaseResult) -> fmt::Result {
    let outcome = |who| case.of(who).map(|contender| &contender.outcome);
    let (own, cublaslt) = (outcome(Who::Own), outcome(Who::Cublaslt));
    let beside = case.ratio(Who::Own, Who::Cublaslt);
    let range = beside.map_or("–".into(), |ratio| {
        format!("{:.3} [{:.3} {:.3}]", ratio.of_rounds, ratio.min, ratio.max)
    });
    let rate = own.and_then(Outcome::median).map(|time| case.teraflops(time));
    let set = match outcome(Who::OwnSet) {
        Some(Outcome::Failed(_)) => "FAILED".into(),
        _ => factor(case.ratio(Who::OwnSet, Who::Own).map(|ratio| ratio.of_rounds)),
    };
    let trickle = match outcome(Who::OwnTrickle) {
        Some(Outcome::Failed(_)) => "FAILED".into(),
        _ => factor(case.trickle.as_ref().and_then(|trickle| median(&trickle.over_ideal))),
    };
    writeln!(
        f,
        "  {:<WIDTH$} {:>9} {:>5} {:>7} {:>9} {:>5} {range:>24} {:>6} {set:>7} {trickle:>7}  {}",
        case.name,
        time(own),
        spread(own),
        rate.map_or("–".into(), |rate| format!("{rate:.0}")),
        time(cublaslt),
        spread(cublaslt),
        factor(beside.map(|ratio| ratio.of_medians)),
        case.of(Who::Own).map_or("–", |own| &own.what),
    )?;
    write_variants(f, case)
}

/// The lines of a sweep: the fastest first, with how much slower the others are.
fn write_variants(f: &mut Formatter<'_>, case: &CaseResult) -> fmt::Result {
    let own: Vec<_> = case.contenders.iter().filter(|c| c.who == Who::Own).collect();
    if own.len() + case.dropped.len() < 2 {
        return Ok(());
    }
    let best = own.first().and_then(|own| own.outcome.median());
    for variant in own {
        let slower = variant.outcome.median().zip(best).map(|(time, best)| time / best);
        let (time, spread) = (time(Some(&variant.outcome)), spread(Some(&variant.outcome)));
        let slower = factor(slower);
        writeln!(f, "    {:<32} {time:>9} {spread:>5} {slower:>7}  {}", "", variant.what)?;
    }
    for variant in &case.dropped {
        let why = variant.why.as_deref().map_or(String::new(), |why| format!(": {why}"));
        let time = variant.first_heat_us.map_or("–".into(), |time| format!("~{time:.1}"));
        writeln!(f, "    {:<32} {time:>9} {:>5} {:>7}  {}{why}", "", "", "", variant.what)?;
    }
    Ok(())
}

fn time(outcome: Option<&Outcome>) -> String {
    match outcome {
        Some(Outcome::Timed { summary, .. }) => format!("{:.2}", summary.median),
        Some(Outcome::Failed(_)) => "FAILED".into(),
        Some(Outcome::Absent(_)) | None => "–".into(),
    }
}

fn spread(outcome: Option<&Outcome>) -> String {
    match outcome {
        Some(Outcome::Timed { summary, .. }) => format!("{:.1}%", 100.0 * summary.spread()),
        _ => String::new(),
    }
}

fn factor(ratio: Option<f64>) -> String {
    ratio.map_or("–".into(), |ratio| format!("{ratio:.3}"))
}

/// Who failed or was absent, and why; the same words only once.
fn write_notes(f: &mut Formatter<'_>, cases: &[CaseResult]) -> fmt::Result {
    let mut notes: Vec<(String, Vec<&str>)> = Vec::new();
    for case in cases {
        for contender in &case.contenders {
            let note = match &contender.outcome {
                Outcome::Timed { .. } => continue,
                Outcome::Failed(why) => {
                    format!("{} FAILED ({}): {why}", contender.who.name(), contender.what)
                }
                Outcome::Absent(why) => format!("{} took no part: {why}", contender.who.name()),
            };
            match notes.iter_mut().find(|(known, _)| *known == note) {
                Some((_, names)) => names.push(&case.name),
                None => notes.push((note, vec![&case.name])),
            }
        }
    }
    for (note, names) in notes {
        let more = names.len() - 1;
        let mut line = format!("{note} [{}", names[0]);
        if more > 0 {
            write!(line, " and {more} more")?;
        }
        writeln!(f, "{line}]")?;
    }
    Ok(())
}

impl fmt::Display for Method {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Method { rounds, target_ms, launch, seed, .. } = self;
        write!(
            f,
            "{rounds} rounds by turns, loops of at least {target_ms} ms ({launch}), random normal \
             inputs from seed {seed}, rotated"
        )?;
        f.write_str(match self.checked {
            true => ", results checked against f64",
            false => ", results NOT checked",
        })?;
        if !self.fast_accumulation {
            f.write_str(", fp8 summed in f32")?;
        }
        if let Some(sms) = self.sm_limit {
            write!(f, ", own kernels on {sms} SMs")?;
        }
        let rate = 1e-9 * self.trickle_bytes_per_second;
        write!(f, "; {} chunks, trickling at {rate:.0} GB/s", self.chunks)
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let verdict = match self.passed {
            Some(true) => "PASS",
            Some(false) => "MISS",
            None => "open",
        };
        write!(f, "{verdict}  {:<28} {:<18}", self.what, self.group.name())?;
        let limit = |limit: Option<f64>| match limit {
            Some(limit) => format!("(bar {limit:.2})"),
            None => "(no bar)".into(),
        };
        let (mean, most) = (factor(self.geometric_mean), factor(self.worst));
        write!(f, "geometric mean {mean:>5} {:<10}", limit(self.mean_limit))?;
        write!(f, "  worst {most:>5} {:<10}", limit(self.worst_limit))?;
        if let Some(case) = &self.worst_case {
            write!(f, "  {case}")?;
        }
        if self.passed.is_none() {
            write!(f, "; only {} of {} cases were measured", self.measured, self.of)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::results::made_up::{case, results, timed, trickle};
    use super::super::results::{Contender, Dropped};
    use super::*;

    #[test]
    fn a_case_is_a_line() {
        let mut one = case(
            Group::Bf16,
            vec![
                timed(Who::Own, &[90.0, 90.0, 90.0]),
                timed(Who::OwnSet, &[91.0, 90.45, 90.45]),
                timed(Who::Cublaslt, &[100.0, 101.0, 99.0]),
            ],
        );
        one.trickle = Some(trickle(&[1.02, 1.03, 1.04]));
        let text = results(vec![one]).to_string();
        let line = text.lines().find(|line| line.contains("own_kernel")).unwrap();
        for part in ["90.00", "0.0%", "668", "100.00", "0.900 [0.891 0.909]", "1.005", "1.030"] {
            assert!(line.contains(part), "no {part} in\n{text}");
        }
        for part in [
            "overlap-gemm 0.0.0 on NVIDIA H200 (132 SMs, 60 MiB of L2), driver 580.1",
            "PASS  own ÷ cuBLASLt",
            "(bar 0.98)",
            "PASS  all signals set ÷ none",
        ] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
    }

    #[test]
    fn a_wrong_result_has_no_time() {
        let mut one = case(
            Group::SmallM,
            vec![timed(Who::Own, &[9.0]), timed(Who::OwnSet, &[9.0]), timed(Who::Cublaslt, &[9.0])],
        );
        one.contenders[0].outcome = Outcome::Failed("D[3, 4] is NaN".into());
        one.contenders[2].outcome = Outcome::Absent("no library".into());
        let text = results(vec![one]).to_string();
        for part in ["FAILED", "own FAILED (own_kernel): D[3, 4] is NaN [1024×3584×8192 bf16]"] {
            assert!(text.contains(part), "no {part} in\n{text}");
        }
        assert!(text.contains("cublaslt took no part: no library"), "{text}");
        assert!(text.contains("open  own ÷ cuBLASLt"), "{text}");
        assert!(!text.contains("9.00"), "{text}");
    }

    #[test]
    fn a_sweep_lists_its_variants_the_fastest_first() {
        let mut one = case(Group::Own, vec![timed(Who::Own, &[10.0]), timed(Who::Own, &[12.0])]);
        one.contenders[1].what = "second".into();
        let dropped = |what: &str, time, why: Option<&str>| Dropped {
            what: what.into(),
            first_heat_us: time,
            why: why.map(Into::into),
        };
        one.dropped.push(dropped("third", Some(20.0), None));
        one.dropped.push(dropped("fourth", None, Some("wrong")));
        let text = results(vec![one]).to_string();
        let place = |part: &str| text.find(part).unwrap_or_else(|| panic!("no {part} in\n{text}"));
        assert!(place("1.200  second") < place("~20.0"), "{text}");
        assert!(place("~20.0") < place("fourth: wrong"), "{text}");
    }

    #[test]
    fn what_many_cases_share_is_said_once() {
        let absent = |_| {
            let outcome = Outcome::Absent("no such kernel".into());
            let contender = Contender { who: Who::Cublaslt, what: "–".into(), outcome };
            case(Group::Fp8Rows, vec![timed(Who::Own, &[9.0]), contender])
        };
        let text = results((0..3).map(absent).collect()).to_string();
        assert_eq!(text.matches("no such kernel").count(), 1, "{text}");
        assert!(text.contains("and 2 more]"), "{text}");
    }
}
