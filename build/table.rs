//! `csrc/kernels.txt`: which kernels there are, and the few lines of C++ that each of them is.
//!
//! What belongs here: reading the table, names, and the generated sources. Invariant: a row that
//! does not say exactly what a kernel is stops the build with its line; names are made from the
//! rows, so two equal rows are noticed. Standard library only; tests include this file.

use std::fmt::Write as _;

/// One kernel: a row, or one width of a row with several.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// `bf16_bf16_bf16_nk_128x128x64_2x1_pingpong`.
    pub name: String,
    /// The template arguments of `GemmSm90`: the same for all widths of a row.
    arguments: String,
    /// Of its tiles, along the kernel's columns.
    width: u32,
    /// Whether it is compiled when nobody asks for all.
    pub default: bool,
}

/// Reads the table; keeps the rows of a set, as `OVERLAP_GEMM_KERNELS` says it: `default`, `all`, or names joined by commas.
pub fn read(text: &str, set: &str) -> Result<Vec<Row>, String> {
    let mut rows: Vec<Row> = Vec::new();
    for (number, line) in text.lines().enumerate() {
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        for row in row(line).map_err(|why| format!("csrc/kernels.txt:{}: {why}", number + 1))? {
            if rows.iter().any(|other| other.name == row.name) {
                return Err(format!(
                    "csrc/kernels.txt:{}: {} is there twice",
                    number + 1,
                    row.name
                ));
            }
            rows.push(row);
        }
    }
    match set {
        "default" => rows.retain(|row| row.default),
        "all" => {}
        names => {
            let names: Vec<&str> = names.split(',').map(str::trim).collect();
            if let Some(name) = names.iter().find(|name| rows.iter().all(|row| row.name != **name))
            {
                return Err(format!(
                    "csrc/kernels.txt has no kernel '{name}'; OVERLAP_GEMM_KERNELS is 'default', \
                     'all', or names joined by commas"
                ));
            }
            rows.retain(|row| names.contains(&&*row.name));
        }
    }
    Ok(rows)
}

/// The kernels of one line, the widest first.
fn row(line: &str) -> Result<Vec<Row>, String> {
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
    let cluster: [u32; 2] = numbers(cluster)?;
    let tile: Vec<&str> = tile.split('x').collect();
    let [m, n, k] = tile[..] else {
        return Err(format!("'{}' is not 3 numbers joined by x", tile.join("x")));
    };
    // What varies is what the kernel sees as columns.
    let fixed = if transposed { n } else { m };
    if fixed.contains("..") {
        return Err(format!(
            "'{fixed}' varies: only columns can, or the rows of a transposed kernel"
        ));
    }
    // Two warp groups that cannot share 128 rows share the columns: eight of a step for each.
    let step = match (pingpong, one(fixed)?[0] % 128) {
        (false, 64) => 16,
        _ => 8,
    };
    let [m, n] = if transposed { [widths(m, step)?, one(n)?] } else { [one(m)?, widths(n, step)?] };
    let [k] = numbers(k)?;
    let varying = if transposed { &m } else { &n };
    let least = varying[varying.len() - 1];

    let suffixes: String = [(transposed, "_transposed"), (fast, "_fast")]
        .iter()
        .filter_map(|(set, suffix)| set.then_some(*suffix))
        .collect();
    let arguments = format!(
        "{}, {}, {}, {layout_name}, {}, {}, {k}, {}, {}, {pingpong}, {transposed}, {fast}, {least}",
        element(a)?,
        element(b)?,
        element(d)?,
        m[0],
        n[0],
        cluster[0],
        cluster[1]
    );
    let kernel = |width: u32| {
        let [m, n] = if transposed { [width, n[0]] } else { [m[0], width] };
        let name = format!(
            "{a}_{b}_{d}_{layout}_{m}x{n}x{k}_{}x{}_{schedule}{suffixes}",
            cluster[0], cluster[1]
        );
        Row { name, arguments: arguments.clone(), width, default }
    };
    Ok(varying.iter().map(|width| kernel(*width)).collect())
}

/// The most widths of one row: a kernel has a loop for each (`MainloopOfWidths` in csrc/multiply_widths.cuh).
const MOST_WIDTHS: u32 = 8;

/// `136..192`: all of these by `step`, the widest first. `128`: just that.
fn widths(text: &str, step: u32) -> Result<Vec<u32>, String> {
    let Some((least, most)) = text.split_once("..") else { return one(text) };
    let ([least], [most]) = (numbers(least)?, numbers(most)?);
    let count = most.saturating_sub(least) / step + 1;
    if least >= most || (most - least) % step != 0 || count > MOST_WIDTHS {
        return Err(format!(
            "'{text}' is not 2 to {MOST_WIDTHS} widths in steps of {step}, such as {}..192",
            192 - 3 * step
        ));
    }
    Ok((0..count).map(|nth| most - step * nth).collect())
}

fn one(text: &str) -> Result<Vec<u32>, String> {
    numbers::<1>(text).map(Vec::from)
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

/// The most rows of the table in one source. The compiler needs as long for CUTLASS's headers and what all kernels have in
/// common as for a row or two. But fewer sources keep fewer cores busy.
const ROWS_A_SOURCE: usize = 12;

/// The kernels, cut into sources of about equal size: a name and the kernels of each. Those of the default
/// set stay among themselves, so that their objects also serve who asks for all; all widths of a row are one template.
pub fn sources(kernels: &[Row]) -> Vec<(String, Vec<&Row>)> {
    let mut sources = Vec::new();
    for (set, default) in [("default", true), ("all", false)] {
        let kernels: Vec<&Row> = kernels.iter().filter(|row| row.default == default).collect();
        let rows: Vec<&[&Row]> =
            kernels.chunk_by(|one, next| one.arguments == next.arguments).collect();
        let count = rows.len().div_ceil(ROWS_A_SOURCE);
        let bound = |part: usize| part * rows.len() / count;
        sources.extend((0..count).map(|part| {
            (format!("{set}_{}", part + 1), rows[bound(part)..bound(part + 1)].concat())
        }));
    }
    sources
}

/// The source of some kernels.
pub fn source(kernels: &[&Row]) -> String {
    let mut text = "#include \"gemm_sm90.cuh\"\n\nnamespace overlap_gemm {\n".to_owned();
    for Row { name, arguments, width, .. } in kernels {
        let _ = write!(
            text,
            "extern Instance const {name};\n\
             Instance const {name} = GemmSm90<{arguments}>::instance<{width}>(\"{name}\");\n"
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
