//! What was typed.

/// The command line, without the folder that the program lies in.
pub fn command() -> String {
    let arguments = std::env::args().skip(1);
    ["overlap-gemm".to_owned()].into_iter().chain(arguments).collect::<Vec<_>>().join(" ")
}
