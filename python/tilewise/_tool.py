"""check, bench, explain and info in Python: what `python -m tilewise` does where the wheel has no command-line tool
(it was built without CLI11 or nlohmann-json). Options as the tool has them; numpy on the CPU, torch on a GPU."""

from __future__ import annotations

import argparse
import itertools
import statistics
import sys
import time
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


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tilewise", description=__doc__, epilog=_EPILOG)
    verbs = parser.add_subparsers(dest="verb", required=True, metavar="check|bench|explain|info")
    verbs.add_parser("info", help="what this installation and machine offer")
    check = verbs.add_parser("check", help="is this installation right? (a self-test of less than a minute)")
    check.add_argument("--algorithm", help="a kernel by a name that explain lists")
    problem = argparse.ArgumentParser(add_help=False)
    problem.add_argument("--batch", type=int, default=1)
    problem.add_argument(
        "--seqlen", type=_list(int), default=[2048], help="queries, and keys unless --seqlen-k"
    )
    problem.add_argument("--seqlen-k", type=int)
    problem.add_argument("--heads", type=int, default=8)
    problem.add_argument("--kv-heads", type=int)
    problem.add_argument("--dim", type=_list(int), default=[64])
    problem.add_argument("--dim-v", type=int)
    problem.add_argument("--dtype", type=_list(str), default=["fp32"], help="fp32, fp16, bf16")
    problem.add_argument("--pass", dest="passes", type=_list(str), default=["fwd"], help="fwd, bwd")
    problem.add_argument("--causal", action="store_true")
    problem.add_argument("--causal-top-left", action="store_true")
    problem.add_argument("--window", type=_window, default=(-1, -1), metavar="LEFT,RIGHT")
    problem.add_argument("--scale", type=float)
    problem.add_argument("--softcap", type=float, default=0.0)
    problem.add_argument("--device", default="cpu", help="cpu, or cuda (needs torch)")
    problem.add_argument("--threads", type=int, default=0)
    problem.add_argument("--algorithm")
    verbs.add_parser("explain", parents=[problem], help="which kernel would run, and why not the others")
    bench = verbs.add_parser("bench", parents=[problem], help="speed over a grid; lists separated by commas")
    bench.add_argument("--seconds", type=float, default=1.0, help="time for each problem")
    return parser


def _options(x: argparse.Namespace) -> dict:
    return dict(
        causal=x.causal or x.causal_top_left,
        alignment="top-left" if x.causal_top_left else "bottom-right",
        window=x.window,
        scale=x.scale,
        softcap=x.softcap,
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
    if x.device != "cpu":
        import torch

        kinds = dict(fp32=torch.float32, fp16=torch.float16, bf16=torch.bfloat16)
        return tuple(torch.randn(s, device=x.device, dtype=kinds[dtype]) for s in shapes)
    kind: Any = dict(fp32=np.float32, fp16=np.float16).get(dtype)
    if kind is None:
        import ml_dtypes

        kind = ml_dtypes.bfloat16
    rng = np.random.default_rng(0)
    return tuple(rng.standard_normal(s, dtype=np.float32).astype(kind) for s in shapes)


def _problems(x: argparse.Namespace):
    for dtype, pass_ in itertools.product(x.dtype, x.passes):
        if dtype not in ("fp32", "fp16", "bf16"):
            raise ValueError(f"--dtype: '{dtype}'; must be fp32, fp16 or bf16")
        if pass_ not in ("fwd", "bwd"):
            raise ValueError(f"--pass: '{pass_}'; must be fwd or bwd")
    return itertools.product(x.dtype, x.passes, x.dim, x.seqlen)


def _call(inputs: tuple, backward: bool, options: dict) -> Any:
    """One run, finished when it returns."""
    if isinstance(inputs[0], np.ndarray):
        if not backward:
            return lambda: attention(*inputs, **options)
        out, lse = attention(*inputs, return_lse=True, **options)
        q, k, v = inputs
        return lambda: attention_backward(out, q, k, v, out, lse, **options)
    import torch

    leaves = [t.requires_grad_(backward) for t in inputs]
    out = attention(*leaves, **options)

    def run() -> None:
        if backward:
            torch.autograd.grad(out, leaves, torch.ones_like(out), retain_graph=True)
        else:
            attention(*leaves, **options)
        torch.cuda.synchronize()

    return run


def _bench(x: argparse.Namespace) -> None:
    options = _options(x)
    print(
        f"{'dtype':5} {'pass':4} {'mask':6} {'batch':>5} {'seqlen':>8} {'dim':>4} {'heads':>5} {'median':>11}"
    )
    for dtype, pass_, dim, seqlen in _problems(x):
        inputs = _inputs(x, dtype, dim, seqlen)
        call = _call(inputs, pass_ == "bwd", options)
        call()
        times: list[float] = []
        end = time.perf_counter() + x.seconds
        while not times or time.perf_counter() < end:
            begin = time.perf_counter()
            call()
            times.append(time.perf_counter() - begin)
        keys = inputs[1].shape[1]
        operations = 2.0 * x.batch * x.heads * seqlen * keys * (dim + (x.dim_v or dim))
        operations *= (0.5 if options["causal"] else 1.0) * (2.5 if pass_ == "bwd" else 1.0)
        median = statistics.median(times)
        mask = "causal" if options["causal"] else "full"
        print(
            f"{dtype:5} {pass_:4} {mask:6} {x.batch:5} {seqlen:8} {dim:4} {x.heads:5} "
            f"{median * 1e3:8.3f} ms {operations / median / 1e9:9.0f} GFLOP/s",
            flush=True,
        )


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

            wrong = check(x.algorithm)
            print(
                f"This installation is NOT right: {wrong} results."
                if wrong
                else "Everything that ran is right."
            )
            return 1 if wrong else 0
        elif x.verb == "explain":
            for dtype, pass_, dim, seqlen in _problems(x):
                print(explain(*_inputs(x, dtype, dim, seqlen), backward=pass_ == "bwd", **_options(x)))
        else:
            _bench(x)
    except (ValueError, TypeError, UnsupportedError, ImportError) as error:
        print(f"tilewise: {error}", file=sys.stderr)
        return 2
    return 0
