#!/usr/bin/env python3
"""Host time of one torch call without gradients: how long Python is busy before the next operator can be launched.

    python bench/overhead.py                    # microseconds a call, with everything that is installed

Small tensors, so that the device is never what is waited for; calls follow each other without synchronising, contenders
alternate, the figure is the median over rounds. The bar: PyTorch's SDPA, or flash_attn's Python path, plus 15 us.
"""

import argparse
import importlib.util
import statistics
import time

import torch
import torch.nn.functional as F

import tilewise
from tilewise import flash_attn as ours


def calls(device: str) -> dict:
    dtype = torch.bfloat16 if device == "cuda" else torch.float32
    q, k, v = (torch.randn(1, 64, 4, 64, device=device, dtype=dtype) for _ in range(3))
    heads_first = [t.transpose(1, 2) for t in (q, k, v)]
    found = {
        "tilewise.attention": lambda: tilewise.attention(q, k, v, causal=True),
        "tilewise.flash_attn.flash_attn_func": lambda: ours.flash_attn_func(q, k, v, causal=True),
        "scaled_dot_product_attention": lambda: F.scaled_dot_product_attention(*heads_first, is_causal=True),
    }
    if device == "cuda" and importlib.util.find_spec("flash_attn"):
        from flash_attn import flash_attn_func

        found["flash_attn.flash_attn_func"] = lambda: flash_attn_func(q, k, v, causal=True)
    return found


def microseconds(call, device: str, repeats: int) -> float:
    if device == "cuda":
        torch.cuda.synchronize()
    begin = time.perf_counter()
    for _ in range(repeats):
        call()
    return (time.perf_counter() - begin) / repeats * 1e6


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument(
        "--repeats", type=int, default=100, help="calls in a row; the driver's queue must hold them"
    )
    args = parser.parse_args()
    found = calls(args.device)
    times = {name: [] for name in found}
    for call in found.values():
        microseconds(call, args.device, 20)
    for _ in range(args.rounds):
        for name, call in found.items():
            times[name].append(microseconds(call, args.device, args.repeats))
    for name, values in times.items():
        print(f"{name:40} {statistics.median(values):6.1f} us")


if __name__ == "__main__":
    with torch.no_grad():
        main()
