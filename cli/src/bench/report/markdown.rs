//! The results as parts of a Markdown document: a table with the columns that are wanted, or the ranges of figures.
//!
//! Invariant: as in `table`: what was not measured is a dash, a wrong result is FAILED, figures across runs have a ~. The
//! same files and arguments give the same text, for documents hold it (`cli/tests/numbers.rs`).

use std::fmt::{self, Write as _};

use clap::ValueEnum;

use super::super::statistics::Summary;
use super::columns::Column;
use super::compare::{Comparison, Figure};
use super::launch_name;
use crate::exit::Failure;

/// What is shown where nobody said it, as far as anybody has it.
const USUAL: &str = "gemm,own,nccl-cublaslt,peer,sequential,pipelined,fused,auto,fused/gemm,auto/gemm,\
                     auto/nccl-cublaslt,auto/peer,auto:E";

/// More problems are counted, not named.
const NAMED: usize = 5;

/// Print a part of a document.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct MarkdownArgs {
    /// Print this as Markdown instead, for a document
    #[arg(long, value_enum, value_name = "WHAT", conflicts_with = "json")]
    markdown: Option<Part>,

    /// Its figures: contenders (gemm, peer, strategy: the fastest of a kind), ratios of two, E of one
    #[arg(
        long,
        value_name = "FIGURE,...",
        value_delimiter = ',',
        requires = "markdown",
        long_help = "Its figures: contenders by name, or gemm (the fastest plain GEMM with A already gathered), peer (the \
                     fastest of other programs), strategy (the fastest of sequential, pipelined and fused, where all \
                     took part); ratios of two, such as auto/gemm, or auto/gemm@1.03 with a bar; overlap efficiencies, such as auto:E [default: all \
                     that there are of the usual ones]"
    )]
    columns: Vec<Column>,
}

/// What a document can hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Part {
    /// A line for each problem and launch
    Table,
    /// The least and the greatest of each figure
    Ranges,
}

impl MarkdownArgs {
    /// The text, if any was asked for.
    pub fn text(&self, all: &Comparison<'_>) -> Result<Option<String>, Failure> {
        let Some(part) = self.markdown else { return Ok(None) };
        if let Some(why) = self.columns.iter().find_map(|column| column.unknown(all)) {
            return Err(Failure::Usage(format!("--columns: {why}")));
        }
        let mut columns = self.columns.clone();
        if columns.is_empty() {
            let usual = USUAL.split(',').map(|name| name.parse().expect("a column"));
            columns = usual.collect::<Vec<Column>>();
            columns.retain(|column| !figures(all, column).is_empty());
        }
        let mut text = String::new();
        let written = match part {
            Part::Table => table(all, &columns, &mut text),
            Part::Ranges => ranges(all, &columns, &mut text),
        };
        written.expect("a string takes everything");
        Ok(Some(text))
    }
}

/// The places in the table: every problem, launched in each way that it was.
fn lines(all: &Comparison<'_>) -> Vec<(usize, bool)> {
    let launched = |nth: usize, graph: bool| {
        all.cases[nth].entries.iter().any(|entry| entry.row.graph == graph)
    };
    let places = (0..all.cases.len()).flat_map(|nth| [(nth, false), (nth, true)]);
    places.filter(|&(nth, graph)| launched(nth, graph)).collect()
}

/// All that there are of a figure.
fn figures(all: &Comparison<'_>, column: &Column) -> Vec<Figure> {
    let lines = lines(all).into_iter();
    lines.filter_map(|(nth, graph)| column.figure(&all.cases[nth], graph)).collect()
}

/// How the launches are called in a sentence.
fn launches(all: &Comparison<'_>) -> &'static str {
    let has = |wanted: bool| lines(all).iter().any(|&(_, graph)| graph == wanted);
    match (has(false), has(true)) {
        (true, true) => "plain and in graphs",
        (false, true) => "in graphs",
        _ => "plain",
    }
}

fn table(all: &Comparison<'_>, columns: &[Column], text: &mut String) -> fmt::Result {
    let lines = lines(all);
    // One that is the same everywhere needs no column.
    let several = lines.iter().any(|(_, graph)| *graph != lines[0].1);
    let setups = all.setups.len() > 1;
    text.push_str(if setups { "| GPUs | M × N × K |" } else { "| M × N × K |" });
    text.push_str(if several { " launch |" } else { "" });
    for column in columns {
        write!(text, " {} |", column.heading(all))?;
    }
    let words = 1 + usize::from(setups) + usize::from(several);
    writeln!(text, "\n|{}{}", " --- |".repeat(words), " ---: |".repeat(columns.len()))?;
    for (nth, graph) in lines {
        let case = &all.cases[nth];
        if setups {
            write!(text, "| {} ", all.setups[case.setup])?;
        }
        write!(text, "| {} |", case.name)?;
        if several {
            write!(text, " {} |", launch_name(graph))?;
        }
        for column in columns {
            write!(text, " {} |", column.text(case, graph, 3))?;
        }
        text.push('\n');
    }
    caption(all, columns, text)
}

/// What the numbers of a table are, where ratios stand beside times, and how far from them rounds were.
fn caption(all: &Comparison<'_>, columns: &[Column], text: &mut String) -> fmt::Result {
    let ratios = columns.iter().filter(|column| column.is_ratio());
    let figures: Vec<Figure> = ratios.flat_map(|column| figures(all, column)).collect();
    if figures.is_empty() || columns.iter().all(Column::is_ratio) {
        return Ok(());
    }
    let far = figures.iter().filter_map(|&Figure { value, range, .. }| {
        let (least, most) = range?;
        Some(100.0 * (most - value).max(value - least) / value)
    });
    write!(text, "\nTimes in µs, medians of the rounds; ")?;
    match far.reduce(f64::max) {
        Some(far) => writeln!(
            text,
            "a ratio is the median of the rounds' ratios, not the quotient of the times beside it: no round's is more than \
             {far:.0} % from it."
        ),
        None => writeln!(text, "~: a ratio of medians, between runs."),
    }
}

/// Of what the ranges are: by name, or how many.
fn problems(all: &Comparison<'_>, columns: &[Column]) -> Option<String> {
    let mut shown: Vec<usize> = lines(all)
        .into_iter()
        .filter(|&(nth, graph)| {
            columns.iter().any(|column| column.figure(&all.cases[nth], graph).is_some())
        })
        .map(|(nth, _)| nth)
        .collect();
    shown.dedup();
    let cases = || shown.iter().map(|&nth| &all.cases[nth]);
    let rows = || cases().map(|case| case.problem.m());
    let (least, most) = (rows().min()?, rows().max()?);
    Some(match shown.len() {
        ..=NAMED => cases().map(|case| case.name).collect::<Vec<_>>().join(", "),
        all if least == most => format!("{all} problems of {least} rows"),
        all => format!("{all} problems of {least} to {most} rows"),
    })
}

fn ranges(all: &Comparison<'_>, columns: &[Column], text: &mut String) -> fmt::Result {
    let Some(problems) = problems(all, columns) else { return Ok(()) };
    writeln!(text, "{problems}, {}:\n", launches(all))?;
    for column in columns {
        let figures = figures(all, column);
        let values: Vec<f64> = figures.iter().map(|figure| figure.value).collect();
        write!(text, "- {}: ", column.heading(all))?;
        let Some(Summary { min, max, median, .. }) = Summary::of(&values) else {
            writeln!(text, "–")?;
            continue;
        };
        let paired = figures.iter().all(|figure| figure.paired);
        let [min, max, median] = [min, max, median]
            .map(|value| column.written(Figure { value, paired, range: None }, 2));
        write!(text, "{min} to {max}, median {median}")?;
        let (all, count) = (values.len(), |met: &dyn Fn(f64) -> bool| {
            values.iter().filter(|value| met(**value)).count()
        });
        match column.bar {
            Some(bar) => write!(text, "; met in {} of {all}", count(&|value| value <= bar))?,
            None if column.is_ratio() => {
                write!(text, "; below 1 in {} of {all}", count(&|value| value < 1.0))?;
            }
            None => {}
        }
        text.push('\n');
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::made_up::{case, row, run, usual_case};
    use super::super::{Kind, Run};
    use super::*;

    fn shown(part: Part, columns: &str, runs: &[Run]) -> Result<String, String> {
        let columns = columns.split_terminator(',').map(|column| column.parse().unwrap());
        let args = MarkdownArgs { markdown: Some(part), columns: columns.collect() };
        let text = args.text(&Comparison::of(runs)).map_err(|failure| failure.to_string())?;
        Ok(text.expect("it was asked for"))
    }

    /// One problem in graphs, one launched both ways.
    fn runs() -> Vec<Run> {
        let mut both = usual_case(64);
        let plain = usual_case(32).rows.into_iter().map(|mut row| {
            row.graph = false;
            row
        });
        both.rows.extend(plain);
        vec![run(vec![usual_case(1024), both])]
    }

    #[test]
    fn a_table_has_the_columns_that_are_wanted() {
        let text = shown(Part::Table, "gemm,torch-native,fused/gemm,fused:E", &runs()).unwrap();
        let expected = "\
| M × N × K | launch | T_gemm | torch-native | fused ÷ T_gemm | E of fused |
| --- | --- | ---: | ---: | ---: | ---: |
| 1024×3584×8192 bf16 | graph | 100.0 | FAILED | 1.050 | 90 % |
| 64×3584×8192 bf16 | plain | 3.1 | FAILED | 1.050 | 90 % |
| 64×3584×8192 bf16 | graph | 6.2 | FAILED | 1.050 | 90 % |

Times in µs, medians of the rounds; a ratio is the median of the rounds' ratios, not the quotient of the times beside it: no round's is more than 0 % from it.
";
        assert_eq!(text, expected);
        let text = shown(Part::Table, "own", &[run(vec![usual_case(1024)])]).unwrap();
        assert!(text.starts_with("| M × N × K | own |\n| --- | ---: |\n"), "{text}");
    }

    #[test]
    fn the_usual_columns_are_those_that_somebody_has() {
        let text = shown(Part::Table, "", &runs()).unwrap();
        let head = "| M × N × K | launch | T_gemm | own | NCCL + cuBLASLt | best PyTorch | fused | fused ÷ T_gemm |\n";
        assert!(text.starts_with(head), "{text}");
    }

    #[test]
    fn ranges_are_of_all_problems_and_launches() {
        let mut runs = runs();
        // The fused product of one problem is slower than NCCL and cuBLASLt.
        let fused = runs[0].cases[0].rows.iter_mut().find(|row| row.who == "fused").unwrap();
        fused.rounds_us = vec![165.0, 165.0 * 1.02, 165.0 * 0.98];
        let columns =
            "fused/nccl-cublaslt,fused/gemm,fused/gemm@1.1,fused,torch-native/gemm,fused:E";
        let text = shown(Part::Ranges, columns, &runs).unwrap();
        let expected = "\
1024×3584×8192 bf16, 64×3584×8192 bf16, plain and in graphs:

- fused ÷ (NCCL + cuBLASLt): 0.70 to 1.10, median 0.70; below 1 in 2 of 3
- fused ÷ T_gemm: 1.05 to 1.65, median 1.05; below 1 in 0 of 3
- fused ÷ T_gemm, bar 1.1: 1.05 to 1.65, median 1.05; met in 2 of 3
- fused: 3.3 to 165.0, median 6.6
- torch-native ÷ T_gemm: –
- E of fused: -30 % to 90 %, median 90 %
";
        assert_eq!(text, expected);
        let several = (5..11).map(|power| usual_case(1 << power));
        let text = shown(Part::Ranges, "own", &[run(several.collect())]).unwrap();
        assert!(text.starts_with("6 problems of 32 to 1024 rows, in graphs:\n"), "{text}");
        // Whoever has no figure is not counted.
        let mut runs = [run(vec![usual_case(1024), usual_case(64)])];
        runs[0].cases[0].rows.retain(|row| row.who != "own");
        let text = shown(Part::Ranges, "own", &runs).unwrap();
        assert!(text.starts_with("64×3584×8192 bf16, in graphs:\n"), "{text}");
    }

    #[test]
    fn figures_across_runs_are_marked() {
        let peers = case(1024, vec![row("torch-new", Kind::AllGatherGemm, &[90.0, 99.0, 120.0])]);
        let runs = [run(vec![usual_case(1024)]), run(vec![peers])];
        let of = |part| shown(part, "fused/peer", &runs).unwrap();
        assert!(of(Part::Table).contains("| ~1.061 |"), "{}", of(Part::Table));
        assert!(of(Part::Ranges).contains("~1.06 to ~1.06"), "{}", of(Part::Ranges));
    }

    #[test]
    fn nobody_and_nothing_is_no_panic() {
        assert_eq!(shown(Part::Table, "", &[]).unwrap(), "| M × N × K |\n| --- |\n");
        assert_eq!(shown(Part::Ranges, "gemm", &[]).unwrap(), "");
        let why = shown(Part::Table, "fsued/gemm", &runs()).unwrap_err();
        assert!(why.starts_with("--columns: nobody is called 'fsued'"), "{why}");
        assert!(MarkdownArgs::default().text(&Comparison::of(&[])).unwrap().is_none());
    }
}
