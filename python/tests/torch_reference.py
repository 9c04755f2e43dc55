"""Plain attention in torch operations, in any dtype and on any device, and the accuracy rule: the judge of the torch
tests."""

import torch


def attention(
    q,
    k,
    v,
    *,
    dtype=torch.float64,
    causal=False,
    window=(-1, -1),
    scale=None,
    softcap=0.0,
    alibi_slopes=None,
    bias=None,
    mask=None,
    sink=None,
    dropout=None,
):
    """(B, S, H, D) tensors -> out (B, Sq, H, Dv), lse (B, H, Sq), every intermediate in `dtype`; differentiable. `dropout`:
    factors (B, H, Sq, Sk) of the probabilities."""
    q, k, v = (t.to(dtype).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.transpose(-1, -2) * (q.shape[-1] ** -0.5 if scale is None else scale)
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.to(dtype)
    i = torch.arange(s.shape[-2], device=q.device)[:, None] + s.shape[-1] - s.shape[-2]
    j = torch.arange(s.shape[-1], device=q.device)
    if alibi_slopes is not None:
        s = s - alibi_slopes.to(dtype)[:, None, None] * (i - j).abs()
    left, right = window
    if causal:
        right = 0 if right < 0 else min(right, 0)
    visible = torch.ones(s.shape, dtype=torch.bool, device=q.device)
    if left >= 0:
        visible &= j >= i - left
    if right >= 0:
        visible &= j <= i + right
    if mask is not None:
        visible &= mask
    s = s.masked_fill(~visible, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink.to(dtype)[None, :, None, None].expand(*s.shape[:-1], 1)], -1)
    lse = torch.logsumexp(s, -1)
    p = torch.softmax(s.masked_fill(torch.isneginf(lse)[..., None], 0), -1)[..., : k.shape[-2]]
    p = p.masked_fill(~visible, 0)
    if dropout is not None:
        p = p * dropout.to(dtype)
    return (p @ v).transpose(1, 2), lse


def gradients(inputs, dout, dlse=None, *, dtype=torch.float64, extras=(), **options):
    """Gradients of q, k, v and of the options named in `extras`, by autograd in `dtype`."""
    leaves = [t.detach().to(dtype).requires_grad_() for t in inputs]
    more = [options[n].detach().to(dtype).requires_grad_() for n in extras]
    out, lse = attention(*leaves, dtype=dtype, **{**options, **dict(zip(extras, more))})
    heads = [out] if dlse is None else [out, lse]
    seeds = [dout.to(dtype)] if dlse is None else [dout.to(dtype), dlse.to(dtype)]
    return torch.autograd.grad(heads, leaves + more, seeds)


def terms(name, inputs, dout, **options):
    """Of the sums that dbias and dsink are: (root of the squares, sum of the sizes) in float64."""
    q, k, v = inputs
    eye = torch.eye(k.shape[1], device=q.device)[None, :, None].expand(q.shape[0], -1, k.shape[2], -1)
    p, _ = attention(q, k, eye, **options)  # (B, Sq, H, Sk)
    dp = torch.einsum("bihd,bjhd->bihj", dout.double(), v.double().repeat_interleave(q.shape[2] // v.shape[2], 2))
    delta = (p * dp).sum(-1, keepdim=True)
    if name == "sink":
        parts = [(1 - p.sum(-1, keepdim=True)) * delta]
    else:
        parts = [p * dp, p * delta]
    size = (q.shape[2], 1, 1) if name == "sink" else options[name].shape
    squares, sizes = (
        sum(f(x) for x in parts).transpose(1, 2).sum_to_size(size).reshape(options[name].shape)
        for f in (torch.square, torch.abs)
    )
    return squares.sqrt(), sizes


def assert_within_rule(name, got, exact, naive, *, dtype=None, gradient=False, terms=None):
    """The error is at most 2 (gradients: 3) times that of the naive same-dtype result, plus eps, as the largest one and as
    a norm. `dtype`: of the problem, where `got` has another. `terms` of a sum that may cancel: the naive error counts as at
    least what rounding them makes, and eps is relative to their sizes."""
    factor = 3 if gradient else 2
    dtype = dtype or got.dtype
    eps = 1e-6 if dtype == torch.float32 else 1e-5
    got, naive, exact = (t.detach().double() for t in (got, naive, exact))
    assert got.shape == exact.shape, (name, got.shape, exact.shape)
    assert torch.equal(torch.isnan(got), torch.isnan(exact)), f"{name}: NaN in the wrong places"
    assert torch.equal(torch.isinf(got), torch.isinf(exact)), f"{name}: infinities in the wrong places"
    finite = torch.isfinite(exact)
    if not finite.any():
        return
    got, naive, exact = got[finite], naive[finite], exact[finite]
    roots, sizes = (t[finite] for t in terms) if terms else (torch.zeros_like(exact), exact)
    roundoff = torch.finfo(dtype).eps / 2 * roots
    for what, measure in (("largest", lambda e: e.abs().max()), ("rms", lambda e: e.square().mean().sqrt())):
        plain = torch.maximum(measure(naive - exact), measure(roundoff))
        error, allowed = measure(got - exact), factor * plain + eps * sizes.abs().max()
        assert error <= allowed, (
            f"{name}: {what} error {error.item():.3e}, the rule allows {allowed.item():.3e}"
        )


def make(device, B=2, Sq=257, Sk=257, H=4, Hk=2, D=64, Dv=None, dtype=torch.bfloat16, grad=False):
    torch.manual_seed(0)
    shapes = (B, Sq, H, D), (B, Sk, Hk, D), (B, Sk, Hk, Dv or D)
    return tuple(torch.randn(s, device=device, dtype=dtype).requires_grad_(grad) for s in shapes)


def judge(out, lse, inputs, **options):
    """out, and lse if given, against the definition."""
    exact, exact_lse = attention(*inputs, **options)
    naive, _ = attention(*inputs, dtype=out.dtype, **options)
    assert_within_rule("out", out, exact, naive)
    if lse is not None:
        _, naive_lse = attention(*inputs, dtype=torch.float32, **options)
        assert_within_rule("lse", lse, exact_lse, naive_lse, dtype=out.dtype)


def judge_gradients(got, inputs, dout, dlse=None, extras=(), **options):
    exact = gradients(inputs, dout, dlse, extras=extras, **options)
    naive = gradients(inputs, dout, dlse, extras=extras, dtype=inputs[0].dtype, **options)
    sums = [None] * 3 + [terms(name, inputs, dout, **options) for name in extras]
    for name, g, e, n, t in zip(("q", "k", "v", *extras), got, exact, naive, sums):
        assert_within_rule("d" + name, g, e, n, dtype=inputs[0].dtype, gradient=True, terms=t)


def judge_dropout(out, grads, inputs, dout, probability):
    """Of a call whose v is the identity, so that row i of out is row i of the probabilities after dropout and shows which
    were dropped: about as many as asked for, and forward and backward both computed with these."""
    kept = (out != 0).transpose(1, 2).double()
    share, expected = kept.mean().item(), 1 - probability
    assert abs(share - expected) < 5 * (expected * probability / kept.numel()) ** 0.5
    factors = kept / expected
    judge(out, None, inputs, dropout=factors)
    judge_gradients(grads, inputs, dout, dropout=factors)
    return factors


def identity_v(device, S=64, dtype=torch.bfloat16):
    """q, k, v with one head, for judge_dropout()."""
    q, k, _ = make(device, B=1, Sq=S, Sk=S, H=1, Hk=1, dtype=dtype, grad=True)
    v = torch.eye(S, device=device, dtype=dtype)[None, :, None].clone().requires_grad_()
    return q, k, v


LENGTHS = (5, 0, 130, 300, 1)  # of packed sequences


def offsets(lengths, device):
    return torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=device)


def judge_packed(out, grads, inputs, dout, lengths, **options):
    """Packed sequences, against the definition of each; the gradients as whole tensors, because those of a sequence of one are
    differences of equal terms: exactly 0, and no scale for an error."""
    begin, exact, naive = 0, [], []
    for n in lengths:
        rows = slice(begin, begin + n)
        begin += n
        if n:
            part = [t[None, rows] for t in inputs]
            judge(out[None, rows], None, part, **options)
            exact.append(gradients(part, dout[None, rows], **options))
            naive.append(gradients(part, dout[None, rows], dtype=inputs[0].dtype, **options))
    for name, g, e, n in zip(("dq", "dk", "dv"), grads, zip(*exact), zip(*naive)):
        assert_within_rule(
            name, g[:begin][None], torch.cat(e, 1), torch.cat(n, 1), dtype=inputs[0].dtype, gradient=True
        )
