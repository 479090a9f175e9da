//! One line of the report: a state, what it is about, what was found, and what to do.
//!
//! Invariant: every missing thing has a remedy.

use std::io::{self, Write};

use anstyle::{AnsiColor, Style};
use serde::Serialize;

/// How things stand.
#[derive(Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// Here, and fit for use.
    Ok,
    /// Not here, or not fit for use. Something cannot be done.
    Missing,
    /// Worth knowing; everything can be done all the same.
    Note,
}

/// One thing that was looked at.
#[derive(Serialize)]
pub struct Finding {
    state: State,
    topic: &'static str,
    what: String,
    remedy: Option<String>,
    /// Whether this alone keeps GPUs from being used.
    keeps_gpus_out: bool,
}

impl Finding {
    /// It is here.
    pub fn ok(topic: &'static str, what: impl Into<String>) -> Self {
        Finding { state: State::Ok, topic, what: what.into(), remedy: None, keeps_gpus_out: false }
    }

    /// It is not, which `remedy` would change.
    pub fn missing(
        topic: &'static str,
        what: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Finding { state: State::Missing, remedy: Some(remedy.into()), ..Finding::ok(topic, what) }
    }

    /// Like `missing`, and no GPU can be used before it is mended.
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

    /// What could be done about a note.
    pub fn or(self, remedy: impl Into<String>) -> Self {
        Finding { remedy: Some(remedy.into()), ..self }
    }

    /// How things stand.
    pub fn state(&self) -> State {
        self.state
    }

    /// What it is about.
    pub fn topic(&self) -> &'static str {
        self.topic
    }

    /// What was found.
    pub fn what(&self) -> &str {
        &self.what
    }

    /// Whether this alone keeps GPUs from being used.
    pub fn keeps_gpus_out(&self) -> bool {
        self.keeps_gpus_out
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
