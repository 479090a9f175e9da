//! `csrc/kernels.txt`: which kernels there are, and the few lines of C++ that each of them is.
//!
//! What belongs here: reading the table, names, and the generated sources. Invariant: a row that
//! does not say exactly what a kernel is stops the build with its line; names are made from the
//! rows, so two equal rows are noticed. Standard library only; tests include this file.

use std::fmt::Write as _;

/// One row.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `bf16_bf16_bf16_nk_128x128x64_2x1_pingpong`.
    pub name: String,
    /// The template arguments of `GemmSm90`.
    arguments: String,
    /// Whether it is compiled when nobody asks for all.
    pub default: bool,
}

/// Which rows are compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Selection {
    /// Those marked so.
    Default,
    /// All.
    All,
    /// Those with these names.
    Named(Vec<String>),
}

impl Selection {
    /// What `OVERLAP_GEMM_KERNELS` says: `default`, `all`, or names joined by commas.
    pub fn parse(text: &str) -> Selection {
        match text {
            "default" => Selection::Default,
            "all" => Selection::All,
            names => Selection::Named(names.split(',').map(|name| name.trim().into()).collect()),
        }
    }
}

/// Reads the table; keeps the rows that are selected.
pub fn read(text: &str, selection: &Selection) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let row = row(line).map_err(|why| format!("csrc/kernels.txt:{}: {why}", number + 1))?;
        if rows.iter().any(|other| other.name == row.name) {
            return Err(format!("csrc/kernels.txt:{}: {} is there twice", number + 1, row.name));
        }
        rows.push(row);
    }
    match selection {
        Selection::Default => rows.retain(|row| row.default),
        Selection::All => {}
        Selection::Named(names) => {
            if let Some(name) = names.iter().find(|name| rows.iter().all(|row| row.name != **name))
            {
                return Err(format!(
                    "csrc/kernels.txt has no kernel '{name}'; OVERLAP_GEMM_KERNELS is 'default', \
                     'all', or names joined by commas"
                ));
            }
            rows.retain(|row| names.contains(&row.name));
        }
    }
    Ok(rows)
}

fn row(line: &str) -> Result<Row, String> {
    let fields: Vec<&str> = line.split_whitespace().collect();
    let [a, b, d, layout, tile, cluster, schedule, options, set] = fields[..] else {
        return Err(format!("{} columns where 9 are expected", fields.len()));
    };
    let layout_name = match layout {
        "nk" => "OG_LAYOUT_NK",
        "kn" => "OG_LAYOUT_KN",
        other => return Err(format!("'{other}' is no layout of B: nk or kn")),
    };
    let pingpong = match schedule {
        "cooperative" => false,
        "pingpong" => true,
        other => return Err(format!("'{other}' is no schedule: cooperative or pingpong")),
    };
    let default = match set {
        "default" => true,
        "all" => false,
        other => return Err(format!("'{other}' is no set: default or all")),
    };
    let [mut transposed, mut fast] = [false, false];
    for option in options.split(',').filter(|option| *option != "-") {
        match option {
            "transposed" => transposed = true,
            "fast" => fast = true,
            other => return Err(format!("'{other}' is no option: transposed, fast or -")),
        }
    }
    let tile: [u32; 3] = numbers(tile)?;
    let cluster: [u32; 2] = numbers(cluster)?;

    let mut name = format!(
        "{a}_{b}_{d}_{layout}_{}x{}x{}_{}x{}_{schedule}",
        tile[0], tile[1], tile[2], cluster[0], cluster[1]
    );
    for (set, suffix) in [(transposed, "_transposed"), (fast, "_fast")] {
        if set {
            name.push_str(suffix);
        }
    }
    let arguments = format!(
        "{}, {}, {}, {layout_name}, {}, {}, {}, {}, {}, {pingpong}, {transposed}, {fast}",
        element(a)?,
        element(b)?,
        element(d)?,
        tile[0],
        tile[1],
        tile[2],
        cluster[0],
        cluster[1]
    );
    Ok(Row { name, arguments, default })
}

fn element(name: &str) -> Result<&'static str, String> {
    Ok(match name {
        "bf16" => "cutlass::bfloat16_t",
        "f16" => "cutlass::half_t",
        "f32" => "float",
        "e4m3" => "cutlass::float_e4m3_t",
        "e5m2" => "cutlass::float_e5m2_t",
        other => return Err(format!("'{other}' is no element type: bf16, f16, f32, e4m3, e5m2")),
    })
}

/// `128x256x64`.
fn numbers<const N: usize>(text: &str) -> Result<[u32; N], String> {
    let parsed: Option<Vec<u32>> =
        text.split('x').map(|part| part.parse().ok().filter(|n| *n > 0)).collect();
    let numbers = parsed.and_then(|numbers| <[u32; N]>::try_from(numbers).ok());
    numbers.ok_or_else(|| format!("'{text}' is not {N} numbers joined by x"))
}

/// The most kernels in one source. The compiler needs as long for CUTLASS's headers and what all
/// kernels have in common as for two or three kernels, but its memory grows with each.
const KERNELS_A_SOURCE: usize = 5;

/// The kernels, cut into sources of about equal size: a name and the rows of each. Those of the default
/// set stay among themselves, so that their objects also serve who asks for all.
pub fn sources(rows: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut sources = Vec::new();
    for (set, default) in [("default", true), ("all", false)] {
        let rows: Vec<&Row> = rows.iter().filter(|row| row.default == default).collect();
        let count = rows.len().div_ceil(KERNELS_A_SOURCE);
        let bound = |part: usize| part * rows.len() / count;
        sources.extend((0..count).map(|part| {
            (format!("{set}_{}", part + 1), rows[bound(part)..bound(part + 1)].to_vec())
        }));
    }
    sources
}

/// The source of some kernels.
pub fn source(rows: &[&Row]) -> String {
    let mut text = "#include \"gemm_sm90.cuh\"\n\nnamespace overlap_gemm {\n".to_owned();
    for Row { name, arguments, .. } in rows {
        let _ = write!(
            text,
            "extern Instance const {name};\n\
             Instance const {name} = GemmSm90<{arguments}>::instance(\"{name}\");\n"
        );
    }
    text.push_str("}\n");
    text
}

/// The source of the list of all kernels, `kInstances` of `csrc/instance.h`.
pub fn registry(rows: &[Row]) -> String {
    let mut text = "#include \"instance.h\"\n\nnamespace overlap_gemm {\n".to_owned();
    for Row { name, .. } in rows {
        let _ = writeln!(text, "extern Instance const {name};");
    }
    text.push_str("Instance const* const kInstances[] = {\n");
    for Row { name, .. } in rows {
        let _ = writeln!(text, "    &{name},");
    }
    let _ = writeln!(text, "}};\nint32_t const kInstanceCount = {};\n}}", rows.len());
    text
}
