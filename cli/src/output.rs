//! The output of a command: text or JSON on stdout, JSON into a file, and a picture into another.
//!
//! Invariants: with `--json` stdout holds exactly one JSON document. A file is opened before the work begins, so that a typo
//! in its path costs no hours of work, and keeps its content until the first result replaces it. Long work writes partial
//! results there. A reader of stdout that stops early (`| head`) is no error.

use std::fs::{File, OpenOptions};
use std::io::{self, BufWriter, Seek, Write};
use std::path::{Path, PathBuf};

use serde::Serialize;

use crate::exit::Failure;

/// The arguments of the output.
#[derive(clap::Args)]
pub struct OutputArgs {
    /// Print one JSON document instead of text
    #[arg(long)]
    json: bool,

    /// Write the JSON document to this file as well
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,
}

impl OutputArgs {
    /// Opens the file, if one was named.
    pub fn open(&self) -> Result<Output, Failure> {
        let file = self.output.as_deref().map(Target::open).transpose()?;
        Ok(Output { json: self.json, file })
    }
}

/// The arguments of the output of a command that draws a step.
#[derive(clap::Args)]
pub struct DrawnArgs {
    /// Draw the step into this file, as SVG
    #[arg(long, value_name = "FILE")]
    svg: Option<PathBuf>,

    #[command(flatten)]
    output: OutputArgs,
}

impl DrawnArgs {
    /// Opens the files that were named.
    pub fn open(&self) -> Result<(Output, Picture), Failure> {
        let picture = Picture(self.svg.as_deref().map(Target::open).transpose()?);
        Ok((self.output.open()?, picture))
    }
}

/// Where a picture is drawn, if it is wanted.
pub struct Picture(Option<Target>);

impl Picture {
    /// Draws it.
    pub fn write(self, draw: impl FnOnce() -> String) -> Result<(), Failure> {
        let Some(mut file) = self.0 else { return Ok(()) };
        let picture = draw();
        file.write(|file| file.write_all(picture.as_bytes()))
    }
}

/// An open file that keeps its content until it is written.
struct Target {
    name: String,
    file: File,
}

impl Target {
    /// Opens it and leaves its content.
    fn open(path: &Path) -> Result<Target, Failure> {
        let name = path.display().to_string();
        // Truncated when it is written, not before.
        match OpenOptions::new().write(true).create(true).truncate(false).open(path) {
            Ok(file) => Ok(Target { name, file }),
            Err(source) => Err(Failure::Write { target: name, source }),
        }
    }

    /// Replaces its content.
    fn write(
        &mut self,
        content: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        let write = || {
            // Pipes and devices have no length to set, and nowhere to go back to.
            if self.is_file()? {
                self.file.set_len(0)?;
                self.file.rewind()?;
            }
            let mut stream = BufWriter::new(&mut self.file);
            content(&mut stream)?;
            stream.flush()
        };
        write().map_err(|source| Failure::Write { target: self.name.clone(), source })
    }

    /// Whether it can be written more than once.
    fn is_file(&self) -> io::Result<bool> {
        Ok(self.file.metadata()?.is_file())
    }
}

/// The output of one command.
pub struct Output {
    json: bool,
    file: Option<Target>,
}

impl Output {
    /// To stdout alone.
    pub fn to_stdout(json: bool) -> Output {
        Output { json, file: None }
    }

    /// Whether stdout is for a machine.
    pub fn json(&self) -> bool {
        self.json
    }

    /// Writes a partial result into the file, in case the process is killed; the next one replaces it. Pipes get the final
    /// result alone.
    pub fn keep(&mut self, value: &impl Serialize) -> Result<(), Failure> {
        match self.file.as_mut().filter(|file| file.is_file().unwrap_or(false)) {
            Some(file) => file.write(|stream| write_json(stream, value)),
            None => Ok(()),
        }
    }

    /// Writes the result: `value` as JSON, `text` as text, each where it was asked for.
    pub fn write(
        self,
        value: &impl Serialize,
        text: impl FnOnce(&mut dyn Write) -> io::Result<()>,
    ) -> Result<(), Failure> {
        if let Some(mut file) = self.file {
            file.write(|stream| write_json(stream, value))?;
        }
        let written = match self.json {
            true => write_json(io::stdout().lock(), value),
            false => {
                let mut stdout = BufWriter::new(anstream::stdout().lock());
                text(&mut stdout).and_then(|()| stdout.flush())
            }
        };
        to_stdout(written)
    }
}

/// The outcome of writing to stdout.
pub fn to_stdout(written: io::Result<()>) -> Result<(), Failure> {
    match written {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        Err(source) => Err(Failure::Write { target: "to stdout".into(), source }),
        Ok(()) => Ok(()),
    }
}

fn write_json(stream: impl Write, value: &impl Serialize) -> io::Result<()> {
    let mut stream = BufWriter::new(stream);
    serde_json::to_writer(&mut stream, value)?;
    stream.write_all(b"\n")?;
    stream.flush()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn what_comes_later_replaces_what_was_kept() {
        let path = std::env::temp_dir().join(format!("overlap-gemm-kept-{}", std::process::id()));
        fs::write(&path, "of before").unwrap();
        let arguments = OutputArgs { json: false, output: Some(path.clone()) };
        let mut output = arguments.open().unwrap();
        let holds = |content: &str| assert_eq!(fs::read_to_string(&path).unwrap(), content);
        holds("of before");
        output.keep(&["the first", "the second"]).unwrap();
        holds("[\"the first\",\"the second\"]\n");
        output.keep(&["less"]).unwrap();
        holds("[\"less\"]\n");
        output.write(&["all"], |_| Ok(())).unwrap();
        holds("[\"all\"]\n");
        fs::remove_file(&path).unwrap();
    }
}
