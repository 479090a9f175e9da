#!/usr/bin/env python3
"""PyTorch's all-gather + matmul, matmul + reduce-scatter and matmul + all-reduce, as contenders of
`overlap-gemm bench OPERATION --peer`.

The bench starts one of these for each rank, with RANK, LOCAL_RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set, and
talks to it by lines of JSON: so PyTorch's loops are interleaved with all others, of the same length, on the same
GPUs. Nothing here compares or judges; a result that is wrong is reported as failed.

  <- {"ready": true}
  -> {"do": "prepare", "operation": "all-gather-gemm", "m": 4096, "n": 3584, "k": 8192, "type": "bf16",
      "scaling": "none", "steps": 20}
  <- {"contenders": [{"name": "torch-fused", "kind": "all-gather-gemm"}, ...]}
  -> {"do": "try", "name": "torch-fused"}
  <- {"graph": true, "failed": null}
  -> {"do": "run", "name": "torch-fused", "graph": true, "steps": 120}
  <- {"us": 412.3}
  -> {"do": "quit"}

An order is one line. The operation is "all-gather-gemm", where m is that of all ranks together and n that of one, or
"gemm-reduce-scatter" or "gemm-all-reduce", where k is that of one rank: every rank multiplies all m rows of an A of its
own, and gets the sums of its own rows, or of all. A contender's kind is the operation, or "gemm" for the product alone.
`prepare` makes the matrices and runs no contender, so that the bench knows which one hangs. `try` checks a result and captures a graph of `steps`
steps; `run` runs as many steps once untimed, then timed. If an answer takes too long on one rank, the bench kills these
processes on all ranks, and goes on without them.
"""

import json
import os
import sys

# NVLink multicast stays off, for all contenders alike.
os.environ.setdefault("NCCL_NVLS_ENABLE", "0")
os.environ.setdefault("TORCH_SYMM_MEM_DISABLE_MULTICAST", "1")

import torch
import torch.distributed as dist
import torch.distributed._symmetric_memory as symmetric

# Matrices that take turns, so that no B stays in the cache from step to step.
SETS = 4
# What a sum of many products, rounded once a rank, may be off by, beside the largest value.
TOLERANCE = {"bf16": 0.02, "f16": 0.005, "e4m3": 0.03}


class Contender:
    """A step of a set, and graphs of many steps."""

    def __init__(self, kind, step):
        self.kind, self.step = kind, step
        self.graph = None

    def capture(self, steps):
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            for i in range(3):
                self.step(i % SETS)
        torch.cuda.current_stream().wait_stream(stream)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            for i in range(steps):
                self.step(i % SETS)
        self.graph = graph

    def loop(self, graph, steps, graph_steps):
        if graph:
            for _ in range(steps // graph_steps):
                self.graph.replay()
        else:
            for i in range(steps):
                self.step(i % SETS)


def bf16_contenders(case, device, group):
    """What PyTorch has for 16-bit types."""
    from torch.distributed._symmetric_memory import _fused_all_gather_matmul_native as native

    m, n, k, ranks = case["m"], case["n"], case["k"], dist.get_world_size()
    dtype = {"bf16": torch.bfloat16, "f16": torch.float16}[case["type"]]
    shard = symmetric.empty(m // ranks, k, dtype=dtype, device=device).normal_()
    symmetric.rendezvous(shard, group)
    weights = [torch.randn(n, k, dtype=dtype, device=device) * 0.02 for _ in range(SETS)]
    bs = [weight.t() for weight in weights]
    whole = torch.empty(m, k, dtype=dtype, device=device)
    outs = [torch.empty(m, n, dtype=dtype, device=device) for _ in range(SETS)]
    dist.all_gather_into_tensor(whole, shard.clone())
    expected = whole.double() @ bs[0].double()

    def sequential(i):
        dist.all_gather_into_tensor(whole, shard)
        return torch.mm(whole, bs[i], out=outs[i])

    fused = torch.ops.symm_mem.fused_all_gather_matmul
    steps = {
        "torch-mm": ("gemm", lambda i: torch.mm(whole, bs[i], out=outs[i])),
        "torch-nccl-mm": ("all-gather-gemm", sequential),
        "torch-fused": ("all-gather-gemm", lambda i: fused(shard, [bs[i]], 0, group)[1][0]),
        "torch-native": ("all-gather-gemm", lambda i: native(shard, bs[i], group)[1]),
    }
    return steps, expected


def fp8_contenders(case, device, group):
    """What PyTorch has for e4m3, with one scale or one for each row."""
    m, n, k, ranks = case["m"], case["n"], case["k"], dist.get_world_size()
    rows = case["scaling"] == "rows"
    shard = symmetric.empty(m // ranks, k, dtype=torch.float8_e4m3fn, device=device)
    shard.copy_(torch.randn(m // ranks, k, device=device).to(torch.float8_e4m3fn))
    symmetric.rendezvous(shard, group)
    bs = [torch.randn(n, k, device=device).to(torch.float8_e4m3fn).t() for _ in range(SETS)]
    whole = torch.empty(m, k, dtype=torch.float8_e4m3fn, device=device)
    dist.all_gather_into_tensor(whole.view(torch.uint8), shard.clone().view(torch.uint8))
    expected = whole.double() @ bs[0].double()
    one = torch.tensor(1.0, device=device)
    scale_a = torch.ones(m, 1, device=device) if rows else one
    scale_shard = torch.ones(m // ranks, 1, device=device) if rows else one
    scale_b = torch.ones(1, n, device=device) if rows else one
    fused = torch.ops.symm_mem.fused_all_gather_scaled_matmul

    def product(i):
        return torch._scaled_mm(
            whole, bs[i], scale_a, scale_b, out_dtype=torch.bfloat16, use_fast_accum=True
        )

    def both(i):
        return fused(
            shard, [bs[i]], scale_shard, [scale_b], 0, group, [None], [None], [torch.bfloat16], [True]
        )[1][0]

    return {"torch-mm": ("gemm", product), "torch-fused": ("all-gather-gemm", both)}, expected


def reducing_contenders(case, device, group):
    """What PyTorch has for a product whose sums each rank gets its rows of, or all."""
    m, n, k, ranks = case["m"], case["n"], case["k"], dist.get_world_size()
    kind, ops = case["operation"], torch.ops.symm_mem
    dtypes = {"bf16": torch.bfloat16, "f16": torch.float16, "e4m3": torch.float8_e4m3fn}
    dtype = dtypes[case["type"]]
    fp8 = case["type"] == "e4m3"
    factor = 1.0 if fp8 else 0.02
    a = [torch.randn(m, k, device=device).to(dtype) for _ in range(SETS)]
    bs = [(torch.randn(n, k, device=device) * factor).to(dtype).t() for _ in range(SETS)]
    rows = case["scaling"] == "rows"
    scale_a = torch.ones((m, 1) if rows else (), device=device)
    scale_b = torch.ones((1, n) if rows else (), device=device)
    out_dtype = torch.bfloat16 if fp8 else dtype
    outs = [torch.empty(m, n, dtype=out_dtype, device=device) for _ in range(SETS)]

    def product(i):
        if fp8:
            return torch._scaled_mm(
                a[i], bs[i], scale_a, scale_b, out_dtype=out_dtype, use_fast_accum=True
            )
        return torch.mm(a[i], bs[i], out=outs[i])

    own = a[0].double() @ bs[0].double()
    steps, expected = {"torch-mm": ("gemm", product)}, {"gemm": own}
    if kind == "gemm-all-reduce":
        total = own.clone()
        dist.all_reduce(total)
        expected[kind] = total
        room = symmetric.empty(m, n, dtype=out_dtype, device=device)
        symmetric.rendezvous(room, group)

        def plain(i):
            whole = product(i)
            dist.all_reduce(whole)
            return whole

        def behind(reduce):
            def both(i):
                if fp8:
                    room.copy_(product(i))
                else:
                    torch.mm(a[i], bs[i], out=room)
                return reduce(room, "sum", group)

            return both

        steps["torch-plain"] = (kind, plain)
        steps["torch-one-shot"] = (kind, behind(ops.one_shot_all_reduce))
        steps["torch-two-shot"] = (kind, behind(ops.two_shot_all_reduce_))
        return steps, expected
    if m % ranks != 0:
        # PyTorch cuts rows evenly.
        return steps, expected
    total = torch.empty(m // ranks, n, dtype=torch.float64, device=device)
    dist.reduce_scatter_tensor(total, own)
    expected[kind] = total
    part = torch.empty(m // ranks, n, dtype=out_dtype, device=device)

    def plain(i):
        dist.reduce_scatter_tensor(part, product(i))
        return part

    steps["torch-plain"] = (kind, plain)
    if fp8:
        scaled = ops.fused_scaled_matmul_reduce_scatter

        def fused_scaled(i):
            return scaled(
                a[i], bs[i], scale_a, scale_b, "sum", 0, 0, group, [m, n], out_dtype=out_dtype, use_fast_accum=True
            )

        steps["torch-fused"] = (kind, fused_scaled)
        return steps, expected
    fused = ops.fused_matmul_reduce_scatter
    steps["torch-fused"] = (kind, lambda i: fused(a[i], bs[i], "sum", 0, group))
    if hasattr(ops, "_low_contention_reduce_scatter"):
        whole = symmetric.empty(m, n, dtype=out_dtype, device=device)
        symmetric.rendezvous(whole, group)

        def low_contention(i):
            torch.mm(a[i], bs[i], out=whole)
            reduced = ops._low_contention_reduce_scatter(whole, "sum", group)
            # It runs on a stream of its own; the next product must not overwrite what others still read.
            return torch.ops._c10d_functional.wait_tensor(reduced)

        steps["torch-low-contention"] = (kind, low_contention)
    return steps, expected


def prepare(case, device, group):
    """The contenders of a case, as kinds and steps by name, and what a step of the first set gives, by kind."""
    if case["operation"] != "gemm-all-reduce" and case["m"] % dist.get_world_size() != 0:
        # PyTorch's collectives take shards of one size.
        return {}, {}
    if case["operation"] in ("gemm-reduce-scatter", "gemm-all-reduce"):
        return reducing_contenders(case, device, group)
    make = fp8_contenders if case["type"] == "e4m3" else bf16_contenders
    steps, product = make(case, device, group)
    return steps, {kind: product for kind, _ in steps.values()}


def attempt(case, name, kind, step, expected):
    """A contender that is right, else None; whether it can be captured, and what is wrong."""
    tried = {"graph": False, "failed": None}
    try:
        got = step(0)
        torch.cuda.synchronize()
        worst = ((got.double() - expected).abs().max() / expected.abs().max()).item()
        if not worst <= TOLERANCE[case["type"]]:
            tried["failed"] = f"off by {worst:.3g} of the largest value"
            return None, tried
    except Exception as error:
        tried["failed"] = repr(error)[:200]
        return None, tried
    contender = Contender(kind, step)
    try:
        contender.capture(case["steps"])
        torch.cuda.synchronize()
        tried["graph"] = True
    except Exception as error:
        contender.graph = None
        torch.cuda.synchronize()
        print(f"{name} cannot be captured: {error!r}"[:300], file=sys.stderr)
    return contender, tried


def run(contender, order, graph_steps):
    """Microseconds a step, behind as many that are not timed."""
    contender.loop(order["graph"], order["steps"], graph_steps)
    begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
    begin.record()
    contender.loop(order["graph"], order["steps"], graph_steps)
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) * 1e3 / order["steps"]


def answer(content):
    print(json.dumps(content), flush=True)


def serve(device, group):
    """Does what the bench orders, until it says quit."""
    contenders, steps, case, expected = {}, {}, None, {}
    answer({"ready": True})
    for line in sys.stdin:
        order = json.loads(line)
        if order["do"] == "quit":
            break
        if order["do"] == "prepare":
            contenders.clear()
            steps, expected, case = {}, {}, order
            torch.cuda.empty_cache()
            steps, expected = prepare(case, device, group)
            answer({"contenders": [{"name": name, "kind": kind} for name, (kind, _) in steps.items()]})
        elif order["do"] == "try":
            name = order["name"]
            kind, step = steps[name]
            contenders[name], tried = attempt(case, name, kind, step, expected[kind])
            answer(tried)
        else:
            answer({"us": run(contenders[order["name"]], order, case["steps"])})


def main():
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    torch.cuda.set_device(device)
    dist.init_process_group("nccl", device_id=device)
    group = dist.group.WORLD.group_name
    # Each rank has numbers of its own: a lost or doubled contribution shows.
    torch.manual_seed(1 + dist.get_rank())
    serve(device, group)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
