//! Reading what ptxas says about the kernels.
//!
//! What belongs here: from the log of `nvcc -Xptxas -v` to complaints. Invariant: a
//! kernel that spills, or that ptxas compiled with a reservation (C75xx: wgmma serialised, setmaxnreg
//! ignored, …), never goes unnoticed; both still give right results, several times slower.
//! Standard library only; tests include this file.

/// One sentence for each thing that makes a kernel slower than it was written to be.
pub fn complaints(log: &str) -> Vec<String> {
    let (mut complaints, mut kernel) = (Vec::new(), "");
    for line in log.lines() {
        if has_c75_code(line) {
            complaints.push(format!("ptxas: {}", line.trim()));
        }
        // Device functions that were not inlined have properties too; they spill as well.
        if let Some((_, name)) = line.split_once("Function properties for ") {
            kernel = name.trim();
        }
        let bytes = |of: &str| number_before(line, of).unwrap_or(0);
        let (stored, loaded) = (bytes(" bytes spill stores"), bytes(" bytes spill loads"));
        if stored + loaded > 0 {
            complaints.push(format!(
                "a kernel spills registers ({stored} bytes stored, {loaded} loaded): {kernel}"
            ));
        }
    }
    complaints
}

/// Whether a code C7500 to C7599 occurs in the line.
fn has_c75_code(line: &str) -> bool {
    line.match_indices("C75").any(|(at, _)| {
        let rest = &line.as_bytes()[at + 3..];
        let before = at.checked_sub(1).map(|i| line.as_bytes()[i]);
        rest.len() >= 2
            && rest[..2].iter().all(u8::is_ascii_digit)
            && !rest.get(2).is_some_and(u8::is_ascii_alphanumeric)
            && !before.is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_')
    })
}

/// The number that stands right before `unit`.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    let head = &line[..line.find(unit)?];
    head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
