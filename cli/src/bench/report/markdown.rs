//! Results as parts of a Markdown document: a table with the wanted columns, or the ranges of figures.
//!
//! Invariant: a dash stands where nothing was measured, FAILED where the result was wrong. The same files and arguments
//! give the same text, because documents hold it (`cli/tests/numbers.rs`).

use std::fmt::{self, Write as _};

use clap::ValueEnum;

use super::columns::Column;
use super::{CaseReport, launch_name};
use crate::exit::Failure;
use crate::statistics::{Summary, geometric_mean, median};

/// More problems are counted, not named.
const NAMED: usize = 5;

/// Print a part of a document.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct MarkdownArgs {
    /// Print Markdown: a table, or ranges
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "json", requires = "columns")]
    markdown: Option<Part>,

    /// Columns of the Markdown output: times, ratios and overlap efficiencies, such as auto,auto/gemm,auto:E
    #[arg(
        long,
        value_name = "FIGURE,...",
        value_delimiter = ',',
        requires = "markdown",
        long_help = "Columns of the Markdown output: times of contenders (auto), ratios of two times (auto/gemm; with a bar: auto/gemm@1.03) and \
                     overlap efficiencies (auto:E). Beside the contenders' names there are gemm (the fastest plain GEMM, \
                     its inputs already there), peer (the fastest of other programs) and strategy (the fastest of \
                     sequential, pipelined and fused, where all have times)"
    )]
    columns: Vec<Column>,
}

/// What a document can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A line for each problem and launch
    Table,
    /// The least, the greatest and the median of each figure
    Ranges,
}

/// A line of the table: a problem, and whether it was launched by graphs.
type Line<'a> = (&'a CaseReport, bool);

impl MarkdownArgs {
    /// The text, if any was asked for.
    pub fn text(&self, cases: &[&CaseReport]) -> Result<Option<String>, Failure> {
        let Some(part) = self.markdown else { return Ok(None) };
        if let Some(why) = self.columns.iter().find_map(|column| column.unknown(cases)) {
            return Err(Failure::Usage(format!("--columns: {why}")));
        }
        let shown = Shown { cases, lines: lines(cases), columns: &self.columns };
        let mut text = String::new();
        let written = match part {
            Part::Table => shown.table(&mut text),
            Part::Ranges => shown.ranges(&mut text),
        };
        written.expect("a string takes everything");
        Ok(Some(text))
    }
}

/// Every problem, launched in each way that it was.
fn lines<'a>(cases: &[&'a CaseReport]) -> Vec<Line<'a>> {
    let launched = |(case, graph): &Line<'_>| case.rows.iter().any(|row| row.graph == *graph);
    cases.iter().flat_map(|&case| [(case, false), (case, true)]).filter(launched).collect()
}

struct Shown<'a> {
    cases: &'a [&'a CaseReport],
    lines: Vec<Line<'a>>,
    columns: &'a [Column],
}

impl Shown<'_> {
    fn table(&self, text: &mut String) -> fmt::Result {
        // A launch that is the same everywhere needs no column.
        let several = self.lines.iter().any(|(_, graph)| *graph != self.lines[0].1);
        text.push_str(if several { "| M × N × K | launch |" } else { "| M × N × K |" });
        for column in self.columns {
            write!(text, " {} |", column.heading(self.cases))?;
        }
        let words = 1 + usize::from(several);
        writeln!(text, "\n|{}{}", " --- |".repeat(words), " ---: |".repeat(self.columns.len()))?;
        for &(case, graph) in &self.lines {
            write!(text, "| {} |", case.name)?;
            if several {
                write!(text, " {} |", launch_name(graph))?;
            }
            for column in self.columns {
                write!(text, " {} |", column.text(case, graph, 3))?;
            }
            text.push('\n');
        }
        self.caption(text)
    }

    /// What the numbers of a table are, where ratios stand beside times, and how far from a ratio its rounds were.
    fn caption(&self, text: &mut String) -> fmt::Result {
        let far = |column: &Column, (case, graph): Line<'_>| {
            let Summary { median, min, max, .. } = Summary::of(&column.rounds(case, graph))?;
            Some(100.0 * (max - median).max(median - min) / median)
        };
        let ratios = self.columns.iter().filter(|column| column.is_ratio());
        let all =
            ratios.flat_map(|column| self.lines.iter().filter_map(move |&line| far(column, line)));
        match all.reduce(f64::max) {
            Some(far) if !self.columns.iter().all(Column::is_ratio) => writeln!(
                text,
                "\nTimes in µs, medians of the rounds; a ratio is the median of the rounds' ratios, not the quotient of the \
                 times beside it; every round is within {far:.0} % of it."
            ),
            _ => Ok(()),
        }
    }

    /// The problems that have a figure: by name, or how many.
    fn problems(&self) -> Option<String> {
        let has = |case: &CaseReport| {
            let figure = |column: &Column| {
                [false, true].iter().any(|&graph| !column.rounds(case, graph).is_empty())
            };
            self.columns.iter().any(figure)
        };
        let cases: Vec<_> = self.cases.iter().filter(|case| has(case)).collect();
        let rows = || cases.iter().map(|case| case.problem.m());
        let (least, most) = (rows().min()?, rows().max()?);
        Some(match cases.len() {
            ..=NAMED => cases.iter().map(|case| &*case.name).collect::<Vec<_>>().join(", "),
            all if least == most => format!("{all} problems of {least} rows"),
            all => format!("{all} problems of {least} to {most} rows"),
        })
    }

    fn ranges(&self, text: &mut String) -> fmt::Result {
        let Some(problems) = self.problems() else { return Ok(()) };
        let has = |wanted: bool| self.lines.iter().any(|&(_, graph)| graph == wanted);
        let launches = match (has(false), has(true)) {
            (true, true) => "plain and in graphs",
            (false, true) => "in graphs",
            _ => "plain",
        };
        writeln!(text, "{problems}, {launches}:\n")?;
        for column in self.columns {
            let figures =
                self.lines.iter().filter_map(|&(case, graph)| median(&column.rounds(case, graph)));
            let figures: Vec<f64> = figures.collect();
            write!(text, "- {}: ", column.heading(self.cases))?;
            let Some(Summary { min, max, median, .. }) = Summary::of(&figures) else {
                writeln!(text, "–")?;
                continue;
            };
            let [min, max, median] = [min, max, median].map(|value| column.written(value, 2));
            write!(text, "{min} to {max}, median {median}")?;
            if let Some(mean) = geometric_mean(&figures).filter(|_| column.is_ratio()) {
                write!(text, ", geometric mean {}", column.written(mean, 2))?;
            }
            let count = |fits: &dyn Fn(&&f64) -> bool| figures.iter().filter(fits).count();
            let all = figures.len();
            match column.bar {
                Some(bar) => write!(text, "; met in {} of {all}", count(&|value| **value <= bar))?,
                None if column.is_ratio() => {
                    write!(text, "; below 1 in {} of {all}", count(&|value| **value < 1.0))?;
                }
                None => {}
            }
            text.push('\n');
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::super::made_up::usual_case;
    use super::*;

    fn shown(part: Part, columns: &str, cases: &[CaseReport]) -> Result<String, String> {
        let columns = columns.split(',').map(|column| column.parse().unwrap());
        let args = MarkdownArgs { markdown: Some(part), columns: columns.collect() };
        let cases: Vec<&CaseReport> = cases.iter().collect();
        let text = args.text(&cases).map_err(|failure| failure.to_string())?;
        Ok(text.expect("it was asked for"))
    }

    /// One problem in graphs, one launched both ways.
    fn cases() -> Vec<CaseReport> {
        let mut both = usual_case(64);
        let plain = usual_case(32).rows.into_iter().map(|mut row| {
            row.graph = false;
            row
        });
        both.rows.extend(plain);
        vec![usual_case(1024), both]
    }

    #[test]
    fn a_table_has_the_wanted_columns() {
        let text = shown(Part::Table, "gemm,torch-native,fused/gemm,fused:E", &cases()).unwrap();
        let expected = "\
| M × N × K | launch | T_gemm | torch-native | fused ÷ T_gemm | E of fused |
| --- | --- | ---: | ---: | ---: | ---: |
| 1024×3584×8192 bf16 | graph | 100.0 | FAILED | 1.050 | 90 % |
| 64×3584×8192 bf16 | plain | 3.1 | FAILED | 1.050 | 90 % |
| 64×3584×8192 bf16 | graph | 6.2 | FAILED | 1.050 | 90 % |

Times in µs, medians of the rounds; a ratio is the median of the rounds' ratios, not the quotient of the times beside it; every round is within 0 % of it.
";
        assert_eq!(text, expected);
        let text = shown(Part::Table, "own", &[usual_case(1024)]).unwrap();
        assert!(text.starts_with("| M × N × K | own |\n| --- | ---: |\n"), "{text}");
    }

    #[test]
    fn ranges_are_of_all_problems_and_launches() {
        let mut cases = cases();
        // The fused step of one problem is slower than NCCL and cuBLASLt.
        let fused = cases[0].rows.iter_mut().find(|row| row.who == "fused").unwrap();
        fused.rounds_us = vec![165.0, 165.0 * 1.02, 165.0 * 0.98];
        let columns =
            "fused/nccl-cublaslt,fused/gemm,fused/gemm@1.1,fused,torch-native/gemm,fused:E";
        let text = shown(Part::Ranges, columns, &cases).unwrap();
        let expected = "\
1024×3584×8192 bf16, 64×3584×8192 bf16, plain and in graphs:

- fused ÷ (NCCL + cuBLASLt): 0.70 to 1.10, median 0.70, geometric mean 0.81; below 1 in 2 of 3
- fused ÷ T_gemm: 1.05 to 1.65, median 1.05, geometric mean 1.22; below 1 in 0 of 3
- fused ÷ T_gemm, bar 1.1: 1.05 to 1.65, median 1.05, geometric mean 1.22; met in 2 of 3
- fused: 3.3 to 165.0, median 6.6
- torch-native ÷ T_gemm: –
- E of fused: -30 % to 90 %, median 90 %
";
        assert_eq!(text, expected);
        let several: Vec<_> = (5..11).map(|power| usual_case(1 << power)).collect();
        let text = shown(Part::Ranges, "own", &several).unwrap();
        assert!(text.starts_with("6 problems of 32 to 1024 rows, in graphs:\n"), "{text}");
        // A problem without a figure is not counted.
        let mut cases = [usual_case(1024), usual_case(64)];
        cases[0].rows.retain(|row| row.who != "own");
        let text = shown(Part::Ranges, "own", &cases).unwrap();
        assert!(text.starts_with("64×3584×8192 bf16, in graphs:\n"), "{text}");
    }

    #[test]
    fn nothing_measured_is_no_panic() {
        assert_eq!(
            shown(Part::Table, "gemm", &[]).unwrap(),
            "| M × N × K | T_gemm |\n| --- | ---: |\n"
        );
        assert_eq!(shown(Part::Ranges, "gemm", &[]).unwrap(), "");
        let why = shown(Part::Table, "fsued/gemm", &cases()).unwrap_err();
        assert!(why.starts_with("--columns: no contender is called 'fsued'"), "{why}");
        assert!(MarkdownArgs::default().text(&[]).unwrap().is_none());
    }
}
