"""A peer's own bench, for where overlap-gemm does not run beside it, and the file that it writes.

What belongs here: everything but the contenders, and nothing of their framework. Loops and turns are those of
`overlap-gemm bench all-gather-gemm`: everybody takes turns, in loops of the same number of steps, each behind
one as long that is not timed; a time is that of the slowest rank. The file is what `overlap-gemm bench merge` reads.
Invariant: a contender has times if and only if its result was right.
"""

import json
import math
import sys

FORMAT = 2
# As in the bench.
GRAPH_STEPS = 20
LOOP_MS = 40.0
WARM_UP_ROUNDS = 2


def add_arguments(parser):
    """What can be asked for; without --output the script waits for orders."""
    parser.add_argument("--output", metavar="FILE", help="bench alone, and write what `bench merge` reads")
    parser.add_argument(
        "--shapes",
        default="4096x3584x8192,8192x3584x8192,2048x3584x8192,4096x1792x4096",
        metavar="MxNxK,...",
        help="M of all ranks together, N of one (default: %(default)s)",
    )
    parser.add_argument("--types", default="bf16", metavar="TYPE,...", help="bf16, f16, e4m3")
    parser.add_argument("--scaling", default="tensor", choices=["tensor", "rows"], help="for e4m3")
    parser.add_argument("--launch", default="graph,plain", metavar="HOW,...", help="graph, plain")
    parser.add_argument("--steps", type=int, default=60, help="in a loop, at least")
    parser.add_argument("--rounds", type=int, default=9)


def cases(args, ranks):
    """The problems, as the bench's orders have them; ValueError if one makes no sense."""
    found = []
    for kind in args.types.split(","):
        if kind not in ("bf16", "f16", "e4m3"):
            raise ValueError(f"{kind} is no type: give bf16, f16 or e4m3")
        for shape in args.shapes.split(","):
            try:
                m, n, k = (int(number) for number in shape.split("x"))
            except ValueError:
                raise ValueError(f"{shape} is no shape: give MxNxK, such as 4096x3584x8192") from None
            if min(m, n, k) < 1 or m % ranks:
                raise ValueError(f"{shape}: M must be a multiple of the {ranks} ranks, and all at least 1")
            scaling = args.scaling if kind == "e4m3" else "none"
            found.append({"m": m, "n": n, "k": k, "type": kind, "scaling": scaling, "steps": GRAPH_STEPS})
    return found


def launches(args):
    """Which of graphs (True) and single launches (False) are wanted."""
    names = {"graph": True, "plain": False}
    unknown = [name for name in args.launch.split(",") if name not in names]
    if unknown:
        raise ValueError(f"{unknown[0]} is no launch: give graph, plain")
    return [names[name] for name in args.launch.split(",")]


def report(case, ranks, told, args, run):
    """One case: `told` says who takes part, `run(name, graph, steps)` is the slowest rank's µs a step."""
    entrants = []
    for contender in told:
        for graph in launches(args):
            if not graph or contender["graph"]:
                entrants.append((contender, graph, []))
    right = [entrant for entrant in entrants if not entrant[0]["failed"]]
    fastest = min((run(who["name"], graph, GRAPH_STEPS) for who, graph, _ in right), default=1.0)
    wanted = max(math.ceil(1e3 * LOOP_MS / max(fastest, 1.0)), args.steps)
    steps = GRAPH_STEPS * math.ceil(wanted / GRAPH_STEPS)
    for number in range(WARM_UP_ROUNDS + args.rounds):
        for who, graph, times in turn(number, right):
            time = run(who["name"], graph, steps)
            if number >= WARM_UP_ROUNDS:
                times.append(time)
    rows = [
        {
            "who": who["name"],
            "peer": True,
            "kind": who["kind"],
            "graph": graph,
            "what": "the peer's",
            "failed": who["failed"],
            "rounds_us": times,
            "host_us": [],
        }
        for who, graph, times in entrants
    ]
    return {"name": name(case), "problem": problem(case, ranks), "rows": rows}


def turn(number, entrants):
    """The order of a round: another begins each time, and when all have begun once it goes backwards."""
    count = max(len(entrants), 1)
    order = entrants[number % count :] + entrants[: number % count]
    return order[::-1] if number // count % 2 else order


def result_type(case):
    return "bf16" if case["type"] == "e4m3" else case["type"]


def name(case):
    """As overlap-gemm calls it."""
    a, d = case["type"], result_type(case)
    types = a if a == d else f"{a}→{d}"
    scaling = "" if case["scaling"] == "none" else f" {case['scaling']}"
    return f"{case['m']}×{case['n']}×{case['k']} {types}{scaling}"


def problem(case, ranks):
    """As overlap-gemm writes it; rows are packed and spread evenly."""
    m, n, k, a = case["m"], case["n"], case["k"], case["type"]
    return {
        "m": m,
        "n": n,
        "k": k,
        "elements": {"a": a, "b": a, "d": result_type(case)},
        "b_layout": "nk",
        "lda": k,
        "ldb": k,
        "ldd": n,
        "scaling": case["scaling"],
        "shard_rows": [m // ranks] * ranks,
    }


def document(program, version, machine, nccl, ranks, args, reports):
    """The file; `machine` has gpu, sm_count, memory_bytes, l2_bytes, driver and cores."""
    unknown = {"cuda": None, "toolkit": None, "cutlass": None, "cublaslt": None}
    run = {
        "command": " ".join(sys.argv),
        "program": program,
        "version": version,
        "machine": {**unknown, **machine},
        "nccl": nccl,
        "ranks": ranks,
        "steps": args.steps,
        "rounds": args.rounds,
        "copied": False,
        "cases": reports,
    }
    return {"bench": "all-gather-gemm", "format": FORMAT, "runs": [run]}


def write(path, content):
    with open(path, "w", encoding="utf-8") as file:
        json.dump(content, file, ensure_ascii=False, allow_nan=False)
        file.write("\n")
