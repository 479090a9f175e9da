//! What is said of `auto` beside the results, on stderr: tables that were refused, and by what each case was planned.
//!
//! Invariant: all of it stands in the results, too, where a table was looked into; a line each.

use overlap_gemm::tune::Tuning;

use super::gather::Gatherer;
use super::report::CaseReport;

/// Those that look into tables.
const TABLED: [Gatherer; 2] = [Gatherer::Auto, Gatherer::AutoHeldOut];

#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "threads have no tables"))]
/// Says which tables are not used, and why, if anybody takes part who would look into them.
pub fn tell_of_tables(contenders: &[Gatherer]) {
    if TABLED.iter().any(|who| contenders.contains(who)) {
        Tuning::found().notes().iter().for_each(|note| eprintln!("{note}"));
    }
}

/// Shows a case as soon as it is measured, and how `auto` was planned.
pub fn tell_of(case: &CaseReport) {
    eprint!("{case}");
    plans(case).iter().for_each(|line| eprintln!("{line}"));
    eprintln!();
}

/// Who was planned by a table or without one, and whose times those are; however launched, once.
fn plans(case: &CaseReport) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for row in &case.rows {
        let line = format!("  {}: {}", row.who, row.what.replace('\n', "; "));
        if TABLED.iter().any(|who| who.name() == row.who) && !lines.contains(&line) {
            lines.push(line);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use overlap_gemm::plan::Problem;

    use super::super::report::{Kind, made_up};
    use super::*;

    #[test]
    fn each_plan_by_a_table_is_told_once_in_a_line() {
        let row = |who: &str| made_up::row(who, Kind::AllGatherGemm, &[1.0]);
        let mut held_out = row("auto-held-out");
        held_out.what = "Fused\nmodelled; timed as fused".into();
        let rows = vec![row("fused"), row("auto"), row("auto"), held_out];
        let problem = Problem::builder(64, 64, 64).ranks(2).build().unwrap();
        let told = plans(&CaseReport { name: "one".into(), rows, problem });
        let held_out = "  auto-held-out: Fused; modelled; timed as fused";
        assert_eq!(told, ["  auto: auto_kernel", held_out]);
    }
}
