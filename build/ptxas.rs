//! Reading what ptxas says about the kernels.
//!
//! What belongs here: from the log of `nvcc -Xptxas -v` to numbers and complaints. Invariant: a
//! kernel that spills, or that ptxas compiled with a reservation (C75xx: wgmma serialised, setmaxnreg
//! ignored, …), never goes unnoticed; both still give right results, several times slower.
//! Standard library only; tests include this file.

/// What ptxas says about one kernel.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Kernel {
    /// The mangled name.
    pub name: String,
    /// Registers a thread (at launch: setmaxnreg moves them between warps afterwards).
    pub registers: u32,
    /// Bytes a thread stores to and loads from local memory for want of registers.
    pub spill_stores: u32,
    /// See `spill_stores`.
    pub spill_loads: u32,
    /// Bytes of stack a thread.
    pub stack: u32,
}

/// What one compilation said.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Log {
    /// The kernels, in the order of the log.
    pub kernels: Vec<Kernel>,
    /// Every line with a C75xx code.
    pub reservations: Vec<String>,
}

/// Reads a log of nvcc with `-Xptxas -v`.
pub fn parse(text: &str) -> Log {
    let mut log = Log::default();
    let mut entry: Option<&str> = None;
    for line in text.lines() {
        if has_c75_code(line) {
            log.reservations.push(line.trim().to_owned());
        }
        if let Some(name) = between(line, "Compiling entry function '", "'") {
            entry = Some(name);
            log.kernels.push(Kernel { name: name.to_owned(), ..Kernel::default() });
        } else if let Some((_, name)) = line.split_once("Function properties for ") {
            // Device functions that were not inlined have properties too; they spill as well.
            if entry != Some(name.trim()) {
                log.kernels.push(Kernel { name: name.trim().to_owned(), ..Kernel::default() });
            }
        } else if let Some(kernel) = log.kernels.last_mut() {
            let read = |unit: &str, old: u32| number_before(line, unit).unwrap_or(old);
            kernel.stack = read(" bytes stack frame", kernel.stack);
            kernel.spill_stores = read(" bytes spill stores", kernel.spill_stores);
            kernel.spill_loads = read(" bytes spill loads", kernel.spill_loads);
            kernel.registers = read(" registers", kernel.registers);
        }
    }
    log
}

impl Log {
    /// One sentence for each thing that makes a kernel slower than it was written to be.
    pub fn complaints(&self) -> Vec<String> {
        let spills = self.kernels.iter().filter(|k| k.spill_stores + k.spill_loads > 0).map(|k| {
            format!(
                "a kernel spills registers ({} bytes stored, {} loaded): {}",
                k.spill_stores, k.spill_loads, k.name
            )
        });
        let reservations = self.reservations.iter().map(|line| format!("ptxas: {line}"));
        reservations.chain(spills).collect()
    }

    /// One aligned line a kernel.
    pub fn table(&self) -> String {
        let line = |k: &Kernel| {
            format!(
                "{:>4} registers {:>5} B stack {:>5} B spill stores {:>5} B spill loads  {}\n",
                k.registers, k.stack, k.spill_stores, k.spill_loads, k.name
            )
        };
        self.kernels.iter().map(line).collect()
    }
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

fn between<'a>(line: &'a str, start: &str, end: &str) -> Option<&'a str> {
    line.split_once(start)?.1.split_once(end).map(|(inner, _)| inner)
}

/// The number that stands right before `unit`.
fn number_before(line: &str, unit: &str) -> Option<u32> {
    let head = &line[..line.find(unit)?];
    head.rsplit(|c: char| !c.is_ascii_digit()).next()?.parse().ok()
}
