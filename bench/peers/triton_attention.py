"""FlashAttention-2 in Triton, forward and backward, written from the paper: the "FlashAttention in Triton" of
the figures.

q, k, v, out (B, S, H, D) with unit stride in D, same lengths and heads, D a power of two. Forward: one
program a block of queries, interior key blocks without a mask, then the diagonal ones. Backward: delta =
rowsum(dO * O), a kernel for dK and dV parallel over key blocks, a kernel for dQ parallel over query blocks
(no atomics). Tile sizes are autotuned per (D, causal, S).
"""

import torch
import triton
import triton.language as tl

LOG2E = 1.4426950408889634


def _configs(tiles):
    return [
        triton.Config({"BM": bm, "BN": bn}, num_warps=warps, num_stages=stages)
        for bm, bn, warps, stages in tiles
    ]


# BM, BN, warps, stages: what compiles for sm_90 without spills, or nearly so, at D 64 or 128.
FORWARD_TILES = [(128, 128, 8, 2), (128, 128, 8, 3), (128, 64, 8, 3), (128, 64, 4, 3), (64, 64, 4, 3)]
DKDV_TILES = [(64, 128, 8, 2), (64, 128, 8, 3), (128, 64, 8, 2), (64, 64, 4, 3)]
DQ_TILES = [(128, 64, 8, 2), (128, 64, 8, 3), (64, 128, 8, 2), (64, 64, 4, 3)]


def _tuned(tiles):
    """Chosen for each (S, D, CAUSAL) by the fastest of short runs."""

    def bench(call, quantiles):
        return triton.testing.do_bench(call, warmup=5, rep=20, quantiles=quantiles)

    configs = _configs(tiles)[:1] if triton.knobs.runtime.interpret else _configs(tiles)
    return triton.autotune(configs, key=["S", "D", "CAUSAL"], do_bench=bench)


@triton.jit
def _attend(
    acc,
    m,
    l,
    q,
    K,
    V,
    ks,
    vs,
    rows,
    cols_d,
    begin,
    end,
    S,
    scale_log2,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
):
    """Online softmax over the keys [begin, end): Algorithm 1, lines 6 to 11, with exp2."""
    for n in range(begin, end, BN):
        keys = n + tl.arange(0, BN)
        if MASKED:
            k = tl.load(K + keys[None, :] * ks + cols_d[:, None], mask=keys[None, :] < S, other=0.0)
            v = tl.load(V + keys[:, None] * vs + cols_d[None, :], mask=keys[:, None] < S, other=0.0)
        else:
            k = tl.load(K + keys[None, :] * ks + cols_d[:, None])
            v = tl.load(V + keys[:, None] * vs + cols_d[None, :])
        s = tl.dot(q, k) * scale_log2
        if MASKED:
            visible = keys[None, :] < S
            if CAUSAL:
                visible = visible & (keys[None, :] <= rows[:, None])
            s = tl.where(visible, s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        rescale = tl.exp2(m - m_new)
        l = l * rescale + tl.sum(p, 1)
        acc = acc * rescale[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc)
        m = m_new
    return acc, m, l


@_tuned(FORWARD_TILES)
@triton.jit
def _forward(
    Q,
    K,
    V,
    O,
    L,
    qb,
    qs,
    qh,
    kb,
    ks,
    kh,
    vb,
    vs,
    vh,
    ob,
    os,
    oh,
    S,
    H,
    scale_log2,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    block = tl.program_id(0)
    if CAUSAL:
        block = tl.num_programs(0) - 1 - block  # longest first
    b = (tl.program_id(1) // H).to(tl.int64)
    h = (tl.program_id(1) % H).to(tl.int64)
    Q += b * qb + h * qh
    K += b * kb + h * kh
    V += b * vb + h * vh
    O += b * ob + h * oh
    rows, cols_d = block * BM + tl.arange(0, BM), tl.arange(0, D)
    q = tl.load(Q + rows[:, None] * qs + cols_d[None, :], mask=rows[:, None] < S, other=0.0)
    acc = tl.zeros([BM, D], tl.float32)
    m = tl.full([BM], float("-inf"), tl.float32)
    l = tl.zeros([BM], tl.float32)
    interior = S // BN * BN
    end = S
    if CAUSAL:
        interior = tl.minimum(interior, block * BM // BN * BN)
        end = tl.minimum(S, (block + 1) * BM)
    acc, m, l = _attend(
        acc, m, l, q, K, V, ks, vs, rows, cols_d, 0, interior, S, scale_log2, BN, CAUSAL, False
    )
    acc, m, l = _attend(
        acc, m, l, q, K, V, ks, vs, rows, cols_d, interior, end, S, scale_log2, BN, CAUSAL, True
    )
    acc = acc / l[:, None]
    tl.store(O + rows[:, None] * os + cols_d[None, :], acc.to(O.dtype.element_ty), mask=rows[:, None] < S)
    tl.store(
        L + tl.program_id(1).to(tl.int64) * S + rows, (m + tl.log2(l)), mask=rows < S
    )  # log2 of the denominator


@triton.jit
def _delta(O, DO, DELTA, ob, os, oh, db, ds, dh, S, H, D: tl.constexpr, BM: tl.constexpr):
    rows, cols_d = tl.program_id(0) * BM + tl.arange(0, BM), tl.arange(0, D)
    b = (tl.program_id(1) // H).to(tl.int64)
    h = (tl.program_id(1) % H).to(tl.int64)
    inside = rows[:, None] < S
    o = tl.load(O + b * ob + h * oh + rows[:, None] * os + cols_d[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    do = tl.load(DO + b * db + h * dh + rows[:, None] * ds + cols_d[None, :], mask=inside, other=0.0).to(
        tl.float32
    )
    tl.store(DELTA + tl.program_id(1).to(tl.int64) * S + rows, tl.sum(o * do, 1), mask=rows < S)


@triton.jit
def _dkdv_blocks(
    dk,
    dv,
    k,
    v,
    Q,
    DO,
    L,
    DELTA,
    qs,
    ds,
    keys,
    cols_d,
    begin,
    end,
    S,
    scale_log2,
    BM: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
):
    for m in range(begin, end, BM):
        rows = m + tl.arange(0, BM)
        inside = rows < S
        q = tl.load(Q + rows[:, None] * qs + cols_d[None, :], mask=inside[:, None], other=0.0)
        do = tl.load(DO + rows[:, None] * ds + cols_d[None, :], mask=inside[:, None], other=0.0)
        lse = tl.load(L + rows, mask=inside, other=float("inf"))  # rows past the end: p = 0
        delta = tl.load(DELTA + rows, mask=inside, other=0.0)
        pt = tl.exp2(tl.dot(k, tl.trans(q)) * scale_log2 - lse[None, :])  # [BN, BM]
        if MASKED:
            visible = keys[:, None] < S
            if CAUSAL:
                visible = visible & (keys[:, None] <= rows[None, :])
            pt = tl.where(visible, pt, 0.0)
        dv = tl.dot(pt.to(do.dtype), do, dv)
        dst = pt * (tl.dot(v, tl.trans(do)) - delta[None, :])
        dk = tl.dot(dst.to(q.dtype), q, dk)
    return dk, dv


@_tuned(DKDV_TILES)
@triton.jit
def _dkdv(
    Q,
    K,
    V,
    DO,
    DK,
    DV,
    L,
    DELTA,
    qb,
    qs,
    qh,
    kb,
    ks,
    kh,
    vb,
    vs,
    vh,
    db,
    ds,
    dh,
    gb,
    gs,
    gh,
    S,
    H,
    scale,
    scale_log2,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    keys, cols_d = block * BN + tl.arange(0, BN), tl.arange(0, D)
    inside = keys[:, None] < S
    k = tl.load(K + b * kb + h * kh + keys[:, None] * ks + cols_d[None, :], mask=inside, other=0.0)
    v = tl.load(V + b * vb + h * vh + keys[:, None] * vs + cols_d[None, :], mask=inside, other=0.0)
    dk, dv = tl.zeros([BN, D], tl.float32), tl.zeros([BN, D], tl.float32)
    Q += b * qb + h * qh
    DO += b * db + h * dh
    L += bh * S
    DELTA += bh * S
    begin = 0
    interior = 0
    if CAUSAL:
        begin = block * BN // BM * BM
        interior = tl.minimum(tl.cdiv((block + 1) * BN, BM) * BM, tl.cdiv(S, BM) * BM)
    if (block + 1) * BN > S:
        interior = tl.cdiv(S, BM) * BM  # the last key block: every step is masked
    dk, dv = _dkdv_blocks(
        dk, dv, k, v, Q, DO, L, DELTA, qs, ds, keys, cols_d, begin, interior, S, scale_log2, BM, CAUSAL, True
    )
    dk, dv = _dkdv_blocks(
        dk, dv, k, v, Q, DO, L, DELTA, qs, ds, keys, cols_d, interior, S, S, scale_log2, BM, CAUSAL, False
    )
    at = b * gb + h * gh + keys[:, None] * gs + cols_d[None, :]
    tl.store(DK + at, (dk * scale).to(DK.dtype.element_ty), mask=inside)
    tl.store(DV + at, dv.to(DV.dtype.element_ty), mask=inside)


@triton.jit
def _dq_blocks(
    dq,
    q,
    do,
    lse,
    delta,
    K,
    V,
    ks,
    vs,
    rows,
    cols_d,
    begin,
    end,
    S,
    scale_log2,
    BN: tl.constexpr,
    CAUSAL: tl.constexpr,
    MASKED: tl.constexpr,
):
    for n in range(begin, end, BN):
        keys = n + tl.arange(0, BN)
        inside = keys[:, None] < S
        k = tl.load(K + keys[:, None] * ks + cols_d[None, :], mask=inside, other=0.0)
        v = tl.load(V + keys[:, None] * vs + cols_d[None, :], mask=inside, other=0.0)
        p = tl.exp2(tl.dot(q, tl.trans(k)) * scale_log2 - lse[:, None])
        if MASKED:
            visible = keys[None, :] < S
            if CAUSAL:
                visible = visible & (keys[None, :] <= rows[:, None])
            p = tl.where(visible, p, 0.0)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    return dq


@_tuned(DQ_TILES)
@triton.jit
def _dq(
    Q,
    K,
    V,
    DO,
    DQ,
    L,
    DELTA,
    qb,
    qs,
    qh,
    kb,
    ks,
    kh,
    vb,
    vs,
    vh,
    db,
    ds,
    dh,
    gb,
    gs,
    gh,
    S,
    H,
    scale,
    scale_log2,
    D: tl.constexpr,
    CAUSAL: tl.constexpr,
    BM: tl.constexpr,
    BN: tl.constexpr,
):
    block = tl.program_id(0)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    rows, cols_d = block * BM + tl.arange(0, BM), tl.arange(0, D)
    inside = rows[:, None] < S
    q = tl.load(Q + b * qb + h * qh + rows[:, None] * qs + cols_d[None, :], mask=inside, other=0.0)
    do = tl.load(DO + b * db + h * dh + rows[:, None] * ds + cols_d[None, :], mask=inside, other=0.0)
    lse = tl.load(L + bh * S + rows, mask=rows < S, other=float("inf"))
    delta = tl.load(DELTA + bh * S + rows, mask=rows < S, other=0.0)
    K += b * kb + h * kh
    V += b * vb + h * vh
    dq = tl.zeros([BM, D], tl.float32)
    interior = S // BN * BN
    end = S
    if CAUSAL:
        interior = tl.minimum(interior, block * BM // BN * BN)
        end = tl.minimum(S, (block + 1) * BM)
    dq = _dq_blocks(
        dq, q, do, lse, delta, K, V, ks, vs, rows, cols_d, 0, interior, S, scale_log2, BN, CAUSAL, False
    )
    dq = _dq_blocks(
        dq, q, do, lse, delta, K, V, ks, vs, rows, cols_d, interior, end, S, scale_log2, BN, CAUSAL, True
    )
    tl.store(
        DQ + b * gb + h * gh + rows[:, None] * gs + cols_d[None, :],
        (dq * scale).to(DQ.dtype.element_ty),
        mask=inside,
    )


class _Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal):
        B, S, H, D = q.shape
        scale = D**-0.5
        o, lse = torch.empty_like(q), torch.empty(B * H, S, device=q.device, dtype=torch.float32)
        strides = [t.stride(n) for t in (q, k, v, o) for n in range(3)]
        grid = lambda c: (triton.cdiv(S, c["BM"]), B * H)  # noqa: E731
        _forward[grid](q, k, v, o, lse, *strides, S, H, scale * LOG2E, D, causal)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.causal, ctx.scale = causal, scale
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        B, S, H, D = q.shape
        if do.stride(-1) != 1:
            do = do.contiguous()
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        delta = torch.empty_like(lse)
        three = lambda t: [t.stride(n) for n in range(3)]  # noqa: E731
        _delta[(triton.cdiv(S, 64), B * H)](o, do, delta, *three(o), *three(do), S, H, D, 64)
        inputs = [s for t in (q, k, v, do) for s in three(t)]
        _dkdv[lambda c: (triton.cdiv(S, c["BN"]), B * H)](
            q,
            k,
            v,
            do,
            dk,
            dv,
            lse,
            delta,
            *inputs,
            *three(dk),
            S,
            H,
            ctx.scale,
            ctx.scale * LOG2E,
            D,
            ctx.causal,
        )
        _dq[lambda c: (triton.cdiv(S, c["BM"]), B * H)](
            q,
            k,
            v,
            do,
            dq,
            lse,
            delta,
            *inputs,
            *three(dq),
            S,
            H,
            ctx.scale,
            ctx.scale * LOG2E,
            D,
            ctx.causal,
        )
        return dq, dk, dv, None


def attention(q, k, v, causal=False):
    """(B, S, H, D) tensors; differentiable."""
    return _Attention.apply(q, k, v, causal)
