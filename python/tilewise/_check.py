"""`python -m tilewise check` without the command-line tool: every feature against attention in float64 numpy."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from . import UnsupportedError, attention, attention_backward

Array = Any

# batch, queries, keys, heads, key/value heads, D, Dv, and options; lengths are no multiples of any tile.
TRIALS: list[tuple[str, tuple[int, ...], dict]] = [
    ("plain", (2, 131, 131, 4, 4, 64, 64), {}),
    ("causal, grouped heads", (1, 157, 157, 8, 2, 128, 128), dict(causal=True)),
    ("causal, more keys than queries", (1, 65, 190, 4, 1, 64, 64), dict(causal=True)),
    ("causal, more queries than keys", (1, 150, 70, 2, 2, 32, 32), dict(causal=True)),
    ("top-left causal", (1, 70, 150, 2, 2, 64, 64), dict(causal=True, alignment="top-left")),
    ("window and softcap", (1, 190, 190, 2, 2, 64, 64), dict(window=(40, 9), softcap=5.0)),
    ("ALiBi", (2, 120, 120, 4, 4, 64, 64), dict(causal=True, alibi_slopes=(4,))),
    ("bias and mask", (2, 77, 133, 2, 2, 40, 72), dict(bias=(1, 2, 77, 133), mask=(2, 1, 77, 133))),
    ("sink", (1, 130, 130, 4, 2, 64, 64), dict(causal=True, sink=(4,))),
    ("one query", (3, 1, 700, 8, 2, 64, 64), {}),
    ("odd head dims", (1, 50, 60, 2, 2, 33, 7), dict(causal=True)),
]


def reference(arrays: dict[str, Array], dout: Array, options: dict, dtype: Any) -> dict[str, Array]:
    """out, dq, dk, dv by the definition, every intermediate rounded to `dtype`: float64, or naive attention in another."""
    work = np.float64 if dtype == np.float64 else np.float32

    def rounded(x: Any) -> Any:
        return x.astype(dtype).astype(work)

    heads: list[Array] = [np.moveaxis(np.asarray(x, work), 2, 1) for x in (*map(arrays.get, "qkv"), dout)]
    q, k, v, g = heads
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    Sq, Sk, scale = q.shape[2], k.shape[2], 1 / math.sqrt(q.shape[3])
    s = rounded(scale * rounded(q @ k.swapaxes(2, 3)))
    slope = np.ones_like(s)
    if cap := options.get("softcap"):
        t = np.tanh(s / cap)
        s, slope = rounded(cap * t), 1 - t * t
    shift = 0 if options.get("alignment") == "top-left" else Sk - Sq
    i, j = np.arange(Sq)[:, None] + shift, np.arange(Sk)
    if "bias" in arrays:
        s = rounded(s + arrays["bias"])
    if "alibi_slopes" in arrays:
        s = rounded(s - arrays["alibi_slopes"].astype(work)[:, None, None] * np.abs(i - j))
    left, right = options.get("window", (-1, -1))
    right = 0 if options.get("causal") else right
    visible = np.ones(s.shape, bool)
    if left >= 0:
        visible &= j >= i - left
    if right >= 0:
        visible &= j <= i + right
    if "mask" in arrays:
        visible &= arrays["mask"]
    sink = arrays["sink"].astype(np.float64)[:, None, None] if "sink" in arrays else -np.inf
    top = np.maximum(np.where(visible, s, -np.inf).max(-1, keepdims=True), sink)
    top = np.where(np.isfinite(top), top, 0)
    p = rounded(np.where(visible, np.exp(s - top), 0))
    total = p.sum(-1, keepdims=True) + np.exp(sink - top)
    p = rounded(p / np.where(total > 0, total, 1))
    out = rounded(p @ v)
    dp = rounded(g @ v.swapaxes(2, 3))
    ds = rounded(p * (dp - (g * out).sum(-1, keepdims=True)) * slope)
    dq, dk, dv = scale * (ds @ k), scale * (ds.swapaxes(2, 3) @ q), p.swapaxes(2, 3) @ g

    def grouped(x: Array) -> Array:
        return x.reshape(x.shape[0], -1, group, *x.shape[2:]).sum(2)

    results = dict(out=out, dq=dq, dk=grouped(dk), dv=grouped(dv))
    return {name: np.moveaxis(rounded(x), 1, 2) for name, x in results.items()}


def _on_the_host(arrays: dict[str, Array], dout: Array, options: dict) -> dict[str, Array]:
    q, k, v = (arrays[n] for n in "qkv")
    more = {n: x for n, x in arrays.items() if n not in "qkv"}
    out, lse = attention(q, k, v, return_lse=True, **more, **options)
    gradients = attention_backward(dout, q, k, v, out, lse, **more, **options)
    return dict(out=out, dq=gradients.dq, dk=gradients.dk, dv=gradients.dv)


def _through_torch(arrays: dict[str, Array], dout: Array, options: dict, device: str) -> dict[str, Array]:
    import torch

    kind = getattr(torch, dout.dtype.name)

    def tensor(x: Array) -> Any:
        return torch.from_numpy(x if x.dtype == bool else x.astype(np.float32)).to(device)

    leaves = [tensor(arrays[n]).to(kind).requires_grad_() for n in "qkv"]
    more = {n: tensor(x) for n, x in arrays.items() if n not in "qkv"}
    out = attention(*leaves, **more, **options)
    gradients = torch.autograd.grad(out, leaves, tensor(dout).to(kind))
    named = zip(("out", "dq", "dk", "dv"), (out, *gradients))
    return {name: t.detach().float().cpu().numpy() for name, t in named}


def run_trial(
    shape: tuple[int, ...], options: dict, dtype: Any, algorithm: str | None, device: str = "cpu"
) -> float:
    """The largest share of the allowed error that a result uses: up to 1 is right."""
    rng = np.random.default_rng(7)
    B, Sq, Sk, H, Hk, D, Dv = shape
    sizes: dict[str, tuple] = dict(q=(B, Sq, H, D), k=(B, Sk, Hk, D), v=(B, Sk, Hk, Dv))
    arrays: dict[str, Array] = {name: rng.standard_normal(size).astype(dtype) for name, size in sizes.items()}
    plain: dict[str, Any] = dict(options)
    for name in ("bias", "mask", "sink", "alibi_slopes"):
        if name in options:
            x = rng.random(plain.pop(name)).astype(np.float32)
            arrays[name] = x < 0.7 if name == "mask" else x
    dout = rng.standard_normal((B, Sq, H, Dv)).astype(dtype)
    if device == "cpu":
        ours = _on_the_host(arrays, dout, dict(plain, algorithm=algorithm))
    else:
        ours = _through_torch(arrays, dout, dict(plain, algorithm=algorithm), device)
    exact = reference(arrays, dout, plain, np.float64)
    naive = reference(arrays, dout, plain, dtype)
    eps, worst = 1e-6 if dtype == np.float32 else 1e-5, 0.0
    for name, want in exact.items():
        error = np.abs(ours[name].astype(np.float64) - want).max()
        allowed = (2 if name == "out" else 3) * np.abs(naive[name] - want).max() + eps * np.abs(want).max()
        worst = max(worst, error / allowed if math.isfinite(error) else math.inf)
    return worst


def check(algorithm: str | None, device: str = "cpu") -> int:
    """Prints a line a dtype; returns how many results are wrong."""
    dtypes: dict[str, Any] = {"fp32": np.float32, "fp16": np.float16}
    try:
        import ml_dtypes

        dtypes["bf16"] = ml_dtypes.bfloat16
    except ImportError:
        print("bf16: not checked, ml_dtypes is not installed")
    wrong = 0
    for name, dtype in dtypes.items():
        right, worst = 0, 0.0
        for what, shape, options in TRIALS:
            try:
                share = run_trial(shape, options, dtype, algorithm, device)
            except UnsupportedError as error:
                print(f"{name}: {what}: not available: {error}")
                continue
            worst = max(worst, share)
            if share <= 1:
                right += 1
            else:
                wrong += 1
                print(f"WRONG: {name}, {what}: {share:.1f} times the allowed error")
        print(
            f"{name}: forward and backward of {right} problems right; largest error {worst:.0%} of the allowed"
        )
    return wrong
