//! What results can be written as, beside the table and the JSON document: CSV and a picture.
//!
//! Invariant: as in `output`, every file is open before the work begins, and keeps what it holds until there is
//! something to replace it with.

use std::path::PathBuf;

use super::super::wanted::Launch;
use super::Run;
use super::compare::Comparison;
use super::csv;
use super::pictures::{Drawn, nobody, time_against_m};
use crate::exit::Failure;
use crate::output::{Named, Target};

/// Which of them, and where to.
#[derive(Clone, Debug, Default, clap::Args)]
pub struct FormatArgs {
    /// Write a line for each contender and case into this file, as CSV
    #[arg(long, value_name = "FILE")]
    csv: Option<PathBuf>,

    /// Draw time against M into this file, as SVG
    #[arg(long, value_name = "FILE")]
    plot: Option<PathBuf>,

    /// Which loops --plot shows [default: graph, if there are any]
    #[arg(long, value_enum, value_name = "LAUNCH", requires = "plot")]
    plot_launch: Option<Launch>,

    /// Who is drawn [default: everybody who gathers and multiplies]
    #[arg(long, value_name = "NAME,...", value_delimiter = ',')]
    draw: Vec<String>,
}

/// The same with the files open.
pub struct Formats {
    csv: Option<Target>,
    plot: Option<Target>,
    args: FormatArgs,
}

impl FormatArgs {
    /// An error if a contender to be drawn is none of these: before hours are spent on the others.
    pub fn check_drawn(&self, names: &[&str]) -> Result<(), Failure> {
        match self.draw.iter().find(|name| !names.contains(&name.as_str())) {
            Some(name) => Err(Failure::Usage(format!("--draw: {}", nobody(name, names)))),
            None => Ok(()),
        }
    }

    /// The files by their options.
    pub fn named(&self) -> [Named<'_>; 2] {
        [("--csv", &self.csv), ("--plot", &self.plot)]
            .map(|(option, path)| (option, path.as_deref()))
    }

    /// Opens the files that were named.
    pub fn open(&self) -> Result<Formats, Failure> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(Target::open).transpose();
        Ok(Formats { csv: open(&self.csv)?, plot: open(&self.plot)?, args: self.clone() })
    }
}

impl Formats {
    /// Writes all that was asked for.
    pub fn write(self, all: &Comparison<'_>) -> Result<(), Failure> {
        let Formats { csv, plot, args } = self;
        if let Some(mut csv) = csv {
            csv.write(|file| csv::write(all, file))?;
        }
        let drawn = Drawn { only: &args.draw };
        if let Some(why) = drawn.unknown(all) {
            return Err(Failure::Usage(format!("--draw: {why}")));
        }
        if let Some(mut plot) = plot {
            let rows =
                || all.runs.iter().flat_map(|run: &Run| &run.cases).flat_map(|case| &case.rows);
            let graph = match args.plot_launch {
                Some(launch) => launch == Launch::Graph,
                None => rows().any(|row| row.graph),
            };
            let picture = time_against_m(all, &drawn, graph);
            plot.write(|file| file.write_all(picture.as_bytes()))?;
        }
        Ok(())
    }
}
