"""Plain attention in numpy, straight from the definition and in any dtype, and the accuracy rule: the judge of the Python
tests, independent of the library's own oracle."""

import math

import numpy as np


def attention(
    q,
    k,
    v,
    *,
    dtype=np.float64,
    causal=False,
    top_left=False,
    window=(-1, -1),
    scale=None,
    softcap=0.0,
    slopes=None,
    bias=None,
    mask=None,
    sink=None,
):
    """(B, S, H, D) arrays -> out (B, Sq, H, Dv), lse (B, H, Sq), every intermediate rounded to `dtype`."""
    work = np.float64 if dtype == np.float64 else np.float32

    def rounded(x):
        return np.asarray(x).astype(dtype).astype(work)

    q, k, v = (np.moveaxis(rounded(x), 2, 1) for x in (q, k, v))
    k, v = (np.repeat(x, q.shape[1] // k.shape[1], axis=1) for x in (k, v))
    (B, H, Sq, D), Sk = q.shape, k.shape[2]
    s = rounded(rounded(q @ k.swapaxes(2, 3)) * (1 / math.sqrt(D) if scale is None else scale))
    if softcap:
        s = rounded(softcap * np.tanh(s / softcap))
    if bias is not None:
        s = rounded(s + rounded(bias))
    i, j = np.arange(Sq)[:, None], np.arange(Sk)
    if slopes is not None:
        s = rounded(s - np.broadcast_to(rounded(slopes), (B, H))[..., None, None] * np.abs(i + Sk - Sq - j))
    shift = 0 if top_left else Sk - Sq
    left, right = window
    if causal:
        right = 0 if right < 0 else min(right, 0)
    visible = np.ones(s.shape, bool) if mask is None else np.broadcast_to(mask, s.shape).copy()
    if left >= 0:
        visible &= j >= i + shift - left
    if right >= 0:
        visible &= j <= i + shift + right
    s = np.where(visible, s, -np.inf)
    if sink is not None:
        s = np.concatenate([s, np.broadcast_to(rounded(sink)[:, None, None], (B, H, Sq, 1))], -1)
    top = s.max(-1, keepdims=True, initial=-np.inf)
    top = np.where(np.isneginf(top), 0, top)
    e = rounded(np.exp(s - top))
    total = rounded(e.sum(-1, keepdims=True))
    p = rounded(e / np.where(total > 0, total, 1))[..., :Sk]
    with np.errstate(divide="ignore"):
        lse = rounded(np.log(total) + top)[..., 0]
    return np.moveaxis(rounded(p @ v), 1, 2), lse


def gradients(q, k, v, dout, dlse, *, dtype=np.float64, **options):
    """dq, dk, dv of (B, S, H, D) arrays with as many heads in k and v, causal or not, every intermediate in `dtype`."""
    out, lse = attention(q, k, v, dtype=dtype, **options)
    q, k, v, dout, out = (np.moveaxis(x.astype(dtype), 2, 1) for x in (q, k, v, dout, out))
    scale, shift = dtype(1 / math.sqrt(q.shape[-1])), k.shape[2] - q.shape[2]
    p = np.exp(q @ k.swapaxes(2, 3) * scale - lse.astype(dtype)[..., None])
    if options.get("causal"):
        p *= np.arange(k.shape[2]) <= np.arange(q.shape[2])[:, None] + shift
    ds = p * (dout @ v.swapaxes(2, 3) - (dout * out).sum(-1, keepdims=True) + dlse.astype(dtype)[..., None]) * scale
    found = ds @ k, ds.swapaxes(2, 3) @ q, p.swapaxes(2, 3) @ dout
    return [np.moveaxis(x, 1, 2) for x in found]


def assert_within_rule(name, got, exact, naive, *, dtype=None, gradient=False):
    """The error is at most 2 (gradients: 3) times that of the naive same-dtype result, plus eps, as the largest one and as
    a norm. `dtype`: of the problem, where `got` has another."""
    factor = 3 if gradient else 2
    eps = 1e-6 if np.dtype(dtype or got.dtype) == np.float32 else 1e-5
    got, exact, naive = (np.asarray(x, np.float64) for x in (got, exact, naive))
    assert got.shape == exact.shape, (name, got.shape, exact.shape)
    finite = np.isfinite(exact)
    np.testing.assert_array_equal(got[~finite], exact[~finite], err_msg=name)
    if not finite.any():
        return
    got, exact, naive = got[finite], exact[finite], naive[finite]
    scale = np.abs(exact).max()
    for what, measure in (("largest", lambda e: np.abs(e).max()), ("rms", lambda e: np.sqrt(np.square(e).mean()))):
        error, allowed = measure(got - exact), factor * measure(naive - exact) + eps * scale
        assert error <= allowed, f"{name}: {what} error {error:.3e}, the rule allows {allowed:.3e}"


def judge(out, lse, q, k, v, **options):
    """out, and lse if given, of numpy arrays against the definition."""
    exact, exact_lse = attention(q, k, v, **options)
    assert_within_rule("out", out, exact, attention(q, k, v, dtype=q.dtype, **options)[0])
    if lse is not None:
        assert lse.dtype == np.float32
        _, naive = attention(q, k, v, dtype=np.float32, **options)
        assert_within_rule("lse", lse, exact_lse, naive, dtype=q.dtype)
