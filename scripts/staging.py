"""Building for a GPU machine: what scripts/stage-gpu and scripts/gpu-mutants share.

A GPU machine often has no cargo. What is put into a folder needs glibc 2.36 or newer and the NVIDIA
driver there, nothing else.

Invariant: what is staged has the kernels in it and starts without CUDA; otherwise this fails and says why.
"""

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GLIBC = (2, 36)
# Present wherever glibc and a C++ runtime are; anything else would have to be installed.
ALLOWED = {"libc.so.6", "libm.so.6", "libgcc_s.so.1", "libstdc++.so.6", "libpthread.so.0",
           "libdl.so.2", "librt.so.1", "ld-linux-x86-64.so.2", "ld-linux-aarch64.so.1"}  # fmt: skip


def fail(message):
    sys.exit(f"scripts/{Path(sys.argv[0]).name}: {message}")


def cargo(*arguments, cwd=ROOT, **variables):
    """Runs cargo; returns {(kind, name): path} of the executables it built."""
    command = ["cargo", *arguments, "--message-format=json-render-diagnostics"]
    environment = dict(os.environ, OVERLAP_GEMM_REQUIRE_KERNELS="1", **variables)
    with subprocess.Popen(command, cwd=cwd, env=environment, stdout=subprocess.PIPE) as process:
        messages = [json.loads(line) for line in process.stdout if line.startswith(b"{")]
    if process.returncode != 0:
        fail(f"{' '.join(command)} failed")
    built = {}
    for message in messages:
        if message["reason"] == "compiler-artifact" and message.get("executable"):
            target = message["target"]
            built[(target["kind"][0], target["name"])] = Path(message["executable"])
    return built


def put(source, target):
    """Copies an executable without its symbols, if it will start on the other machine."""
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(source, target)
    subprocess.run(["strip", "--strip-all", target], check=True)
    dynamic = subprocess.run(["objdump", "-p", target], capture_output=True, text=True, check=True)
    needed = set(re.findall(r"NEEDED\s+(\S+)", dynamic.stdout))
    if not needed <= ALLOWED:
        fail(f"{target} needs {', '.join(sorted(needed - ALLOWED))}")
    versions = re.findall(r"GLIBC_(\d+)\.(\d+)", dynamic.stdout)
    newest = max((int(major), int(minor)) for major, minor in versions)
    if newest > GLIBC:
        fail(f"{target} needs glibc {newest[0]}.{newest[1]}: build on an older system")


def empty(folder, mark):
    """Empties `folder`, or makes it; refuses one with files but without `mark`, which every staged folder holds."""
    if folder.exists() and any(folder.iterdir()) and not (folder / mark).is_file():
        fail(f"{folder} holds something else; name an empty or new folder")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
