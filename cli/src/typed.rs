//! For tests: the arguments of a subcommand, as somebody types them.

use clap::{Args, Parser};

#[derive(Parser)]
struct Typed<A: Args> {
    #[command(flatten)]
    args: A,
}

/// What a line of words is read as, or why it is refused.
pub fn typed<A: Args>(line: &str) -> Result<A, String> {
    let words = ["overlap-gemm"].into_iter().chain(line.split_whitespace());
    Typed::try_parse_from(words).map(|typed| typed.args).map_err(|error| error.to_string())
}
