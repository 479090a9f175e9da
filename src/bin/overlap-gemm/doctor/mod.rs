//! stub
use crate::exit::Failure;
/// x
#[derive(clap::Args)]
pub struct Args {}
/// y
pub fn run(_: &Args) -> Result<(), Failure> {
    Ok(())
}
