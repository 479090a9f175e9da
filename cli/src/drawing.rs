//! The files that a step is drawn into: an SVG and trace events.
//!
//! Invariant: as in `output`, a file is opened before the work begins, and keeps its content until it is written.

use std::path::PathBuf;

use overlap_gemm::trace::{SideBySide, Timeline};

use crate::exit::Failure;
use crate::output::{Named, Target};

/// The arguments of the drawing.
#[derive(clap::Args)]
pub struct DrawingArgs {
    /// Draw a step into this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    /// Write a step into this file as trace events, for ui.perfetto.dev
    #[arg(long, value_name = "FILE")]
    events: Option<PathBuf>,
}

impl DrawingArgs {
    /// The files by their options.
    pub fn named(&self) -> [Named<'_>; 2] {
        [("--svg", self.svg.as_deref()), ("--events", self.events.as_deref())]
    }

    /// Opens the files that were named.
    pub fn open(&self) -> Result<Drawing, Failure> {
        let open = |path: &Option<PathBuf>| path.as_deref().map(Target::open).transpose();
        Ok(Drawing { svg: open(&self.svg)?, events: open(&self.events)? })
    }
}

/// The files, open.
#[derive(Default)]
pub struct Drawing {
    svg: Option<Target>,
    events: Option<Target>,
}

impl Drawing {
    /// Draws a step into the named files.
    pub fn write(self, title: &str, step: &Timeline) -> Result<(), Failure> {
        self.write_all(|| step.to_svg(title), || step.to_trace_events())
    }

    /// The same for several timelines of one step.
    pub fn write_beside(self, title: &str, steps: &SideBySide<'_>) -> Result<(), Failure> {
        self.write_all(|| steps.to_svg(title), || steps.to_trace_events())
    }

    fn write_all(
        self,
        picture: impl FnOnce() -> String,
        events: impl FnOnce() -> String,
    ) -> Result<(), Failure> {
        if let Some(mut file) = self.svg {
            let picture = picture();
            file.write(|file| file.write_all(picture.as_bytes()))?;
        }
        if let Some(mut file) = self.events {
            let events = events();
            file.write(|file| file.write_all(events.as_bytes()))?;
        }
        Ok(())
    }
}
