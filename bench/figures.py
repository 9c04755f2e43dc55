#!/usr/bin/env python3
"""The paper's Figures 4 to 7 on this machine: every contender on the same grid, interleaved, checked before it
is timed.

    python bench/figures.py                     # the whole grid, on the GPU if there is one: about four minutes
    python bench/figures.py --quick             # about a minute
    python bench/figures.py --device cpu        # peers: PyTorch's SDPA on the CPU, standard attention
    python bench/figures.py --draw results.json # only draw; of several files a later one replaces cells

Writes results.json (machine, versions, commit, every median with its spread) after each cell and
figure4..7.png/.svg at the end into --out. Setting (paper, section 4.1): 16k tokens a batch, hidden size 2048,
heads = 2048 / D, TFLOP/s = 4 S^2 D H B / t, halved when causal, 2.5 times that for the backward; forward +
backward is the sum of the two separately timed passes.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from contenders import Contender, contenders  # noqa: E402

SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384)
GRADIENTS = ("dq", "dk", "dv")


def flops(cell: dict) -> float:
    forward = 4.0 * cell["S"] ** 2 * cell["D"] * cell["H"] * cell["B"] * (0.5 if cell["causal"] else 1.0)
    return forward * (1.0 if cell["pass"] == "fwd" else 2.5)


def grid(args) -> list[dict]:
    return [
        dict(D=D, H=args.hidden // D, B=max(1, args.tokens // S), S=S, causal=causal, **{"pass": pass_})
        for D in args.head_dim
        for pass_ in args.passes
        for causal in args.causal
        for S in args.seq
    ]


def name_of(cell: dict) -> str:
    return f"D {cell['D']:<3} {cell['pass']} {'causal' if cell['causal'] else 'full  '} S {cell['S']:<5}"


class Clock:
    """Times one call in milliseconds: CUDA events on a GPU, wall clock on the CPU."""

    def __init__(self, device: torch.device):
        self.cuda = device.type == "cuda"

    def __call__(self, call, repeats: int) -> list[float]:
        if not self.cuda:
            times = []
            for _ in range(repeats):
                begin = time.perf_counter()
                call()
                times.append((time.perf_counter() - begin) * 1e3)
            return times
        events = [
            (torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True))
            for _ in range(repeats)
        ]
        for begin, end in events:
            begin.record()
            call()
            end.record()
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) for begin, end in events]


# Correctness: the first head of the first sequence and the last of the last.


def heads_of(t) -> list:
    return [t[0, :, 0], t[-1, :, -1]]


def reference(q, k, v, dout, causal):
    """Those heads in float64 (16 bit beyond 4096: float32) and, naively, in the inputs' dtype: (out, dq, dk, dv) each."""

    def run(dtype, *head):
        a, b, c, g = (t.to(dtype) for t in head)
        s = a @ b.T * a.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        p = torch.softmax(s, -1)
        out, dp = p @ c, g @ c.T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * a.shape[-1] ** -0.5
        return [t.double() for t in (out, ds @ b, ds.T @ a, p.T @ g)]

    exact = torch.float64 if q.shape[1] <= 4096 or q.dtype == torch.float32 else torch.float32
    heads = list(zip(*map(heads_of, (q, k, v, dout))))
    return [(run(exact, *h), run(q.dtype, *h)) for h in heads]


def check(results, judged, backward: bool) -> tuple[bool, str]:
    """(may be timed, note). The accuracy rule: at most 2 (gradients 3) times the naive same-dtype error. A
    contender a little beyond it is timed with a note; one beyond four times that computes something else."""
    factor, timed, note = 3 if backward else 2, True, ""
    for head, (exact, naive) in enumerate(judged):
        part = slice(1, 4) if backward else slice(0, 1)
        for name, got, want, plain in zip(
            GRADIENTS if backward else ("out",), results, exact[part], naive[part]
        ):
            error = (heads_of(got)[head].double() - want).abs().max()
            eps = 1e-6 if got.dtype == torch.float32 else 1e-5
            allowed = factor * (plain - want).abs().max() + eps * want.abs().max()
            if not error <= allowed:
                timed = timed and bool(error <= 4 * allowed)
                verdict = "inaccurate" if timed else "wrong"
                note = f"{verdict}: {name} is off by {error:.2e}, the rule allows {allowed:.2e}"
    return timed, note


# One cell.


def tensors(cell: dict, dtype, device) -> dict:
    torch.manual_seed(0)
    shape = (cell["B"], cell["S"], cell["H"], cell["D"])
    return {n: torch.randn(shape, device=device, dtype=dtype) for n in ("q", "k", "v", "dout")}


def swapped(c: Contender, t):
    return t.transpose(1, 2) if c.layout == "bhsd" else t


def call_of(c: Contender, cell: dict, base: dict, views: bool = False):
    """What is timed: the forward, or the backward of a forward that has run. Tensors contiguous in the
    contender's layout, or with `views` as they lie in ours."""
    q, k, v, dout = (swapped(c, base[n]) for n in ("q", "k", "v", "dout"))
    if not views:
        q, k, v, dout = (t.contiguous() for t in (q, k, v, dout))
    if cell["pass"] == "fwd":
        return lambda: c.attend(q, k, v, cell["causal"])
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    out = c.attend(q, k, v, cell["causal"])
    return lambda: torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)


def prepare(c: Contender, cell: dict, base: dict, memory: float):
    """The timed call of a contender in a cell, or the reason why there is none."""
    backward = cell["pass"] == "bwd"
    stored = c.stored_scores * (2 if backward else 1) * cell["B"] * cell["H"] * cell["S"] ** 2
    if stored * base["q"].element_size() > memory:
        return None, "OOM"
    call = call_of(c, cell, base)
    results = call() if backward else (call(),)
    timed, note = check([swapped(c, t) for t in results], base["judged"], backward)
    return call if timed else None, note


def reason(error: Exception) -> str:
    if isinstance(error, torch.OutOfMemoryError):
        return "OOM"
    return f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"


def measure(cell: dict, args, device: torch.device, field: list[Contender], memory: float, seconds: float):
    """A row for each contender. `seconds` for all of them bounds the repeats, after one call of each."""
    rows = {c.name: dict(cell, contender=c.name, ms=None, note="") for c in field}
    clock = Clock(device)
    try:
        base = tensors(cell, args.dtype, device)
        base["judged"] = reference(*(base[n] for n in ("q", "k", "v", "dout")), cell["causal"])
    except Exception as error:
        for row in rows.values():
            row["note"] = f"no reference to check against: {reason(error)}"
        return list(rows.values())
    share = min(args.budget_ms, 1e3 * seconds / max(len(field), 1) / (args.rounds + 1))
    calls = {}
    for c in field:
        try:
            call, rows[c.name]["note"] = prepare(c, cell, base, memory)
            if call:
                once = min(clock(call, 2))
                calls[c.name] = call, max(1, min(20, int(share / max(once, 1e-3)))), []
        except Exception as error:
            rows[c.name]["note"] = reason(error)
        if c.stored_scores and device.type == "cuda":
            torch.cuda.empty_cache()
    for turn in range(args.rounds):  # interleaved, and after another one each time: a hot GPU slows what follows
        for name in random.Random(turn).sample(list(calls), len(calls)):
            call, repeats, times = calls[name]
            try:
                times.append(statistics.median(clock(call, repeats)))
            except Exception as error:
                rows[name]["note"] = reason(error)
                del calls[name]
    for name, (_, _, times) in calls.items():
        ms = statistics.median(times)
        rows[name].update(ms=ms, spread=(max(times) - min(times)) / ms, tflops=flops(cell) / ms / 1e9)
    return list(rows.values())


# Compiling ahead: Triton and flex_attention in helper processes that fill the caches on disk, ours in threads.


def jobs(args, field: list[Contender]) -> list[tuple[Contender, dict]]:
    """What helper processes run once. Triton's tiles are those of every length."""
    found = []
    for c in field:
        if c.compiles == "process":
            for cell in grid(args):
                if c.name != "triton" or cell["S"] == args.seq[0]:
                    found.append((c, cell))
    return found


def help_compiling(args, device: torch.device, field: list[Contender]) -> None:
    """One helper's share of the jobs."""
    number, helpers = args.helper
    for c, cell in jobs(args, field)[number::helpers]:
        try:
            call_of(c, cell, tensors(cell, args.dtype, device))()
        except Exception as error:
            print(f"{c.name}, {name_of(cell)}: {type(error).__name__}: {error}", file=sys.stderr)


def compile_ahead(args, device: torch.device, field: list[Contender]) -> None:
    import tilewise

    begin = time.perf_counter()
    helpers = min(len(jobs(args, field)), 12, max(1, (os.cpu_count() or 2) - 2))
    environment = dict(os.environ, TORCHINDUCTOR_COMPILE_THREADS="1")
    started = [
        subprocess.Popen(
            [sys.executable, __file__, *sys.argv[1:], "--helper", f"{n},{helpers}"], env=environment
        )
        for n in range(helpers)
    ]

    def ours(c: Contender, cell: dict) -> None:
        shape = (cell["B"], cell["S"], cell["H"], cell["D"])
        q = torch.empty(shape, device=device, dtype=args.dtype)
        options = dict(causal=cell["causal"], algorithm=c.algorithm)
        try:
            tilewise.prepare(q, q, q, backward=cell["pass"] == "bwd", **options)
        except Exception as error:  # the cell will say so
            print(f"{c.name}, {name_of(cell)}: {type(error).__name__}: {error}", file=sys.stderr)

    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for c in field:
            if c.compiles == "plan":
                for cell in grid(args):
                    pool.submit(ours, c, cell)
    print(f"our kernels are compiled: {time.perf_counter() - begin:.0f} s", flush=True)
    for process in started:
        process.wait()
    if started:
        print(
            f"{helpers} helper processes compiled the peers: {time.perf_counter() - begin:.0f} s", flush=True
        )


# The run.


def output_of(*command: str) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""


def processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(x.split(":")[1].strip() for x in lines if x.startswith("model name"))
    except (OSError, StopIteration):
        return platform.machine()


def machine(args, device: torch.device) -> dict:
    import tilewise

    root = str(Path(__file__).resolve().parent.parent)
    commit = args.commit or output_of("git", "-C", root, "rev-parse", "--short", "HEAD")
    if not args.commit and output_of("git", "-C", root, "status", "--porcelain", "--untracked-files=no"):
        commit += " with changes"
    facts = dict(
        device=processor(),
        dtype=str(args.dtype).removeprefix("torch."),
        python=platform.python_version(),
        torch=torch.__version__,
        tilewise=tilewise.__version__,
        commit=commit or "unknown",
        threads=torch.get_num_threads(),
        date=time.strftime("%Y-%m-%d"),
        command=" ".join(["bench/figures.py", *sys.argv[1:]]),
    )
    if device.type == "cuda":
        import triton

        facts.update(
            device=torch.cuda.get_device_name(),
            driver=output_of("nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"),
            cuda=torch.version.cuda,
            cudnn=torch.backends.cudnn.version(),
            triton=triton.__version__,
        )
    return facts


def progress(done: int, total: int, text: str) -> None:
    if sys.stderr.isatty():
        filled = 30 * done // max(total, 1)
        print(
            f"\r[{'#' * filled}{'.' * (30 - filled)}] {done}/{total} {text:60.60}",
            end="",
            file=sys.stderr,
            flush=True,
        )


def speeds(rows: list[dict]) -> str:
    return "  ".join(
        f"{r['contender']}={r['tflops']:.3g}" if r["ms"] else f"{r['contender']}=({r['note'][:60]})"
        for r in rows
    )


def available(args, device: torch.device) -> tuple[list[Contender], dict]:
    known = contenders(device)
    wanted = args.contenders.split(",") if args.contenders else [c.name for c in known]
    for name in wanted:
        if name not in {c.name for c in known}:
            sys.exit(f"--contenders: '{name}'; must be among {', '.join(c.name for c in known)}")
    reasons = {c.name: c.available(device) for c in known if c.name in wanted}
    field = [c for c in known if reasons.get(c.name) == ""]
    return field, {name: reason for name, reason in reasons.items() if reason}


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [int(x) for x in text.split(",")]  # noqa: E731
    gpu = torch.cuda.is_available()
    parser.add_argument("--device", default="cuda" if gpu else "cpu", choices=["cuda", "cpu"])
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16", "fp32"])
    parser.add_argument("--contenders", default="", help="comma-separated; default: all that can run here")
    parser.add_argument("--head-dim", type=numbers, default=[64, 128])
    parser.add_argument("--seq", type=numbers, default=None)
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--passes", type=lambda t: t.split(","), default=["fwd", "bwd"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-ms", type=float, default=40.0, help="time of one contender in one round")
    parser.add_argument(
        "--budget", type=float, help="seconds for the whole run; cells beyond it are left out"
    )
    parser.add_argument("--quick", action="store_true", help="two lengths, two rounds")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--commit", default="", help="what to record where there is no git repository")
    parser.add_argument("--draw", type=Path, nargs="+", help="draw earlier results, measure nothing")
    parser.add_argument("--helper", type=numbers, help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.dtype]
    if args.device == "cpu":  # sized for a few cores: the same shapes with fewer tokens and heads
        args.tokens, args.hidden = min(args.tokens, 1024 if args.quick else 2048), min(args.hidden, 512)
        args.seq = args.seq or ([512, 1024] if args.quick else [512, 1024, 2048, 4096, 8192])
    args.seq = args.seq or ([2048, 8192] if args.quick else list(SEQUENCES))
    if args.quick:
        args.rounds, args.budget_ms = 2, min(args.budget_ms, 15.0)
    if args.budget is None:
        args.budget = 60.0 if args.quick else 345.0 if args.device == "cuda" else 1200.0
    args.causal = [bool(c) for c in args.causal]
    return args


def draw_files(files: list[Path], out: Path) -> None:
    from draw import draw

    results = json.loads(files[0].read_text())
    for file in files[1:]:
        more = json.loads(file.read_text())
        for part in ("labels", "paper"):
            results[part].update(more[part])
        results["rows"] += more["rows"]  # a later row of a cell counts
        first, other = ([r["machine"].get(n) for n in ("device", "dtype")] for r in (results, more))
        if first != other:
            sys.exit(f"{file} is of {other}, {files[0]} of {first}: one figure cannot show both")
    draw(results, out)


def run(args, device: torch.device) -> dict:
    begin = time.monotonic()
    field, absent = available(args, device)
    for name, why in absent.items():
        print(f"{name}: not available: {why}")
    if not field:
        sys.exit("nothing to measure: none of the contenders is available here")
    if device.type == "cuda":
        compile_ahead(args, device, field)
    memory = 0.9 * torch.cuda.mem_get_info()[0] if device.type == "cuda" else 8e9
    results = dict(
        machine=machine(args, device),
        labels={c.name: c.label for c in field},
        paper={c.name: c.paper for c in field},
        absent=absent,
        rows=[],
    )
    args.out.mkdir(parents=True, exist_ok=True)
    cells = grid(args)
    for n, cell in enumerate(cells):
        left = args.budget - (time.monotonic() - begin)
        progress(n, len(cells), name_of(cell))
        if left > 0:
            rows = measure(cell, args, device, field, memory, left / (len(cells) - n))
        else:
            note = f"not measured: the {args.budget:.0f} s of --budget were over"
            rows = [dict(cell, contender=c.name, ms=None, note=note) for c in field]
        results["rows"] += rows
        (args.out / "results.json").write_text(json.dumps(results, indent=1))
        said = speeds(rows) if left > 0 else "not measured: the time is over"
        print(f"{time.monotonic() - begin:4.0f} s  {name_of(cell)} {said}", flush=True)
    progress(len(cells), len(cells), "done\n")
    return results


def main() -> int:
    args = arguments()
    if args.draw:
        draw_files(args.draw, args.out)
        return 0
    device = torch.device(args.device)
    if args.helper:
        help_compiling(args, device, available(args, device)[0])
        return 0
    from draw import draw

    draw(run(args, device), args.out)
    print(f"wrote {args.out}/results.json and the figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
