#!/usr/bin/env python3
"""tilewise.attention against PyTorch's own scaled_dot_product_attention on the CPU, on torch tensors: B 1, H 8.

    python bench/cpu.py --dtype fp32            # a table: milliseconds of both, and how much faster Tilewise is
    python bench/cpu.py --dtype bf16 --seq 512,1024 --threads 1 --clock cpu    # where others use the machine too

Each side gets the layout that it likes best (Tilewise (B, S, H, D), PyTorch (B, H, S, D)), the two alternate, and each
figure is the median over the rounds. Short calls are timed after one of their own kind: PyTorch's threads spin for some
milliseconds after each operator, on cores that whoever comes next would need. Results are judged before they are timed, as in
figures.py.
"""

import argparse
import statistics
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F

import tilewise

sys.path.insert(0, str(Path(__file__).parent))
import figures  # noqa: E402


def seconds(call, clock, first: float = 0.0) -> float:
    """Of one call; after an untimed one where that is short (`first`: what it may take)."""
    if first < 0.1:
        call()
    begin = clock()
    call()
    return clock() - begin


def measure(S: int, D: int, causal: bool, dtype: torch.dtype, args) -> tuple[float, float, float]:
    """Seconds of PyTorch and of Tilewise, and the median of the rounds' ratios."""
    clock = time.process_time if args.clock == "cpu" else time.perf_counter
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, S, 8, D, dtype=dtype) for _ in range(3))
    heads_first = [t.transpose(1, 2).contiguous() for t in (q, k, v)]

    def theirs():
        return F.scaled_dot_product_attention(*heads_first, is_causal=causal)

    def ours():
        return tilewise.attention(q, k, v, causal=causal, threads=args.threads)

    judged = figures.reference(q, k, v, q, causal)
    for who, out in (("Tilewise", ours()), ("PyTorch", theirs().transpose(1, 2))):
        timed, note = figures.check([out], judged, False)
        if note:
            print(f"{who}, S {S}, D {D}: {note}")
        if not timed:
            sys.exit("wrong results are not timed")
    first = seconds(ours, clock, 1.0)
    pairs, end = [], time.perf_counter() + args.seconds
    while len(pairs) < args.rounds or time.perf_counter() < end:
        pairs.append((seconds(theirs, clock, first), seconds(ours, clock, first)))
    a, b = (statistics.median(x) for x in zip(*pairs))
    return a, b, statistics.median(x / y for x, y in pairs)


def main() -> None:
    numbers = lambda text: [int(x) for x in text.split(",")]  # noqa: E731
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--dtype", default="fp32", choices=["fp32", "bf16"])
    parser.add_argument("--seq", type=numbers, default=[512, 1024, 2048, 4096, 8192])
    parser.add_argument("--head-dim", type=numbers, default=[64, 128])
    parser.add_argument("--causal", type=numbers, default=[0, 1])
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--seconds", type=float, default=0.5, help="time of one cell, after the least rounds")
    parser.add_argument("--rounds", type=int, default=3, help="at least so many")
    parser.add_argument("--clock", default="wall", choices=["wall", "cpu"], help="cpu: the process's time")
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    dtype = {"fp32": torch.float32, "bf16": torch.bfloat16}[args.dtype]
    print(
        f"{args.dtype}, {args.threads} threads, {args.clock} clock, torch {torch.__version__}, tilewise {tilewise.__version__}"
    )
    print("| D | mask | S | PyTorch, ms | Tilewise, ms | times as fast |\n|---|---|---|---|---|---|")
    for D in args.head_dim:
        for causal in args.causal:
            for S in args.seq:
                theirs, ours, ratio = measure(S, D, bool(causal), dtype, args)
                mask = "causal" if causal else "full"
                print(
                    f"| {D} | {mask} | {S} | {theirs * 1e3:.2f} | {ours * 1e3:.2f} | {ratio:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    with torch.no_grad():
        main()
