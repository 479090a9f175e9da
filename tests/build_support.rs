//! The parts of the build script that need no crate: versions, places, the ptxas log, the number of jobs, what nvcc's end
//! means.
//!
//! What belongs here: tests of `build/*.rs` that need no compiler. The modules are included by path,
//! since a build script cannot be linked against.

#![cfg(unix)]

#[path = "../build/compiler.rs"]
mod compiler;
#[path = "common/folder.rs"]
mod folder;
#[path = "../build/probe.rs"]
#[allow(dead_code, reason = "the build script uses all of it, these tests a part")]
mod probe;
#[path = "../build/ptxas.rs"]
mod ptxas;
#[path = "../build/table.rs"]
mod table;
#[path = "../build/toolkit.rs"]
#[allow(dead_code, reason = "the build script uses all of it, these tests a part")]
mod toolkit;

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use folder::Folder;

impl Folder {
    /// A toolkit whose nvcc prints this release.
    fn toolkit(&self, root: &str, release: &str) {
        let line = format!("Cuda compilation tools, release {release}, V{release}.88");
        self.write(&format!("{root}/bin/nvcc"), &format!("#!/bin/sh\necho '{line}'\n"));
        self.write(&format!("{root}/include/cuda_runtime_api.h"), "");
        self.write(&format!("{root}/lib64/libcudart_static.a"), "");
    }

    fn context(&self, vars: &[(&str, PathBuf)]) -> probe::Context {
        let vars: HashMap<_, _> = vars
            .iter()
            .map(|(name, value)| (name.into(), value.clone().into_os_string()))
            .collect();
        probe::Context { manifest_dir: self.0.clone(), out_dir: self.0.join("out"), vars }
    }
}

#[test]
fn nvcc_versions() {
    let text = "nvcc: NVIDIA (R) Cuda compiler driver\nCopyright (c) 2005-2025 NVIDIA Corporation\n\
                Built on Wed_Aug_20_01:58:59_PM_PDT_2025\n\
                Cuda compilation tools, release 13.0, V13.0.88\nBuild cuda_13.0.r13.0/compiler.36424714_0\n";
    assert_eq!(toolkit::parse_nvcc_version(text), Some(((13, 0), "13.0.88".into())));
    let old = "Cuda compilation tools, release 11.8, V11.8.89";
    assert_eq!(toolkit::parse_nvcc_version(old), Some(((11, 8), "11.8.89".into())));
    assert_eq!(toolkit::parse_nvcc_version("release 12.4"), Some(((12, 4), "12.4".into())));
    for nonsense in ["", "release", "release x.y", "release 12", "no compiler here"] {
        assert_eq!(toolkit::parse_nvcc_version(nonsense), None, "{nonsense}");
    }
}

#[test]
fn a_toolkit_is_found_in_order_and_every_rejection_is_told() {
    let folder = Folder::new("order");
    let root = |name: &str| folder.0.join(name);
    folder.toolkit("old", "11.8");
    folder.toolkit("path", "12.9");
    folder.toolkit("usual", "13.1");
    folder.write("headless/bin/nvcc", "");
    let usual = [root("usual"), root("absent")];
    let usual: Vec<&Path> = usual.iter().map(PathBuf::as_path).collect();

    let all =
        [("CUDA_HOME", root("old")), ("CUDA_PATH", root("headless")), ("PATH", root("path/bin"))];
    let found = toolkit::find_toolkit(&folder.context(&all), &usual).unwrap();
    assert_eq!(found.version, "12.9.88", "PATH goes before the usual places");
    let found = toolkit::find_toolkit(&folder.context(&all[..2]), &usual).unwrap();
    assert_eq!(found.version, "13.1.88");
    assert_eq!(found.lib, root("usual/lib64"));

    let missing = toolkit::find_toolkit(&folder.context(&all[..2]), &[]).unwrap_err();
    let text = missing.to_string();
    for line in [
        "OVERLAP_GEMM_CUDA_HOME: not set",
        "old: is CUDA 11.8.88, older than 12.3",
        "headless: has no cuda_runtime_api.h",
        "nvcc on PATH: not there",
        ".fetched: nothing fetched yet",
        "third_party/fetch",
    ] {
        assert!(text.contains(line), "{line} is not in\n{text}");
    }
}

#[test]
fn a_place_that_was_asked_for_is_the_only_one() {
    let folder = Folder::new("explicit");
    folder.toolkit("good", "13.0");
    let vars =
        [("OVERLAP_GEMM_CUDA_HOME", folder.0.join("bad")), ("CUDA_HOME", folder.0.join("good"))];
    let missing = toolkit::find_toolkit(&folder.context(&vars), &[]).unwrap_err();
    assert_eq!(missing.probed.len(), 1, "{missing}");
    assert!(missing.probed[0].ends_with("bad: no such folder"), "{missing}");
    assert!(missing.remedy.starts_with("correct or unset OVERLAP_GEMM_CUDA_HOME"), "{missing}");
    let vars = [("OVERLAP_GEMM_CUDA_HOME", folder.0.join("good"))];
    assert!(toolkit::find_toolkit(&folder.context(&vars), &[]).is_ok());
}

#[test]
fn a_fetch_counts_only_while_it_is_what_requirements_ask_for() {
    let folder = Folder::new("fetched");
    let fetched = || folder.context(&[]).fetched();
    folder.write("third_party/requirements.txt", "nvcc==13.0.88");
    assert_eq!(fetched(), Err("nothing fetched yet".into()));
    folder.toolkit("third_party/.fetched/cuda", "13.0");
    folder.write(
        "third_party/.fetched/cutlass/include/cutlass/version.h",
        "#define CUTLASS_MAJOR 4\n#define CUTLASS_MINOR 2\n#define CUTLASS_PATCH 0\n",
    );
    assert_eq!(fetched(), Err("not a complete fetch".into()));
    folder.write("third_party/.fetched/requirements.txt", "nvcc==12.9.1");
    assert_eq!(fetched(), Err("outdated: requirements.txt has changed since".into()));
    folder.write("third_party/.fetched/requirements.txt", "nvcc==13.0.88");
    assert_eq!(fetched(), Ok(folder.0.join("third_party/.fetched")));
    assert_eq!(toolkit::find_toolkit(&folder.context(&[]), &[]).unwrap().version, "13.0.88");
    let cutlass = toolkit::find_cutlass(&folder.context(&[])).unwrap();
    assert_eq!((cutlass.version.as_str(), cutlass.identity.as_str()), ("4.2.0", ""));
}

#[test]
fn an_old_cutlass_is_rejected() {
    let folder = Folder::new("cutlass");
    folder.write(
        "include/cutlass/version.h",
        "#define CUTLASS_MAJOR 3\n#define CUTLASS_MINOR 9\n#define CUTLASS_PATCH 2\n",
    );
    let vars = [("OVERLAP_GEMM_CUTLASS_DIR", folder.0.clone())];
    let missing = toolkit::find_cutlass(&folder.context(&vars)).unwrap_err();
    assert!(missing.probed[0].ends_with(": is CUTLASS 3.9.2, older than 4.2"), "{missing}");
}

#[test]
fn flags_of_the_environment() {
    let folder = Folder::new("flags");
    let context = folder.context(&[("A", "1".into()), ("B", "0".into()), ("C", "".into())]);
    assert_eq!(["A", "B", "C", "D"].map(|name| context.flag(name)), [true, false, false, false]);
}

/// What a build says of an nvcc that is this shell script.
fn compiled(folder: &Folder, script: &str) -> Result<(), String> {
    let mut nvcc = std::process::Command::new("sh");
    nvcc.args(["-c", script, "nvcc"]);
    let source = compiler::Source { version: "13.0.88", name: "abi.cu" };
    compiler::run(&mut nvcc, &source, &folder.0.join("abi.o"), &folder.0.join("abi.log"))
}

#[test]
fn an_nvcc_that_is_killed_is_told_from_one_that_refuses() {
    let folder = Folder::new("killed");
    let by_child = "nvcc error   : 'cicc' died due to signal 9 (Kill signal)";
    let by_host = "g++: fatal error: Killed signal terminated program cc1plus";
    for script in [
        "kill -9 $$",
        "echo half > $2; kill -9 $$",
        "exit 137",
        &format!("echo \"{by_child}\" >&2; exit 9"),
        &format!("echo '{by_host}' >&2; exit 1"),
    ] {
        let why = compiled(&folder, script).unwrap_err();
        assert!(why.starts_with("nvcc 13.0.88 was killed while it compiled csrc/abi.cu"), "{why}");
        assert!(why.contains("memory") && why.contains("cargo build -j 1"), "{why}");
        assert!(!why.contains("toolkit"), "{why}");
    }
    assert!(compiled(&folder, by_host).unwrap_err().contains("could not compile"));
    for script in ["echo 'abi.cu(9): error' >&2; exit 1", "echo 'abi.cu(9): error'; kill -11 $$"] {
        let why = compiled(&folder, script).unwrap_err();
        assert!(why.contains("could not compile csrc/abi.cu"), "{why}");
        assert!(
            why.contains("OVERLAP_GEMM_CUDA_HOME") && why.ends_with("abi.cu(9): error\n"),
            "{why}"
        );
    }
    assert_eq!(fs::read_dir(&folder.0).unwrap().count(), 0, "nothing half done stays");
}

#[test]
fn an_nvcc_that_writes_nothing_is_named() {
    let folder = Folder::new("silent");
    for script in ["echo said", ": > $2; echo said"] {
        let why = compiled(&folder, script).unwrap_err();
        assert!(why.contains("ended with success and wrote no object for csrc/abi.cu"), "{why}");
        for word in ["whether sh is the compiler", "NVCC_APPEND_FLAGS", "said"] {
            assert!(why.contains(word), "'{word}' is not in {why}");
        }
    }
    compiled(&folder, "test $1 = -o && echo object > $2; echo said; echo more >&2").unwrap();
    let read = |name: &str| fs::read_to_string(folder.0.join(name)).unwrap();
    assert_eq!((read("abi.o"), read("abi.log")), ("object\n".into(), "said\nmore\n".into()));
}

const LOG: &str = "\
ptxas info    : 11 bytes gmem
ptxas info    : Compiling entry function 'kernel_one' for 'sm_90a'
ptxas info    : Function properties for kernel_one
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 168 registers, used 2 barriers
ptxas info    : (C7510) Potential Performance Loss: wgmma.mma_async instructions are serialized due to ...
ptxas info    : Compiling entry function 'kernel_two' for 'sm_90a'
ptxas info    : Function properties for kernel_two
    104 bytes stack frame, 72 bytes spill stores, 80 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 104 bytes cumulative stack size
ptxas info    : Function properties for helper
    0 bytes stack frame, 0 bytes spill stores, 4 bytes spill loads
";

#[test]
fn the_ptxas_log_is_read() {
    let complaints = ptxas::complaints(LOG);
    assert_eq!(complaints.len(), 3, "{complaints:?}");
    assert!(complaints[0].contains("C7510") && !complaints[0].contains("spills"));
    assert!(complaints[1].ends_with("(72 bytes stored, 80 loaded): kernel_two"), "{complaints:?}");
    assert!(complaints[2].ends_with("(0 bytes stored, 4 loaded): helper"), "{complaints:?}");
    assert!(ptxas::complaints("").is_empty());
}

#[test]
fn reservations_are_told_from_names() {
    let complains = |line: &str| !ptxas::complaints(line).is_empty();
    assert!(complains("ptxas warning : (C7504) Potential Performance Loss: 'setmaxnreg' ignored"));
    assert!(complains("ptxas info : C7519 something new"));
    assert!(!complains("Function properties for _ZN7C7510EvE"));
    assert!(!complains("0xC75101, C75, C751 and ABC7510"));
}

#[test]
fn jobs_fit_into_memory() {
    let gib = |n: u64| Some(n << 30);
    assert_eq!(compiler::jobs(16, gib(128), None, 100), 16);
    assert_eq!(compiler::jobs(16, gib(15), None, 100), 5, "3 GiB each");
    assert_eq!(compiler::jobs(16, gib(128), Some(3), 100), 3);
    assert_eq!(compiler::jobs(16, gib(128), None, 2), 2);
    assert_eq!(compiler::jobs(2, gib(1), Some(0), 0), 1, "never none");
    assert_eq!(compiler::jobs(2, None, None, 5), 2);
    let meminfo = "MemTotal:       25165824 kB\nMemAvailable:   12582912 kB\nBuffers: 0 kB\n";
    assert_eq!(compiler::parse_available(meminfo), gib(12));
    assert_eq!(compiler::parse_available("MemTotal: 1 kB"), None);
}

#[test]
fn the_table_of_kernels_can_be_read() {
    let text = fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("csrc/kernels.txt"));
    let text = text.unwrap();
    let read = |set: &str| table::read(&text, set);
    let (all, default) = (read("all").unwrap(), read("default").unwrap());
    assert!(!default.is_empty() && default.len() < all.len());
    assert!(default.iter().all(|row| row.default && all.contains(row)));
    let registry = table::registry(&all);
    for row in &all {
        assert!(table::source(&[row]).contains(&format!(">(\"{}\")", row.name)));
        assert!(registry.contains(&format!("    &{},\n", row.name)));
    }
    assert!(registry.contains(&format!("kInstanceCount = {};", all.len())));

    let (first, last) = (&all[0], &all[all.len() - 1]);
    let two = read(&format!("{}, {}", last.name, first.name)).unwrap();
    assert_eq!(two, [first.clone(), last.clone()], "as the table has them");
    let error = read(&format!("{},bf16", first.name)).unwrap_err();
    assert!(error.starts_with("csrc/kernels.txt has no kernel 'bf16'; "), "{error}");
}

#[test]
fn a_row_that_says_something_else_is_refused_with_its_line() {
    let good = "bf16 bf16 f32 kn 128x256x64 2x1 cooperative transposed,fast all";
    let read = |text: &str| table::read(text, "all");
    let rows = read(good).unwrap();
    let name = "bf16_bf16_f32_kn_128x256x64_2x1_cooperative_transposed_fast";
    assert_eq!(rows[0].name, name);
    assert_eq!(table::read(good, "default"), Ok(Vec::new()));
    for (from, to) in [
        ("bf16 f32", "bf17 f32"),
        ("kn", "mn"),
        ("128x256x64", "128x256"),
        ("128x256x64", "128x0x64"),
        ("2x1", "two"),
        ("cooperative", "together"),
        ("fast", "slow"),
        ("all", "some"),
        (" all", ""),
    ] {
        let error = read(&format!("# rows\n{}", good.replace(from, to))).unwrap_err();
        assert!(error.starts_with("csrc/kernels.txt:2: "), "{error}");
    }
    let error = read(&format!("{good}\n{good}")).unwrap_err();
    assert!(error.contains("is there twice"), "{error}");
}

#[test]
fn a_row_of_several_widths_is_as_many_kernels_of_one_template() {
    let read = |text: &str| table::read(text, "all");
    for (row, names, arguments) in [
        (
            "bf16 bf16 bf16 nk 128x168..192x64 2x1 pingpong - default",
            ["128x192x64", "128x184x64", "128x176x64", "128x168x64"],
            "128, 192, 64, 2, 1, true, false, false, 168>",
        ),
        (
            "bf16 bf16 bf16 nk 40..64x128x64 2x1 pingpong transposed default",
            ["64x128x64", "56x128x64", "48x128x64", "40x128x64"],
            "64, 128, 64, 2, 1, true, true, false, 40>",
        ),
        (
            "bf16 bf16 bf16 nk 144..192x192x64 1x2 cooperative transposed default",
            ["192x192x64", "176x192x64", "160x192x64", "144x192x64"],
            "192, 192, 64, 1, 2, false, true, false, 144>",
        ),
    ] {
        let kernels = read(row).unwrap();
        let tiles: Vec<_> = kernels.iter().map(|one| one.name.split('_').nth(4).unwrap()).collect();
        assert_eq!(tiles, names);
        let sources = table::sources(&kernels);
        let source = table::source(&sources[0].1);
        assert_eq!((sources.len(), source.matches(arguments).count()), (1, 4), "{source}");
    }
    let shared = "bf16 bf16 bf16 nk 136..192x192x64 1x2 cooperative transposed default";
    assert!(read(shared).unwrap_err().contains("steps of 16, such as 144..192"));
    for bad in [
        "128x192..144x64",
        "128x144..144x64",
        "128x140..192x64",
        "128x128..192x64",
        "128..192x64x64",
    ] {
        let row = format!("bf16 bf16 bf16 nk {bad} 2x1 pingpong - default");
        assert!(read(&row).unwrap_err().starts_with("csrc/kernels.txt:1: '"), "{bad}");
    }
}
