"""The torch ops: values, gradients, opcheck, torch.compile, autocast, dropout, layouts."""

import subprocess
import sys
import textwrap

import numpy as np
import pytest

import reference

torch = pytest.importorskip("torch", minversion="2.10")
import tilewise  # noqa: E402
import tilewise._torch as ops  # noqa: E402

import torch_reference as plain  # noqa: E402

F = torch.nn.functional


def make(B=2, Sq=33, Sk=45, H=4, Hk=2, D=16, Dv=16, dtype=torch.float32, grad=False, seed=0):
    torch.manual_seed(seed)
    shapes = (B, Sq, H, D), (B, Sk, Hk, D), (B, Sk, Hk, Dv)
    return tuple(torch.randn(s).to(dtype).requires_grad_(grad) for s in shapes)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_equals_sdpa_within_its_own_error(dtype):
    q, k, v = make(dtype=dtype)
    want, _ = plain.attention(q, k, v, causal=True)
    out, lse = tilewise.attention(q, k, v, causal=True, return_lse=True)
    mask = torch.ones(33, 45, dtype=torch.bool).tril(12)
    sdpa = F.scaled_dot_product_attention(
        *(t.transpose(1, 2) for t in (q, k, v)), attn_mask=mask, enable_gqa=True
    )
    theirs = (sdpa.transpose(1, 2).double() - want).abs().max()
    eps = (1e-6 if dtype == torch.float32 else 1e-5) * want.abs().max()
    assert out.dtype == dtype and (out.double() - want).abs().max() <= 2 * theirs + eps
    plain.judge(out, lse, (q, k, v), causal=True)


@pytest.mark.parametrize("options", [{}, dict(causal=True), dict(softcap=1.5, scale=0.4)], ids=str)
def test_gradients_of_out_and_lse(options):
    inputs = make(grad=True)
    out, lse = tilewise.attention(*inputs, return_lse=True, **options)
    torch.manual_seed(1)
    dout, dlse = torch.randn_like(out), torch.randn_like(lse)
    ((out * dout).sum() + (lse * dlse).sum()).backward()
    plain.judge_gradients([t.grad for t in inputs], inputs, dout, dlse, **options)


def test_lse_alone_has_gradients():
    q, k, v = make(grad=True)
    tilewise.attention(q, k, v, return_lse=True)[1].mean().backward()
    assert q.grad.abs().sum() > 0 and k.grad.abs().sum() > 0 and (v.grad == 0).all()


def test_bias_and_sink_gradients():
    q, k, v = make(grad=True)
    dout = torch.randn(2, 33, 4, 16)
    for shape in [(2, 4, 33, 45), (1, 1, 33, 45), (2, 1, 1, 45), (4, 1, 1)]:
        bias, sink = torch.randn(shape, requires_grad=True), torch.randn(4, requires_grad=True)
        out = tilewise.attention(q, k, v, bias=bias, sink=sink)
        got = torch.autograd.grad(out, (q, k, v, bias, sink), dout)
        plain.judge_gradients(got, (q, k, v), dout, extras=("bias", "sink"), bias=bias, sink=sink)


def op_arguments(q, k, v, *, bias=None, rng=None, dropout_p=0.0, causal=False):
    return (
        q,
        k,
        v,
        bias,
        None,
        None,
        None,
        None,
        None,
        None,
        None,
        rng,
        None,
        0.0,
        causal,
        "bottom-right",
        -1,
        -1,
        dropout_p,
        0,
        0,
        False,
        False,
        0,
        "",
    )


@pytest.mark.parametrize("layout", ["contiguous", "bhsd", "packed"])
def test_opcheck(layout):
    if layout == "packed":
        q, k, v = torch.randn(2, 9, 3, 4, 8).unbind(2)
    elif layout == "bhsd":
        q, k, v = (torch.randn(2, 4, 9, 8).transpose(1, 2) for _ in range(3))
    else:
        q, k, v = make(Sq=9, Sk=9, D=8, Dv=12)
    q, k, v = (t.detach().requires_grad_() for t in (q, k, v))
    torch.library.opcheck(ops.forward, op_arguments(q, k, v, causal=True))
    with torch.no_grad():
        out, lse = ops.forward(*op_arguments(q, k, v))
    arguments = (
        torch.ones(()).expand_as(out),
        None,
        out,
        lse,
        False,
        False,
        *op_arguments(q.detach(), k.detach(), v.detach()),
    )
    torch.library.opcheck(ops.backward, arguments)


def test_compiles_without_graph_breaks():
    q, k, v = make(grad=True)

    def step(q, k, v):
        return tilewise.attention(q * 2, k, v, causal=True, softcap=3.0).square().sum()

    step(q, k, v).backward()
    want = [t.grad.clone() for t in (q, k, v)]
    for t in (q, k, v):
        t.grad = None
    torch.compile(step, fullgraph=True, backend="aot_eager")(q, k, v).backward()
    for t, g in zip((q, k, v), want):
        assert torch.equal(t.grad, g)


def test_autocast_behaves_like_sdpa():
    q, k, v = make()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = tilewise.attention(q, k, v)
        sdpa = F.scaled_dot_product_attention(*(t.transpose(1, 2) for t in (q, k, v)), enable_gqa=True)
    assert out.dtype == sdpa.dtype == torch.bfloat16
    assert tilewise.attention(q, k, v).dtype == torch.float32


def test_dropout_comes_from_torchs_generator():
    q, k, v = make(grad=True)
    runs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        runs.append(tilewise.attention(q, k, v, dropout_p=0.4))
    assert torch.equal(runs[0], runs[1]) and not torch.equal(runs[0], runs[2])
    assert not torch.equal(
        tilewise.attention(q, k, v, dropout_p=0.4), tilewise.attention(q, k, v, dropout_p=0.4)
    )


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_dropout_backward_uses_the_forwards_mask(dtype):
    inputs = plain.identity_v("cpu", dtype=dtype)
    out = tilewise.attention(*inputs, dropout_p=0.3)
    dout = torch.randn_like(out)
    plain.judge_dropout(out, torch.autograd.grad(out, inputs, dout), inputs, dout, 0.3)


def test_double_backward_is_refused_clearly():
    q, k, v = make(grad=True)
    (g,) = torch.autograd.grad(tilewise.attention(q, k, v).sum(), q, create_graph=True)
    with pytest.raises(NotImplementedError, match="gradients of gradients"):
        g.sum().backward()


def test_expanded_and_strided_gradients():
    q, k, v = make(grad=True)
    out = tilewise.attention(q, k, v)
    by_sum = torch.autograd.grad(out.sum(), (q, k, v), retain_graph=True)  # stride-0 dout
    by_ones = torch.autograd.grad(out, (q, k, v), torch.ones_like(out))
    for a, b in zip(by_sum, by_ones):
        assert torch.equal(a, b)


def test_merge_and_explain():
    q, k, v = make()
    parts = [
        tilewise.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 11), slice(11, None))
    ]
    merged, merged_lse = tilewise.merge(*parts[0], *parts[1])
    plain.judge(merged, merged_lse, (q, k, v))
    assert "algorithm" in tilewise.explain(q, k, v)


def test_merge_refuses_to_lose_gradients():
    q, k, v = make(grad=True)
    part = tilewise.attention(q, k, v, return_lse=True)
    with pytest.raises(NotImplementedError, match="logaddexp"):
        tilewise.merge(*part, *part)
    with torch.no_grad():
        tilewise.merge(*part, *part)


def test_out_is_written_in_place():
    q, k, v = make()
    want = tilewise.attention(q, k, v, causal=True)
    buffer = torch.full((*want.shape[:-1], 2 * want.shape[-1]), torch.nan)
    out = buffer[..., : want.shape[-1]]
    assert tilewise.attention(q, k, v, causal=True, out=out) is out
    assert torch.equal(out, want) and buffer[..., want.shape[-1] :].isnan().all()
    with pytest.raises(ValueError, match="out: "):
        tilewise.attention(q, k, v, out=torch.empty(1, 1, 1, 1))
    with pytest.raises(ValueError, match="no_grad"):
        tilewise.attention(q.clone().requires_grad_(), k, v, out=out)
    with torch.no_grad():
        tilewise.attention(q.clone().requires_grad_(), k, v, out=out)


def test_meta_and_mixed_devices_are_refused():
    q, k, v = make()
    with pytest.raises((ValueError, NotImplementedError, RuntimeError)):
        tilewise.attention(q, k.to("meta"), v)


def test_requires_grad_reaches_numpy_layer_never():
    q, k, v = make(grad=True)
    with pytest.raises(TypeError, match="autograd"):
        tilewise.attention_backward(q, q, k, v, q, q)


def test_numpy_and_torch_agree():
    q, k, v = make()
    a = tilewise.attention(q, k, v, causal=True).numpy()
    b = tilewise.attention(q.numpy(), k.numpy(), v.numpy(), causal=True)
    np.testing.assert_array_equal(a, b)
    reference.judge(a, None, q.numpy(), k.numpy(), v.numpy(), causal=True)


def run_alone(code):
    """In a process of its own, whose threads can be counted."""
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr


THREADS = """
    import os, threading
    import torch, tilewise

    def count():
        return len(os.listdir("/proc/self/task"))

    torch.set_num_threads(3)
    q, k, v = (torch.randn(1, 300, 4, 32) for _ in range(3))
    (torch.rand(1 << 20) + 1).sum()  # starts PyTorch's threads
    before = count()
    want = tilewise.attention(q, k, v, threads=1)
"""


@pytest.mark.skipif("OpenMP" not in torch.__config__.parallel_info(), reason="this PyTorch has threads of another kind")
def test_the_cpu_runs_on_torchs_threads():
    run_alone(
        THREADS
        + """
    assert torch.equal(tilewise.attention(q, k, v), want)
    assert count() == before, (count(), before)
    # More than PyTorch has, and from several threads at once.
    assert torch.equal(tilewise.attention(q, k, v, threads=5), want)
    results = [None] * 4
    def call(n):
        results[n] = tilewise.attention(q, k, v)
    callers = [threading.Thread(target=call, args=(n,)) for n in range(4)]
    for t in callers:
        t.start()
    for t in callers:
        t.join()
    assert all(torch.equal(r, want) for r in results)
    """
    )


def test_the_child_of_a_fork_has_threads_again():
    run_alone(
        THREADS
        + """
    tilewise.attention(q, k, v)
    child = os.fork()
    if child == 0:
        os._exit(0 if (tilewise.attention(q, k, v).numpy() == want.numpy()).all() else 1)
    assert os.waitpid(child, 0)[1] == 0
    """
    )


def test_as_many_threads_as_torch_uses():
    q, k, v = make(Sq=300, Sk=300)
    used = torch.get_num_threads()
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            assert f", {n} thread" in tilewise.explain(q, k, v)
            assert ", 2 thread" in tilewise.explain(q, k, v, threads=2)
    finally:
        torch.set_num_threads(used)
