//! Progress bars.
//!
//! Invariant: a bar appears on stderr, only if that is a terminal (indicatif checks it) and without `--json`.

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use crate::output::Output;

/// A bar over `len` steps of `what`; advance it with `inc`, end it with `finish_and_clear`.
pub fn bar(len: u64, what: &'static str, output: &Output) -> ProgressBar {
    let target = match output.json() {
        true => ProgressDrawTarget::hidden(),
        false => ProgressDrawTarget::stderr(),
    };
    let style =
        ProgressStyle::with_template("{msg} {wide_bar} {human_pos}/{human_len}, {eta} left")
            .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(len), target).with_style(style).with_message(what)
}
