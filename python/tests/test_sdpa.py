"""The SDPA override: registration, the four functions, and the programs that reach them."""

import contextlib
import inspect

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
from tilewise import _torch, sdpa  # noqa: E402

from torch_reference import (  # noqa: E402
    assert_within_rule,
    attention,
    gradients,
    identity_v,
    judge,
    judge_dropout,
    judge_gradients,
    make,
)

F = torch.nn.functional
BF16 = torch.bfloat16


def test_registered_but_not_activated():
    assert "tilewise" in torch.nn.attention.list_flash_attention_impls()
    assert torch.nn.attention.current_flash_attention_impl() != "tilewise"


def test_override_signatures_cover_the_schemas():
    for name, function in sdpa.OVERRIDES.items():
        schema = getattr(torch.ops.aten, name).default._schema
        mine = inspect.signature(function).parameters
        assert [a.name for a in schema.arguments if not a.kwarg_only] == [
            p.name for p in mine.values() if p.kind is p.POSITIONAL_OR_KEYWORD
        ], name


@contextlib.contextmanager
def activated(device):
    """SDPA's flash path is ours; yields the passes that ran on us. On the CPU, where PyTorch has no such path, the same
    functions stand in for the aten operators' missing kernels."""
    ran, run = [], _torch.run

    def counted(pass_, *arguments, **options):
        ran.append(pass_)
        return run(pass_, *arguments, **options)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(_torch, "run", counted)
        if device == "cpu":
            with torch.library._scoped_library("aten", "IMPL") as library:
                for name, function in sdpa.OVERRIDES.items():
                    library.impl(name, function, "CPU")
                yield ran
            return
        torch.nn.attention.activate_flash_attention_impl("tilewise")
        try:
            with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
                yield ran
        finally:
            torch.nn.attention.restore_flash_attention_impl()


def sdpa_on_us(q, k, v, dropout_p=0.0, is_causal=False):
    """(B, S, H, D) tensors through scaled_dot_product_attention, on the CPU through the operator that it would call."""
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    if q.is_cuda:
        out = F.scaled_dot_product_attention(q, k, v, dropout_p=dropout_p, is_causal=is_causal)
    else:
        out = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v, dropout_p, is_causal)[0]
    return out.transpose(1, 2)


@pytest.mark.parametrize("causal", [False, True])
def test_values_and_gradients(device, causal):
    inputs = make(device, Hk=4, grad=True)
    with activated(device) as ran:
        out = sdpa_on_us(*inputs, is_causal=causal)
        dout = torch.randn_like(out)
        got = torch.autograd.grad(out, inputs, dout)
    assert ran == [_torch.FORWARD, _torch.BACKWARD]
    exact, naive = (attention(*inputs, causal=causal, dtype=t)[0] for t in (torch.float64, BF16))
    assert_within_rule("out", out, exact, naive)
    exact, naive = (gradients(inputs, dout, causal=causal, dtype=t) for t in (torch.float64, BF16))
    for name, g, e, n in zip(("dq", "dk", "dv"), got, exact, naive):
        assert_within_rule(name, g, e, n, gradient=True)


def test_output_strides_are_those_that_compilation_assumes(device):
    qkv = torch.randn(2, 9, 3, 4, 16, device=device, dtype=BF16).requires_grad_()

    def step(qkv):
        return sdpa_on_us(*qkv.unbind(2), is_causal=True).flatten(2) * 1.0

    with activated(device):
        want = step(qkv)
        (dwant,) = torch.autograd.grad(want.sum(), qkv)
        out = torch.compile(step, fullgraph=True, backend="aot_eager")(qkv)
        (dout,) = torch.autograd.grad(out.sum(), qkv)
    assert out.stride() == want.stride()
    ones = torch.ones(2, 9, 4, 16, device=device, dtype=BF16)
    for got, gradient in ((want, dwant), (out, dout)):
        judge(got.view(ones.shape), None, qkv.unbind(2), causal=True)
        judge_gradients(gradient.unbind(2), qkv.unbind(2), ones, causal=True)


def test_dropout_replays_in_backward(device):
    inputs = identity_v(device)
    dout = torch.randn_like(inputs[0])
    with activated(device) as ran:
        out = sdpa_on_us(*inputs, dropout_p=0.5)
        got = torch.autograd.grad(out, inputs, dout)
    assert ran == [_torch.FORWARD, _torch.BACKWARD]
    judge_dropout(out, got, inputs, dout, 0.5)


def test_packed_sequences(device):
    """aten's packed operators, as torch.nn.attention.varlen calls them."""
    q, k, v = (t[0].detach().requires_grad_() for t in make(device, B=1, Sq=40, Sk=40, Hk=4))
    cu = torch.tensor([0, 11, 40], dtype=torch.int32, device=device)
    with activated(device):
        out = torch.ops.aten._flash_attention_forward(q, k, v, cu, cu, 29, 29, 0.0, True, False)
        dout = torch.randn_like(out[0])
        got = torch.ops.aten._flash_attention_backward(
            dout, q, k, v, out[0], out[1], cu, cu, 29, 29, 0.0, True, out[2], out[3]
        )
    for rows in (slice(0, 11), slice(11, 40)):
        part = [t[None, rows] for t in (q, k, v)]
        exact, naive = (attention(*part, causal=True, dtype=t)[0] for t in (torch.float64, BF16))
        assert_within_rule("out", out[0][None, rows], exact, naive)
        exact, naive = (
            gradients(part, dout[None, rows], causal=True, dtype=t) for t in (torch.float64, BF16)
        )
        for name, g, e, n in zip(("dq", "dk", "dv"), got, exact, naive):
            assert_within_rule(name, g[None, rows], e, n, gradient=True)


def test_unsupported_cases_raise_with_the_reason():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(NotImplementedError, match="return_debug_mask"):
        sdpa.scaled_dot_product_flash_attention(q, q, q, 0.0, False, True)
    with pytest.raises(NotImplementedError, match="low_p"):
        sdpa.scaled_dot_product_flash_attention(q, q, q, low_p=1)


@pytest.mark.gpu
def test_activation_can_be_undone_and_repeated():
    q = torch.randn(1, 2, 64, 64, device="cuda", dtype=BF16)
    for _ in range(2):
        with activated("cuda") as ran:
            F.scaled_dot_product_attention(q, q, q)
            assert len(ran) == 1
        with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
            F.scaled_dot_product_attention(q, q, q)
        assert len(ran) == 1


@pytest.mark.gpu
def test_multihead_attention_module():
    torch.manual_seed(0)
    module = torch.nn.MultiheadAttention(256, 4, batch_first=True, device="cuda")
    x = torch.randn(2, 100, 256, device="cuda")
    results = []
    for dtype, ours in ((torch.float32, False), (BF16, False), (BF16, True)):
        m = torch.nn.MultiheadAttention(256, 4, batch_first=True, device="cuda", dtype=dtype)
        m.load_state_dict(module.state_dict())
        leaf = x.to(dtype).requires_grad_()
        with activated("cuda") if ours else contextlib.nullcontext() as ran:
            out, _ = m(leaf, leaf, leaf, need_weights=False)
            (gradient,) = torch.autograd.grad(out.float().sin().sum(), leaf)
        if ours:
            assert ran == [_torch.FORWARD, _torch.BACKWARD]
        results.append((out, gradient))
    (exact, dexact), (naive, dnaive), (got, dgot) = results
    assert_within_rule("out", got, exact, naive)
    assert_within_rule("gradient", dgot, dexact, dnaive, gradient=True)


@pytest.mark.gpu
def test_hugging_face_sdpa_model():
    transformers = pytest.importorskip("transformers", minversion="5.0")
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=97, hidden_size=256, intermediate_size=256, num_hidden_layers=2, num_attention_heads=4
    )
    base = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to("cuda")
    ids = torch.randint(0, 97, (2, 100), device="cuda")
    logits = []
    for dtype, ours in ((torch.float32, False), (BF16, False), (BF16, True)):
        model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="sdpa", dtype=dtype)
        model.load_state_dict(base.state_dict())
        model.to("cuda")
        with activated("cuda") if ours else contextlib.nullcontext() as ran, torch.no_grad():
            logits.append(model(ids).logits)
        if ours:
            assert ran == [_torch.FORWARD] * 2
    assert_within_rule("logits", logits[2], logits[0], logits[1])


@pytest.mark.gpu
def test_varlen_attn():
    varlen = pytest.importorskip("torch.nn.attention.varlen")
    q, k, v = (t[0].detach().requires_grad_() for t in make("cuda", B=1, Sq=40, Sk=40, Hk=4))
    cu = torch.tensor([0, 11, 40], dtype=torch.int32, device="cuda")
    with activated("cuda") as ran:
        out = varlen.varlen_attn(q, k, v, cu, cu, 29, 29, window_size=(-1, 0))
        torch.autograd.grad(out, (q, k, v), torch.randn_like(out))
    assert ran == [_torch.FORWARD, _torch.BACKWARD]
    exact, naive = (
        torch.cat([attention(*(t[None, r] for t in (q, k, v)), causal=True, dtype=d)[0] for r in rows], 1)
        for d, rows in ((d, (slice(0, 11), slice(11, 40))) for d in (torch.float64, BF16))
    )
    assert_within_rule("out", out[None], exact, naive)
