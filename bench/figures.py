#!/usr/bin/env python3
"""The paper's Figures 4 to 7 on this machine: every contender on the same grid, interleaved, checked before it
is timed.

    python bench/figures.py                     # the whole grid, on the GPU if there is one
    python bench/figures.py --quick             # about a minute
    python bench/figures.py --device cpu        # peers: PyTorch's SDPA on the CPU, standard attention
    python bench/figures.py --draw results.json # only draw

Writes results.json (machine, versions, commit, every median with its spread) and figure4..7.png/.svg into
--out. Setting (paper, section 4.1): 16k tokens a batch, hidden size 2048, heads = 2048 / D, TFLOP/s = 4 S^2
D H B / t, halved when causal, 2.5 times that for the backward; forward + backward is the sum of the two
separately timed passes.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from contenders import Contender, contenders  # noqa: E402

SEQUENCES = (512, 1024, 2048, 4096, 8192, 16384)


def flops(cell: dict) -> float:
    forward = 4.0 * cell["S"] ** 2 * cell["D"] * cell["H"] * cell["B"] * (0.5 if cell["causal"] else 1.0)
    return forward * (1.0 if cell["pass"] == "fwd" else 2.5)


def grid(args) -> list[dict]:
    cells = []
    for D in args.head_dim:
        for pass_ in args.passes:
            for causal in args.causal:
                for S in args.seq:
                    cells.append(
                        dict(
                            D=D,
                            H=args.hidden // D,
                            B=max(1, args.tokens // S),
                            S=S,
                            causal=causal,
                            **{"pass": pass_},
                        )
                    )
    return cells


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


def reference(q, k, v, dout, causal):
    """One head of one batch entry in float64 (float32 beyond 4096): out, dq, dk, dv and the same in the
    inputs' dtype (naive)."""

    def run(dtype):
        a, b, c, g = (t[0, :, 0].to(dtype) for t in (q, k, v, dout))
        s = a @ b.T * a.shape[-1] ** -0.5
        if causal:
            s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -torch.inf)
        p = torch.softmax(s, -1)
        out, dp = p @ c, g @ c.T
        ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * a.shape[-1] ** -0.5
        return [t.double() for t in (out, ds @ b, ds.T @ a, p.T @ g)]

    exact = run(torch.float64 if q.shape[1] <= 4096 else torch.float32)
    return exact, run(q.dtype)


def check(results, exact, naive, backward: bool) -> tuple[bool, str]:
    """(may be timed, note). The accuracy rule: at most 2 (gradients 3) times the naive same-dtype error. A
    contender a little
    beyond it is timed with a note; one beyond four times that computes something else and is not."""
    factor, timed, note = 3 if backward else 2, True, ""
    for name, got, want, plain in zip(("dq", "dk", "dv") if backward else ("out",), results, exact, naive):
        error, allowed = (
            (got.double() - want).abs().max(),
            factor * (plain - want).abs().max() + 1e-5 * want.abs().max(),
        )
        if not error <= allowed:
            timed = timed and bool(error <= 4 * allowed)
            verdict = "inaccurate" if timed else "wrong"
            note = f"{verdict}: {name} is off by {error:.2e}, the rule allows {allowed:.2e}"
    return timed, note


def prepare(c: Contender, cell: dict, base: dict, memory: float):
    """The timed call of a contender in a cell, or the reason why there is none."""
    if c.stored_scores:
        need = (
            c.stored_scores
            * (2 if cell["pass"] == "bwd" else 1)
            * cell["B"]
            * cell["H"]
            * cell["S"] ** 2
            * base["q"].element_size()
        )
        if need > memory:
            return None, "OOM"
    swap = (lambda t: t.transpose(1, 2)) if c.layout == "bhsd" else (lambda t: t)
    q, k, v, dout = (swap(base[n]).contiguous() for n in ("q", "k", "v", "dout"))
    causal, backward = cell["causal"], cell["pass"] == "bwd"
    if backward:
        q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
        out = c.attend(q, k, v, causal)

        def call():
            return torch.autograd.grad(out, (q, k, v), dout, retain_graph=True)

        results = [swap(t)[0, :, 0] for t in call()]
    else:

        def call():
            return c.attend(q, k, v, causal)

        results = [swap(call())[0, :, 0]]
    exact, naive = base["reference"]
    part = slice(1, 4) if backward else slice(0, 1)
    timed, note = check(results, exact[part], naive[part], backward)
    return call if timed else None, note


def measure(
    cell: dict, args, device: torch.device, field: list[Contender], clock: Clock, memory: float
) -> list[dict]:
    torch.manual_seed(0)
    shape = (cell["B"], cell["S"], cell["H"], cell["D"])
    base = {n: torch.randn(shape, device=device, dtype=args.dtype) for n in ("q", "k", "v", "dout")}
    base["reference"] = reference(base["q"], base["k"], base["v"], base["dout"], cell["causal"])
    calls, rows = {}, {}
    for c in field:
        row = rows[c.name] = dict(cell, contender=c.name, ms=None, note="")
        try:
            call, row["note"] = prepare(c, cell, base, memory)
            if call:
                for _ in range(2):
                    call()
                once = statistics.median(clock(call, 3))
                calls[c.name] = call, max(2, min(20, int(args.budget_ms / max(once, 1e-3)))), []
        except torch.OutOfMemoryError:
            row["note"] = "OOM"
        except Exception as error:
            row["note"] = f"{type(error).__name__}: {str(error)[:200]}"
        if device.type == "cuda":
            torch.cuda.empty_cache()
    for _ in range(args.rounds):  # interleaved: drift hits all alike
        for call, repeats, times in calls.values():
            times.append(statistics.median(clock(call, repeats)))
    for name, (_, _, times) in calls.items():
        ms = statistics.median(times)
        rows[name].update(ms=ms, spread=(max(times) - min(times)) / ms, tflops=flops(cell) / ms / 1e9)
    return list(rows.values())


def machine(device: torch.device) -> dict:
    import tilewise

    root = Path(__file__).resolve().parent.parent
    git = subprocess.run(["git", "-C", root, "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    facts = dict(
        device=platform.processor() or platform.machine(),
        torch=torch.__version__,
        tilewise=tilewise.__version__,
        commit=git.stdout.strip(),
        threads=torch.get_num_threads(),
        date=time.strftime("%Y-%m-%d"),
    )
    if device.type == "cuda":
        facts.update(
            device=torch.cuda.get_device_name(), cuda=torch.version.cuda, cudnn=torch.backends.cudnn.version()
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


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    numbers = lambda text: [int(x) for x in text.split(",")]  # noqa: E731
    parser.add_argument(
        "--device", default="cuda" if torch.cuda.is_available() else "cpu", choices=["cuda", "cpu"]
    )
    parser.add_argument("--dtype", default="bf16", choices=["bf16", "fp16", "fp32"])
    parser.add_argument(
        "--contenders", default="", help="comma-separated names; default: all that can run here"
    )
    parser.add_argument("--head-dim", type=numbers, default=[64, 128])
    parser.add_argument("--seq", type=numbers, default=None)
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--passes", type=lambda t: t.split(","), default=["fwd", "bwd"])
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--budget-ms", type=float, default=40.0, help="time of one contender in one round")
    parser.add_argument("--quick", action="store_true", help="three lengths, two rounds")
    parser.add_argument("--out", type=Path, default=Path("figures"))
    parser.add_argument("--draw", type=Path, help="draw an earlier results.json, measure nothing")
    args = parser.parse_args()
    args.dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[args.dtype]
    if args.device == "cpu":  # sized for a few cores: the same shapes with fewer tokens and heads
        args.tokens, args.hidden = min(args.tokens, 2048), min(args.hidden, 512)
        args.seq = args.seq or ([512, 1024, 2048] if args.quick else [512, 1024, 2048, 4096, 8192])
    args.seq = args.seq or ([512, 2048, 8192] if args.quick else list(SEQUENCES))
    if args.quick:
        args.rounds, args.budget_ms = 2, min(args.budget_ms, 15.0)
    args.causal = [bool(c) for c in args.causal]
    return args


def main() -> int:
    args = arguments()
    from draw import draw

    if args.draw:
        draw(json.loads(args.draw.read_text()), args.out)
        return 0
    device = torch.device(args.device)
    field, absent = [], {}
    for c in contenders(device):
        if args.contenders and c.name not in args.contenders.split(","):
            continue
        reason = c.available(device)
        if reason:
            absent[c.name] = reason
            print(f"{c.name}: not available: {reason}")
        else:
            field.append(c)
    memory = 0.9 * torch.cuda.mem_get_info()[0] if device.type == "cuda" else 8e9
    clock, rows, cells = Clock(device), [], grid(args)
    for n, cell in enumerate(cells):
        progress(
            n,
            len(cells),
            f"D {cell['D']} {cell['pass']} {'causal' if cell['causal'] else 'full'} S {cell['S']}",
        )
        measured = measure(cell, args, device, field, clock, memory)
        rows += measured
        speeds = "  ".join(
            f"{r['contender']}={r['tflops']:.3g}" if r["ms"] else f"{r['contender']}=({r['note'][:60]})"
            for r in measured
        )
        print(
            f"D{cell['D']:<3} {cell['pass']} causal={int(cell['causal'])} S {cell['S']:<5} {speeds}",
            flush=True,
        )
    progress(len(cells), len(cells), "done\n")
    results = dict(
        machine=machine(device),
        labels={c.name: c.label for c in field},
        paper={c.name: c.paper for c in field},
        absent=absent,
        rows=rows,
    )
    args.out.mkdir(parents=True, exist_ok=True)
    (args.out / "results.json").write_text(json.dumps(results, indent=1))
    draw(results, args.out)
    print(f"wrote {args.out}/results.json and the figures")
    return 0


if __name__ == "__main__":
    sys.exit(main())
