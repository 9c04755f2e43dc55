"""Plain attention in float64, straight from the definition: the judge of the Python tests, independent of the
library's own oracle."""

import math

import numpy as np


def attention(
    q,
    k,
    v,
    *,
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
    """(B, S, H, D) arrays -> out (B, Sq, H, Dv), lse (B, H, Sq), both float64."""
    q, k, v = (np.asarray(x, dtype=np.float64) for x in (q, k, v))
    B, Sq, H, D = q.shape
    Sk, Hk = k.shape[1:3]
    k, v = (np.repeat(x, H // Hk, axis=2) for x in (k, v))
    s = np.einsum("bihd,bjhd->bhij", q, k) * (1 / math.sqrt(D) if scale is None else scale)
    if softcap:
        s = softcap * np.tanh(s / softcap)
    if bias is not None:
        s = s + np.asarray(bias, dtype=np.float64)
    i, j = np.arange(Sq)[:, None], np.arange(Sk)[None, :]
    if slopes is not None:
        slopes = np.broadcast_to(np.asarray(slopes, dtype=np.float64), (B, H))
        s = s - slopes[:, :, None, None] * np.abs(i + Sk - Sq - j)
    shift = 0 if top_left else Sk - Sq
    left, right = window
    if causal:
        right = 0 if right < 0 else min(right, 0)
    visible = np.ones((Sq, Sk), bool)
    if left >= 0:
        visible &= j >= i + shift - left
    if right >= 0:
        visible &= j <= i + shift + right
    visible = np.broadcast_to(visible, s.shape)
    if mask is not None:
        visible = visible & mask
    out = np.zeros((B, Sq, H, v.shape[-1]))
    lse = np.full((B, H, Sq), -np.inf)
    for b, h, r in np.ndindex(B, H, Sq):
        seen = visible[b, h, r]
        terms = list(s[b, h, r, seen])
        if sink is not None:
            terms.append(float(sink[h]))
        if not terms:
            continue
        top = max(terms)
        lse[b, h, r] = top + math.log(sum(math.exp(t - top) for t in terms))
        if seen.any():
            out[b, r, h] = np.exp(s[b, h, r, seen] - lse[b, h, r]) @ v[b, seen, h]
    return out, lse
