"""check, bench, explain and info in Python: what `python -m tilewise` does where the wheel has no command-line tool
(it was built without CLI11 or nlohmann-json). Options as the tool has them; numpy on the CPU, torch on a GPU."""

from __future__ import annotations

import argparse
import importlib.util
import itertools
import json
import os
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import numpy as np

from . import UnsupportedError, attention, attention_backward, explain, info

_EPILOG = """The command-line tool itself also attends and differentiates .npy and .safetensors files. To have it, install
CLI11 and nlohmann-json (Debian: libcli11-dev, nlohmann-json3-dev), then `pip install --force-reinstall .` again."""


def _list(kind: type) -> Any:
    return lambda text: [kind(x) for x in text.split(",")]


def _window(text: str) -> tuple[int, int]:
    left, right = (int(x) for x in text.split(","))
    return left, right


def _problem(seqlen: list[int], dim: list[int]) -> argparse.ArgumentParser:
    problem = argparse.ArgumentParser(add_help=False)
    problem.add_argument("--batch", type=int, default=1)
    problem.add_argument("--seqlen", type=_list(int), default=seqlen, help="queries, and keys unless --seqlen-k")
    problem.add_argument("--seqlen-k", type=int)
    problem.add_argument("--heads", type=int, default=8)
    problem.add_argument("--kv-heads", type=int)
    problem.add_argument("--dim", type=_list(int), default=dim)
    problem.add_argument("--dim-v", type=int)
    problem.add_argument("--dtype", type=_list(str), default=["fp32"], help="fp32, fp16, bf16")
    problem.add_argument("--pass", dest="passes", type=_list(str), default=["fwd"], help="fwd, bwd; bench: fwdbwd")
    problem.add_argument("--causal", action="store_true")
    problem.add_argument("--causal-top-left", action="store_true")
    problem.add_argument("--window", type=_window, metavar="LEFT,RIGHT")
    problem.add_argument("--scale", type=float)
    problem.add_argument("--softcap", type=float, default=0.0)
    problem.add_argument("--dropout", type=float, default=0.0)
    problem.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (needs torch)")
    problem.add_argument("--threads", type=int, default=0)
    problem.add_argument("--algorithm")
    problem.add_argument("--batch-invariant", action="store_true")
    return problem


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tilewise", description=__doc__, epilog=_EPILOG)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="check|bench|explain|info")
    verbs.add_parser("info", help="what this installation and machine offer")
    check = verbs.add_parser("check", help="is this installation right? (a self-test of less than a minute)")
    check.add_argument("--device", default="cpu", help="cpu, cuda or cuda:N (needs torch)")
    check.add_argument("--algorithm", help="a kernel by a name that explain lists")
    verbs.add_parser(
        "explain", parents=[_problem([2048], [64])], help="which kernel would run, and why not the others"
    )
    bench = verbs.add_parser(
        "bench",
        parents=[_problem([512, 2048, 8192], [64, 128])],
        help="speed over a grid; lists separated by commas",
    )
    bench.add_argument("--full", action="store_true", help="without a mask only (default: without and causal)")
    bench.add_argument("--seconds", type=float, default=1.0, help="time for each problem")
    bench.add_argument(
        "--clock", default="wall", choices=["wall", "cpu"], help="cpu: the process's time, by its threads"
    )
    bench.add_argument("--json", action="store_true", help="results as JSON")
    bench.add_argument("--against", help="only the command-line tool has what it names")
    return parser


def _options(x: argparse.Namespace) -> dict:
    return dict(
        causal=x.causal or x.causal_top_left,
        alignment="top-left" if x.causal_top_left else "bottom-right",
        window=x.window or (-1, -1),
        scale=x.scale,
        softcap=x.softcap,
        dropout_p=x.dropout,
        batch_invariant=x.batch_invariant,
        threads=x.threads,
        algorithm=x.algorithm,
    )


def _inputs(x: argparse.Namespace, dtype: str, dim: int, seqlen: int) -> tuple:
    keys = seqlen if x.seqlen_k is None else x.seqlen_k
    kv_heads = x.kv_heads or x.heads
    shapes = (
        (x.batch, seqlen, x.heads, dim),
        (x.batch, keys, kv_heads, dim),
        (x.batch, keys, kv_heads, x.dim_v or dim),
    )
    bf16_without_ml_dtypes = dtype == "bf16" and importlib.util.find_spec("ml_dtypes") is None
    if x.device != "cpu" or bf16_without_ml_dtypes:
        if importlib.util.find_spec("torch") is None:
            raise ValueError("--dtype bf16 needs ml_dtypes or torch, --device cuda needs torch")
        import torch

        kinds = dict(fp32=torch.float32, fp16=torch.float16, bf16=torch.bfloat16)
        return tuple(torch.randn(s, device=x.device, dtype=kinds[dtype]) for s in shapes)
    kind: Any = dict(fp32=np.float32, fp16=np.float16).get(dtype)
    if kind is None:
        import ml_dtypes

        kind = ml_dtypes.bfloat16
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s, dtype=np.float32).astype(kind) for s in shapes)


def _problems(x: argparse.Namespace, masks: Sequence[dict]):
    for dtype, pass_ in itertools.product(x.dtype, x.passes):
        if dtype not in ("fp32", "fp16", "bf16"):
            raise ValueError(f"--dtype: '{dtype}'; must be fp32, fp16 or bf16")
        known = ("fwd", "bwd", "fwdbwd") if x.verb == "bench" else ("fwd", "bwd")
        if pass_ not in known:
            raise ValueError(f"--pass: '{pass_}'; must be {' or '.join(known)}")
    return itertools.product(x.dtype, x.passes, x.dim, masks, x.seqlen)


def _call(inputs: tuple, pass_: str, options: dict) -> Any:
    """One run, finished when it returns."""
    forward, backward = pass_ != "bwd", pass_ != "fwd"
    if isinstance(inputs[0], np.ndarray):
        out, lse = attention(*inputs, return_lse=True, **options)

        def run() -> None:
            if forward:
                attention(*inputs, out=out, **options)
            if backward:
                attention_backward(out, *inputs, out, lse, **options)

        return run
    import torch

    leaves = [t.requires_grad_(backward) for t in inputs]
    out = attention(*leaves, **options)
    dout = torch.ones_like(out)

    def run_torch() -> None:
        result = attention(*leaves, **options) if forward else out
        if backward:
            torch.autograd.grad(result, leaves, dout, retain_graph=True)
        if result.is_cuda:
            torch.cuda.synchronize(result.device)

    return run_torch


def _operations(x: argparse.Namespace, pass_: str, dim: int, queries: int, keys: int, options: dict) -> float:
    """Multiplications and additions of the scores that the mask leaves."""
    i = np.arange(queries) + (0 if options["alignment"] == "top-left" else keys - queries)
    left, right = options["window"]
    right = 0 if options["causal"] else right
    begin = np.clip(i - left, 0, keys) if left >= 0 else np.zeros_like(i)
    end = np.clip(i + right + 1, 0, keys) if right >= 0 else np.full_like(i, keys)
    scores = float(np.maximum(end - begin, 0).sum())
    factor = dict(fwd=1.0, bwd=2.5, fwdbwd=3.5)[pass_]
    return factor * 2.0 * x.batch * x.heads * scores * (dim + (x.dim_v or dim))


def _median_seconds(call: Any, x: argparse.Namespace) -> float:
    clock = time.perf_counter
    if x.clock == "cpu":
        threads = x.threads or len(os.sched_getaffinity(0))

        def clock() -> float:
            return time.process_time() / threads

    call()
    times: list[float] = []
    end = time.perf_counter() + x.seconds
    while not times or time.perf_counter() < end:
        begin = clock()
        call()
        times.append(clock() - begin)
    return statistics.median(times)


def _bench(x: argparse.Namespace) -> None:
    if x.against:
        raise ValueError(f"--against: this wheel has nothing to compare with. {_EPILOG}")
    masks = [_options(x)]
    if not masks[0]["causal"] and x.window is None and not x.full:
        masks.append(dict(masks[0], causal=True))
    if not x.json:
        columns = f"{'dtype':5} {'pass':6} {'mask':6} {'batch':>5} {'seqlen':>11} {'dim':>4} {'heads':>6}"
        print(f"{columns} {'median':>11}")
    rows = []
    for dtype, pass_, dim, options, seqlen in _problems(x, masks):
        inputs = _inputs(x, dtype, dim, seqlen)
        keys, kv_heads = inputs[1].shape[1:3]
        seconds = _median_seconds(_call(inputs, pass_, options), x)
        rate = _operations(x, pass_, dim, seqlen, keys, options) / seconds
        mask = "window" if x.window else "causal" if options["causal"] else "full"
        row = {"algorithm": x.algorithm or "tilewise", "pass": pass_, "dtype": dtype, "mask": mask, "batch": x.batch}
        row.update(seqlen_q=seqlen, seqlen_k=keys, heads=x.heads, kv_heads=kv_heads, dim=dim, dim_v=x.dim_v or dim)
        rows.append(dict(row, seconds=seconds, flops_per_second=rate))
        if not x.json:
            lengths = str(seqlen) + (f"/{keys}" if keys != seqlen else "")
            heads = str(x.heads) + (f"/{kv_heads}" if kv_heads != x.heads else "")
            print(
                f"{dtype:5} {pass_:6} {mask:6} {x.batch:5} {lengths:>11} {dim:4} {heads:>6} "
                f"{seconds * 1e3:8.3f} ms {rate / 1e9:9.0f} GFLOP/s",
                flush=True,
            )
    if x.json:
        print(json.dumps(rows, indent=1))


def main(arguments: list[str]) -> int:
    if arguments[:1] in (["attend"], ["grad"], ["compile"], ["demo"]):
        print(f"tilewise: this wheel has no '{arguments[0]}'. {_EPILOG}", file=sys.stderr)
        return 2
    x = _parser().parse_args(arguments)
    try:
        if x.verb == "info":
            print(info())
        elif x.verb == "check":
            from ._check import check

            wrong = check(x.algorithm, x.device)
            print(
                f"This installation is NOT right: {wrong} results."
                if wrong
                else "Everything that ran is right."
            )
            return 1 if wrong else 0
        elif x.verb == "explain":
            for dtype, pass_, dim, options, seqlen in _problems(x, [_options(x)]):
                print(explain(*_inputs(x, dtype, dim, seqlen), backward=pass_ == "bwd", **options))
        else:
            _bench(x)
        sys.stdout.flush()
    except BrokenPipeError:  # whoever reads our output has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (ValueError, TypeError, UnsupportedError, ImportError) as error:
        print(f"tilewise: {error}", file=sys.stderr)
        return 2
    return 0
