"""The SDPA override: registration, and the four functions called as PyTorch would call them."""

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
from tilewise import sdpa  # noqa: E402

F = torch.nn.functional


def test_registered_but_not_activated():
    assert "tilewise" in torch.nn.attention.list_flash_attention_impls()
    assert torch.nn.attention.current_flash_attention_impl() != "tilewise"


def test_override_signatures_cover_the_schemas():
    import inspect

    for name, function in sdpa.OVERRIDES.items():
        schema = getattr(torch.ops.aten, name).default._schema
        mine = inspect.signature(function).parameters
        assert [a.name for a in schema.arguments if not a.kwarg_only] == [
            p.name for p in mine.values() if p.kind is p.POSITIONAL_OR_KEYWORD
        ], name


@pytest.mark.parametrize("causal", [False, True])
def test_forward_and_backward_equal_sdpa(causal):
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 9, 3, 16).transpose(1, 2).requires_grad_() for _ in range(3))
    out, lse, cq, ck, mq, mk, seed, offset, _ = sdpa.scaled_dot_product_flash_attention(
        q.detach(), k.detach(), v.detach(), 0.0, causal
    )
    want = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
    torch.testing.assert_close(out, want.detach())
    assert out.stride() == q.stride()
    dout = torch.randn_like(out)
    want.backward(dout)
    gradients = sdpa.scaled_dot_product_flash_attention_backward(
        dout, q.detach(), k.detach(), v.detach(), out, lse, cq, ck, mq, mk, 0.0, causal, seed, offset
    )
    for mine, leaf in zip(gradients, (q, k, v)):
        torch.testing.assert_close(mine, leaf.grad)


def test_dropout_replays_in_backward():
    torch.manual_seed(0)
    q, k = torch.randn(1, 1, 32, 16), torch.randn(1, 1, 32, 16)
    v = torch.eye(32)[None, None].clone()
    out, lse, cq, ck, mq, mk, seed, offset, _ = sdpa.scaled_dot_product_flash_attention(q, k, v, 0.5)
    dout = torch.ones_like(out)
    _, _, dv = sdpa.scaled_dot_product_flash_attention_backward(
        dout, q, k, v, out, lse, cq, ck, mq, mk, 0.5, False, seed, offset
    )
    torch.testing.assert_close(dv[0, 0, :, 0], out[0, 0].sum(0))


def test_unsupported_cases_raise_with_the_reason():
    q = torch.randn(1, 2, 4, 8)
    with pytest.raises(NotImplementedError, match="return_debug_mask"):
        sdpa.scaled_dot_product_flash_attention(q, q, q, 0.0, False, True)
    with pytest.raises(NotImplementedError, match="low_p"):
        sdpa.scaled_dot_product_flash_attention(q, q, q, low_p=1)


@pytest.mark.gpu
def test_sdpa_runs_on_us_when_activated():
    q, k, v = (
        torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16, requires_grad=True) for _ in range(3)
    )
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        want = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        torch.nn.attention.activate_flash_attention_impl("tilewise")
        try:
            out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            out.sum().backward()
        finally:
            torch.nn.attention.restore_flash_attention_impl()
    torch.testing.assert_close(out, want, rtol=2e-2, atol=2e-2)
    assert all(t.grad is not None for t in (q, k, v))
