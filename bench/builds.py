#!/usr/bin/env python3
"""Builds of the library against each other and against the peers of figures.py, on a GPU, in one process.

    python bench/builds.py new=build/release/libtilewise.so old=/tmp/old/libtilewise.so --against cudnn
    python bench/builds.py fa2=build/release/libtilewise.so@fa2 --against fa2 --pass bwd
    python bench/builds.py a=LIB b=LIB --against "" --group 8 --seqlen 512,2048

Planned calls through the C ABI (NAME=LIBRARY[@ALGORITHM]), so that a short row is not made of Python's time:
everything that a call enqueues, CUDA events around a burst of --ms, medians of --rounds rounds in which the
contenders take turns, each round in another order. What a build computes is judged before it is timed, as in
figures.py. Grid and TFLOP/s as there: --tokens a batch, heads = hidden / D.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parent))
from contenders import Contender, contenders  # noqa: E402
from figures import call_of, check, flops, name_of, reference  # noqa: E402

ROOT = Path(__file__).resolve().parent.parent
DTYPES = {"fp32": (torch.float32, 1), "fp16": (torch.float16, 2), "bf16": (torch.bfloat16, 3)}
TENSORS = ("q", "k", "v", "out", "lse", "dout", "dq", "dk", "dv")


class Problem(ctypes.Structure):
    _fields_ = [(n, ctypes.c_int64) for n in ("batch", "length", "heads", "kv_heads", "dim")]
    _fields_ += [(n, ctypes.c_int32) for n in ("dtype", "passes", "causal", "deterministic", "packed")]
    _fields_ += [("algorithm", ctypes.c_char_p)]


class Tensors(ctypes.Structure):
    _fields_ = [(n, ctypes.c_void_p) for n in (*TENSORS, "offsets")]


def bridge() -> ctypes.CDLL:
    """builds.cpp, compiled now."""
    source = ROOT / "bench" / "builds.cpp"
    flags = ["-std=c++20", "-O2", "-shared", "-fPIC", f"-I{ROOT / 'include'}", "-ldl"]
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "builds.so"
        subprocess.run(["c++", source, "-o", out, *flags], check=True)
        library = ctypes.CDLL(str(out))
    library.open_build.restype = library.make_call.restype = ctypes.c_void_p
    library.workspace_of.restype = library.struct_bytes.restype = ctypes.c_size_t
    assert library.struct_bytes() == ctypes.sizeof(Problem) + ctypes.sizeof(Tensors)
    return library


class Build:
    def __init__(self, library: ctypes.CDLL, text: str):
        self.name, _, path = text.rpartition("=")
        path, _, self.algorithm = path.partition("@")
        self.name = self.name or Path(path).stem
        self.library = library
        self.handle = library.open_build(str(Path(path).resolve()).encode())
        if not self.handle:
            sys.exit(f"{path}: not opened")

    def call(self, cell: dict, pass_: str, args, t: dict):
        """A compiled plan and its tensors; without tensors only the compiling is of use. None: refused."""
        backward = pass_ == "bwd"
        problem = Problem(
            *(cell[n] for n in ("B", "S", "H", "Hk", "D")),
            DTYPES[args.dtype][1],
            2 if backward else 1,
            cell["causal"],
            args.deterministic,
            args.packed,
            self.algorithm.encode(),
        )
        addresses = {n: x.data_ptr() for n, x in t.items()}
        call = self.library.make_call(
            ctypes.c_void_p(self.handle), ctypes.byref(problem), ctypes.byref(Tensors(**addresses))
        )
        if not call or self.library.prepare(ctypes.c_void_p(call)):
            return None
        return ctypes.c_void_p(call)


def tensors(cell: dict, args) -> dict:
    torch.manual_seed(0)
    B, S, H, Hk, D = (cell[n] for n in ("B", "S", "H", "Hk", "D"))
    made = dict(dtype=DTYPES[args.dtype][0], device="cuda")
    t = {n: torch.randn(B, S, Hk if n in "kv" else H, D, **made) for n in ("q", "k", "v", "dout")}
    for n in ("out", "dq", "dk", "dv"):
        t[n] = torch.full((B, S, Hk if n in ("dk", "dv") else H, D), float("nan"), **made)
    t["lse"] = torch.full((B, H, S), float("nan"), device="cuda")
    if args.packed:
        t["offsets"] = torch.arange(0, B * S + 1, S, dtype=torch.int32, device="cuda")
    return t


def planned(build: Build, cell: dict, args, t: dict, judged):
    """The timed call of a build, when what it computes is right."""
    stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
    spaces = []
    for pass_ in ("fwd", "bwd") if cell["pass"] == "bwd" else ("fwd",):
        call = build.call(cell, pass_, args, t)
        if not call:
            return None, "refused"
        spaces.append(torch.empty(build.library.workspace_of(call) + 256, dtype=torch.uint8, device="cuda"))
        build.library.set_workspace(call, ctypes.c_void_p((spaces[-1].data_ptr() + 255) // 256 * 256))
        if build.library.run(call, stream):
            return None, "failed"
    backward = cell["pass"] == "bwd"
    right, note = check([t[n] for n in (("dq", "dk", "dv") if backward else ("out",))], judged, backward)

    def run(spaces=spaces):
        build.library.run(call, stream)

    return run if right else None, note


def burst(call, repeats: int) -> float:
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin.record()
    for _ in range(repeats):
        call()
    end.record()
    torch.cuda.synchronize()
    return begin.elapsed_time(end) / repeats


def measure(cell: dict, builds: list[Build], peers: list[Contender], args) -> dict:
    """Milliseconds of each contender that takes part."""
    t = tensors(cell, args)
    judged = reference(t["q"], t["k"], t["v"], t["dout"], cell["causal"])
    heads = {n: t[n].repeat_interleave(cell["H"] // cell["Hk"], 2) for n in "kv"}
    calls = {c.name: call_of(c, cell, {**t, **heads}, args.views) for c in peers}
    for build in builds:
        for n in ("out", "lse", "dq", "dk", "dv"):
            t[n].fill_(float("nan"))
        call, note = planned(build, cell, args, t, judged)
        if note:
            print(f"{name_of(cell)} {build.name}: {note}", file=sys.stderr)
        if call:
            calls[build.name] = call
    repeats = {}
    for n, call in calls.items():
        burst(call, 1)
        repeats[n] = max(2, int(args.ms / burst(call, 2)))
    times = {n: [] for n in calls}
    names = list(calls)
    for turn in range(args.rounds):
        first = turn % len(names)
        for n in names[first:] + names[:first]:
            times[n].append(burst(calls[n], repeats[n]))
    return {n: statistics.median(x) for n, x in times.items()}


def numbers(text: str) -> list[int]:
    return [int(x) for x in text.split(",")]


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__.split("\n")[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    parser.add_argument("builds", nargs="+", metavar="NAME=LIBRARY[@ALGORITHM]")
    parser.add_argument("--against", default="cudnn", help="contenders of figures.py, or none")
    parser.add_argument("--pass", dest="passes", choices=("fwd", "bwd"), default="fwd")
    parser.add_argument("--dim", type=numbers, default=[64, 128])
    parser.add_argument("--seqlen", type=numbers, default=[512, 1024, 2048, 4096, 8192, 16384])
    parser.add_argument("--mask", choices=("full", "causal", "both"), default="both")
    parser.add_argument("--dtype", choices=DTYPES, default="bf16")
    parser.add_argument("--tokens", type=int, default=16384)
    parser.add_argument("--hidden", type=int, default=2048)
    parser.add_argument("--group", type=int, default=1, help="query heads of a key head (forward)")
    parser.add_argument("--packed", action="store_true", help="the builds' tensors packed, by offsets")
    parser.add_argument(
        "--views", action="store_true", help="peers of (B, H, S, D) take views of (B, S, H, D) in memory"
    )
    parser.add_argument("--deterministic", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--ms", type=float, default=5.0)
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    args.against = [n for n in args.against.split(",") if n]
    if args.group > 1 and args.passes == "bwd":
        parser.error("--group is for the forward: the gradients of shared heads are not judged here")
    if not torch.cuda.is_available():
        sys.exit("needs a CUDA GPU")
    known = {c.name: c for c in contenders(torch.device("cuda"))}
    if unknown := set(args.against) - set(known):
        parser.error(f"--against {', '.join(unknown)}: there are {', '.join(known)}")
    library = bridge()
    builds = [Build(library, text) for text in args.builds]
    cells = [
        {
            **dict(D=D, H=args.hidden // D, Hk=max(1, args.hidden // D // args.group)),
            **dict(B=max(1, args.tokens // S), S=S, causal=causal),
            "pass": args.passes,
        }
        for D in args.dim
        for causal in {"full": [False], "causal": [True], "both": [False, True]}[args.mask]
        for S in args.seqlen
    ]
    torch.zeros(1, device="cuda")
    passes = ("fwd", "bwd") if args.passes == "bwd" else ("fwd",)
    with ThreadPoolExecutor() as pool:  # kernels are compiled side by side
        jobs = [(b, cell, pass_) for b in builds for cell in cells for pass_ in passes]
        list(pool.map(lambda job: job[0].call(job[1], job[2], args, {}), jobs))
    names = [*args.against, *(b.name for b in builds)]
    print(f"{torch.cuda.get_device_name()}, {args.dtype}, TFLOP/s; in brackets the ratio to {names[0]}")
    rows = []
    for cell in cells:
        ms = measure(cell, builds, [known[n] for n in args.against], args)
        rows.append({**cell, "ms": ms})
        row = []
        for n in names:
            ratio = f" ({ms[names[0]] / ms[n]:.3f})" if n in ms and names[0] in ms and n != names[0] else ""
            row.append(f"{n} {flops(cell) / ms[n] / 1e9:.0f}{ratio}" if n in ms else f"{n} -")
        print(name_of(cell), "|", "  ".join(row), flush=True)
        if args.json:
            args.json.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
