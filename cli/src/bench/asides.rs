//! What is said of `auto` beside the results, on stderr: tables that were refused, and by what each case was planned.
//!
//! Invariant: all of it stands in the results, too, where a table was looked into; a line each.

use overlap_gemm::tune::Tuning;

use super::gather::Gatherer;
use super::report::CaseReport;

/// Says which tables are not used, and why, if `auto` takes part, which looks into them.
#[cfg_attr(not(feature = "cuda"), allow(dead_code, reason = "threads have no tables"))]
pub fn tell_of_tables(contenders: &[Gatherer]) {
    if contenders.contains(&Gatherer::Auto) {
        Tuning::found().notes().iter().for_each(|note| eprintln!("{note}"));
    }
}

/// Shows a case as soon as it is measured, and how `auto` was planned.
pub fn tell_of(case: &CaseReport) {
    eprint!("{case}");
    plans(case).iter().for_each(|line| eprintln!("{line}"));
    eprintln!();
}

/// How `auto` was planned, and whose times those are; however launched, once.
fn plans(case: &CaseReport) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    for row in &case.rows {
        let line = format!("  {}: {}", row.who, row.what.replace('\n', "; "));
        if row.who == Gatherer::Auto.name() && !lines.contains(&line) {
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
        let mut twin = row("auto");
        twin.what = "Fused\nmodelled; timed as fused".into();
        let rows = vec![row("fused"), row("auto"), row("auto"), twin];
        let problem = Problem::builder(64, 64, 64).ranks(2).build().unwrap();
        let told = plans(&CaseReport { name: "one".into(), rows, problem });
        let twin = "  auto: Fused; modelled; timed as fused";
        assert_eq!(told, ["  auto: auto_kernel", twin]);
    }
}
