//! One line of the report: a state, a topic, the finding and the remedy.
//!
//! Invariant: every missing thing has a remedy.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

/// The state of a thing.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Here and usable.
    Ok,
    /// Not here, or not usable: something cannot be done.
    Missing,
    /// Worth knowing; everything can be done all the same.
    Note,
}

/// One thing that the doctor examined.
#[derive(Serialize)]
pub struct Finding {
    pub state: State,
    pub topic: &'static str,
    pub what: String,
    remedy: Option<String>,
    /// Whether this alone keeps GPUs from being used.
    pub keeps_gpus_out: bool,
}

impl Finding {
    /// It is here.
    pub fn ok(topic: &'static str, what: impl Into<String>) -> Self {
        Finding { state: State::Ok, topic, what: what.into(), remedy: None, keeps_gpus_out: false }
    }

    /// It is missing, which `remedy` would change.
    pub fn missing(
        topic: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding { state: State::Missing, remedy: Some(remedy.into()), ..Finding::ok(topic, what) }
    }

    /// Like `missing`, and no GPU can be used before it is repaired.
    pub fn blocking(
        topic: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding { keeps_gpus_out: true, ..Finding::missing(topic, what, remedy) }
    }

    /// Worth knowing.
    pub fn note(topic: &'static str, what: impl Into<String>) -> Self {
        Finding { state: State::Note, ..Finding::ok(topic, what) }
    }

    /// The remedy of a note.
    pub fn or(self, remedy: impl Into<String>) -> Self {
        Finding { remedy: Some(remedy.into()), ..self }
    }

    /// One line, and one for the remedy; topics are `width` wide.
    pub fn write_text(&self, stdout: &mut dyn Write, width: usize) -> io::Result<()> {
        let (name, colour) = match self.state {
            State::Ok => ("ok", AnsiColor::Green),
            State::Missing => ("missing", AnsiColor::Red),
            State::Note => ("note", AnsiColor::Yellow),
        };
        let style = Style::new().fg_color(Some(colour.into()));
        let Finding { topic, what, .. } = self;
        writeln!(stdout, "  {style}{name:<7}{style:#}  {topic:<width$}  {what}")?;
        for (number, line) in self.remedy.iter().flat_map(|remedy| remedy.lines().enumerate()) {
            let mark = if number == 0 { "→" } else { " " };
            writeln!(stdout, "  {:7}  {:width$}  {mark} {line}", "", "")?;
        }
        Ok(())
    }
}
