//! The results as CSV: a line for each contender, case, launch and run, for spreadsheets and data frames.
//!
//! Invariant: every line has every column; what was not measured is empty. As RFC 4180 has it, text with a comma, a
//! quote or a line's end in it is quoted.

use std::io::{self, Write};

use overlap_gemm::plan::{BLayout, Scaling};

use super::super::statistics::Summary;
use super::Kind;
use super::compare::Comparison;

const COLUMNS: [&str; 33] = [
    "run",
    "program",
    "version",
    "gpu",
    "driver",
    "ranks",
    "case",
    "m",
    "n",
    "k",
    "a",
    "b",
    "d",
    "b_layout",
    "scaling",
    "who",
    "peer",
    "kind",
    "launch",
    "failed",
    "absent",
    "rounds",
    "median_us",
    "min_us",
    "max_us",
    "lower_quartile_us",
    "upper_quartile_us",
    "tflops",
    "gather_gbps",
    "over_gemm",
    "over_nccl_cublaslt",
    "efficiency",
    "host_us",
];

/// Writes all of it, with a head.
pub fn write(all: &Comparison<'_>, stream: &mut dyn Write) -> io::Result<()> {
    line(stream, COLUMNS.map(String::from))?;
    for case in &all.cases {
        let (problem, types) = (case.problem, case.problem.elements());
        for entry in &case.entries {
            let (run, row) = (&all.runs[entry.run], entry.row);
            let number =
                |value: Option<f64>| value.map_or(String::new(), |value| format!("{value:.4}"));
            let of = |part: fn(Summary) -> f64| number(entry.times.map(part));
            let gather = row.kind == Kind::AllGather;
            let rate = |here: bool, rate: &dyn Fn(f64) -> f64| {
                number(entry.median().filter(|_| here).map(rate))
            };
            let over = |under: Option<&_>| {
                number(under.and_then(|under| entry.over(under)).map(|figure| figure.value))
            };
            line(
                stream,
                [
                    (entry.run + 1).to_string(),
                    run.program.clone(),
                    run.version.clone(),
                    run.machine.gpu.clone(),
                    run.machine.driver.clone().unwrap_or_default(),
                    run.ranks.to_string(),
                    case.name.to_owned(),
                    problem.m().to_string(),
                    problem.n().to_string(),
                    problem.k().to_string(),
                    types.a.to_string(),
                    types.b.to_string(),
                    types.d.to_string(),
                    if problem.b_layout() == BLayout::Kn { "kn" } else { "nk" }.into(),
                    match problem.scaling() {
                        Scaling::None => "none",
                        Scaling::Tensor => "tensor",
                        Scaling::Rows => "rows",
                    }
                    .into(),
                    row.who.clone(),
                    row.peer.to_string(),
                    row.kind.name().into(),
                    row.launch().into(),
                    row.failed.clone().unwrap_or_default(),
                    row.absent.clone().unwrap_or_default(),
                    row.rounds_us.len().to_string(),
                    of(|times| times.median),
                    of(|times| times.min),
                    of(|times| times.max),
                    of(|times| times.lower_quartile),
                    of(|times| times.upper_quartile),
                    rate(!gather, &|us| case.teraflops(us)),
                    rate(gather, &|us| case.gigabytes(us)),
                    over(case.gemm(row.graph)),
                    over(case.nccl(row.graph)),
                    number(case.efficiency(entry).map(|figure| figure.value)),
                    number(Summary::of(&row.host_us).map(|host| host.median)),
                ],
            )?;
        }
    }
    Ok(())
}

fn line(stream: &mut dyn Write, fields: [String; COLUMNS.len()]) -> io::Result<()> {
    let quoted = fields.map(|field| match field.contains([',', '"', '\n', '\r']) {
        true => format!("\"{}\"", field.replace('"', "\"\"")),
        false => field,
    });
    write!(stream, "{}\r\n", quoted.join(","))
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{run, usual_case};
    use super::*;

    #[test]
    fn every_line_has_every_column() {
        let mut case = usual_case(1024);
        case.rows[5].failed = Some("off, by \"1\"".into());
        let runs = [run(vec![case, usual_case(64)])];
        let mut bytes = Vec::new();
        write(&Comparison::of(&runs), &mut bytes).unwrap();
        let text = String::from_utf8(bytes).unwrap();
        let lines: Vec<_> = text.split("\r\n").collect();
        assert_eq!(lines.len(), 1 + 16 + 1, "a head, the rows, and the end of the last");
        assert!(lines[0].starts_with("run,program,") && lines[0].ends_with(",host_us"));
        assert!(text.contains(",\"off, by \"\"1\"\"\",,0,,,,,,,,,,,"), "{text}");
        for line in lines[1..17].iter().filter(|line| !line.contains("off, by")) {
            assert_eq!(line.split(',').count(), COLUMNS.len(), "{line}");
        }
        let fused = lines.iter().find(|line| line.contains(",fused,")).unwrap();
        assert!(fused.contains(",1024,3584,8192,bf16,bf16,bf16,nk,none,fused,false,"), "{fused}");
        assert!(fused.contains("105.0000,102.9000,107.1000,"), "{fused}");
        assert!(fused.ends_with(",1.0500,0.7000,0.9000,"), "{fused}");
    }
}
