"""Values and gradients by the accuracy rule, on the CPU and on a GPU alike."""

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
import tilewise  # noqa: E402
from tilewise import flash_attn as fa  # noqa: E402

import torch_reference as reference  # noqa: E402
from torch_reference import LENGTHS, judge, judge_gradients, judge_packed, make, offsets  # noqa: E402

BF16 = torch.bfloat16

CASES = [
    dict(),
    dict(causal=True),
    dict(window=(50, 10)),
    dict(causal=True, softcap=3.0),
    dict(causal=True, D=128, H=8, Hk=1),
    dict(causal=True, Sq=100, Sk=333, D=96),
    dict(causal=True, Sq=333, Sk=100),
    dict(D=40, Dv=72),
    dict(D=192, Dv=128, causal=True),
    dict(D=256, causal=True, dtype=torch.float16),
    dict(dtype=torch.float32, causal=True),
    dict(bias=(1, 4, 257, 257)),
    dict(bias=(1, 4, 1, 257), causal=True),
    dict(mask=(2, 1, 257, 257)),
    dict(sink=(4,), causal=True),
    dict(alibi_slopes=(4,), causal=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(device, case):
    case = dict(case)
    options = {n: case.pop(n) for n in ("causal", "window", "softcap") if n in case}
    shapes = {n: case.pop(n) for n in ("bias", "mask", "sink", "alibi_slopes") if n in case}
    q, k, v = make(device, grad=True, **case)
    for name, shape in shapes.items():
        t = torch.rand(shape, device=device)
        options[name] = t < 0.7 if name == "mask" else t.to(q.dtype if name == "bias" else torch.float32)
    extras = [n for n in ("bias", "sink") if n in options]
    for name in extras:
        options[name].requires_grad_()
    out, lse = tilewise.attention(q, k, v, return_lse=True, **options)
    judge(out, lse, (q, k, v), **options)
    dout = torch.randn_like(out)
    leaves = (q, k, v, *(options[n] for n in extras))
    got = torch.autograd.grad(out, leaves, dout)
    judge_gradients(got, (q, k, v), dout, extras=extras, **options)


def test_lse_has_gradients(device):
    inputs = make(device, grad=True)
    out, lse = tilewise.attention(*inputs, causal=True, return_lse=True)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    got = torch.autograd.grad((out, lse), inputs, (dout, dlse))
    judge_gradients(got, inputs, dout, dlse, causal=True)


def test_packed_sequences_and_their_gradients(device):
    total, cu = sum(LENGTHS), offsets(LENGTHS, device)
    q, k, v = (t[0].detach().requires_grad_() for t in make(device, B=1, Sq=total, Sk=total))
    out = fa.flash_attn_varlen_func(q, k, v, cu, cu, 300, 300, causal=True)
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, (q, k, v), dout)
    judge_packed(out, gradients, (q, k, v), dout, LENGTHS, causal=True)


def test_private_functions_write_into_slices(device):
    """Ring attention's way: gradients into slices of larger buffers, with the forward's state."""
    q, k, v = make(device, Hk=4)
    out, lse, _, state = fa._flash_attn_forward(q, k, v, 0.0, 0.125, True, -1, -1, 0.0, None, False)
    judge(out, lse, (q, k, v), causal=True)
    dout = torch.randn_like(out)
    buffers = [
        torch.full((*t.shape[:-1], 128), torch.nan, device=device, dtype=BF16)[..., :64] for t in (q, k, v)
    ]
    d = fa._flash_attn_backward(
        dout, q, k, v, out, lse, *buffers, 0.0, 0.125, True, -1, -1, 0.0, None, False, state
    )
    judge_gradients(buffers, (q, k, v), dout, causal=True)
    exact, naive = ((dout.to(t) * out.to(t)).sum(-1).transpose(1, 2) for t in (torch.float64, torch.float32))
    reference.assert_within_rule("softmax_d", d, exact, naive)


def test_compile_without_graph_breaks(device):
    inputs = make(device, grad=True)
    dout = torch.randn_like(inputs[0])
    compiled = torch.compile(lambda q, k, v: tilewise.attention(q, k, v, causal=True) + 0, fullgraph=True)
    out = compiled(*inputs)
    judge(out, None, inputs, causal=True)
    judge_gradients(torch.autograd.grad(out, inputs, dout), inputs, dout, causal=True)


def test_deterministic_backward_is_bitwise_the_same(device):
    inputs = make(device, B=4, Sq=1000, Sk=1000, grad=True)
    out = tilewise.attention(*inputs, causal=True, deterministic=True)
    dout = torch.randn_like(out)
    runs = [torch.autograd.grad(out, inputs, dout, retain_graph=True) for _ in range(5)]
    assert all(torch.equal(a, b) for run in runs[1:] for a, b in zip(run, runs[0]))


def test_autocast_behaves_like_sdpa(device):
    q, k, v = make(device, dtype=torch.float32)
    with torch.autocast(device, dtype=BF16):
        out = tilewise.attention(q, k, v, causal=True)
    assert torch.equal(out, tilewise.attention(*(t.to(BF16) for t in (q, k, v)), causal=True))


def test_merge_of_two_halves_is_the_whole(device):
    q, k, v = make(device)
    parts = [
        tilewise.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 100), slice(100, None))
    ]
    out, lse = tilewise.merge(*parts[0], *parts[1])
    exact, exact_lse = reference.attention(q, k, v)
    # Two bf16 results, merged and rounded once more.
    naive = sum(torch.exp(l - exact_lse)[..., None].transpose(1, 2) * o.double() for o, l in parts).to(BF16)
    reference.assert_within_rule("out", out, exact, naive)
    _, naive_lse = reference.attention(q, k, v, dtype=torch.float32)
    reference.assert_within_rule("lse", lse, exact_lse, naive_lse, dtype=BF16)
