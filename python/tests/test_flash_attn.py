"""The flash_attn drop-in: signatures as published, conventions against a plain reference."""

import inspect

import pytest

import reference

torch = pytest.importorskip("torch", minversion="2.10")
from tilewise import flash_attn as fa  # noqa: E402

TAIL = [
    "dropout_p",
    "softmax_scale",
    "causal",
    "window_size",
    "softcap",
    "alibi_slopes",
    "deterministic",
    "return_attn_probs",
]
TAIL_DEFAULTS = [0.0, None, False, (-1, -1), 0.0, None, False, False]
VARLEN = ["cu_seqlens_q", "cu_seqlens_k", "max_seqlen_q", "max_seqlen_k"]
SIGNATURES = {
    "flash_attn_func": ["q", "k", "v", *TAIL],
    "flash_attn_qkvpacked_func": ["qkv", *TAIL],
    "flash_attn_kvpacked_func": ["q", "kv", *TAIL],
    "flash_attn_varlen_func": ["q", "k", "v", *VARLEN, *TAIL, "block_table"],
    "flash_attn_varlen_qkvpacked_func": ["qkv", "cu_seqlens", "max_seqlen", *TAIL],
    "flash_attn_varlen_kvpacked_func": ["q", "kv", *VARLEN, *TAIL],
    "flash_attn_with_kvcache": [
        "q",
        "k_cache",
        "v_cache",
        "k",
        "v",
        "rotary_cos",
        "rotary_sin",
        "cache_seqlens",
        "cache_batch_idx",
        "cache_leftpad",
        "block_table",
        "softmax_scale",
        "causal",
        "window_size",
        "softcap",
        "rotary_interleaved",
        "alibi_slopes",
        "num_splits",
        "return_softmax_lse",
    ],
    "_flash_attn_forward": [
        "q",
        "k",
        "v",
        "dropout_p",
        "softmax_scale",
        "causal",
        "window_size_left",
        "window_size_right",
        "softcap",
        "alibi_slopes",
        "return_softmax",
    ],
    "_flash_attn_varlen_forward": [
        "q",
        "k",
        "v",
        *VARLEN,
        "dropout_p",
        "softmax_scale",
        "causal",
        "window_size_left",
        "window_size_right",
        "softcap",
        "alibi_slopes",
        "return_softmax",
        "block_table",
        "leftpad_k",
        "seqused_k",
        "zero_tensors",
        "num_splits",
    ],
    "_flash_attn_backward": [
        "dout",
        "q",
        "k",
        "v",
        "out",
        "softmax_lse",
        "dq",
        "dk",
        "dv",
        "dropout_p",
        "softmax_scale",
        "causal",
        "window_size_left",
        "window_size_right",
        "softcap",
        "alibi_slopes",
        "deterministic",
        "rng_state",
    ],
    "_flash_attn_varlen_backward": [
        "dout",
        "q",
        "k",
        "v",
        "out",
        "softmax_lse",
        "dq",
        "dk",
        "dv",
        *VARLEN,
        "dropout_p",
        "softmax_scale",
        "causal",
        "window_size_left",
        "window_size_right",
        "softcap",
        "alibi_slopes",
        "deterministic",
        "rng_state",
        "zero_tensors",
    ],
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signature(name):
    parameters = inspect.signature(getattr(fa, name)).parameters
    assert list(parameters) == SIGNATURES[name]
    if not name.startswith("_") and name != "flash_attn_with_kvcache":
        assert [parameters[p].default for p in TAIL] == TAIL_DEFAULTS


def judge(out, lse, q, k, v, **options):
    reference.judge(*(t.numpy() for t in (out, lse, q, k, v)), **options)


def test_dense_conventions():
    torch.manual_seed(0)
    q, k, v = torch.randn(2, 7, 4, 16), torch.randn(2, 12, 2, 16), torch.randn(2, 12, 2, 16)
    for options, theirs in [
        (dict(causal=True), dict(causal=True)),
        (dict(window_size=(3, 1)), dict(window=(3, 1))),
        (dict(window_size=(-1, -1), softmax_scale=0.7), dict(scale=0.7)),
        (dict(softcap=2.0), dict(softcap=2.0)),
        (dict(alibi_slopes=torch.tensor([0.1, 0.2, 0.3, 0.4])), dict(slopes=[0.1, 0.2, 0.3, 0.4])),
    ]:
        out, lse, probs = fa.flash_attn_func(q, k, v, return_attn_probs=True, **options)
        judge(out, lse, q, k, v, **theirs)
        assert lse.shape == (2, 4, 7) and lse.dtype == torch.float32 and probs.numel() == 0


def test_empty_rows_have_lse_minus_infinity():
    q, k = torch.randn(1, 5, 2, 8), torch.randn(1, 2, 2, 8)
    out, lse, _ = fa.flash_attn_func(q, k, k, causal=True, return_attn_probs=True)
    assert (out[:, :3] == 0).all() and torch.isneginf(lse[:, :, :3]).all()


def test_packed_projections():
    qkv = torch.randn(2, 9, 3, 4, 8)
    want = fa.flash_attn_func(*qkv.unbind(2), causal=True)
    assert torch.equal(fa.flash_attn_qkvpacked_func(qkv, causal=True), want)
    assert torch.equal(fa.flash_attn_kvpacked_func(qkv[:, :, 0], qkv[:, :, 1:], causal=True), want)


def test_varlen():
    cu = torch.tensor([0, 4, 4, 11], dtype=torch.int32)
    qkv = torch.randn(11, 3, 2, 8)
    q, k, v = qkv.unbind(1)
    out, lse, _ = fa.flash_attn_varlen_func(q, k, v, cu, cu, 7, 7, 0.0, None, True, return_attn_probs=True)
    assert lse.shape == (2, 11)
    for a, b in ((0, 4), (4, 11)):
        judge(out[None, a:b], lse[None, :, a:b], *(t[None, a:b] for t in (q, k, v)), causal=True)
    assert torch.equal(fa.flash_attn_varlen_qkvpacked_func(qkv, cu, 7, causal=True), out)
    assert torch.equal(fa.flash_attn_varlen_kvpacked_func(q, qkv[:, 1:], cu, cu, 7, 7, causal=True), out)


def test_private_functions_as_ring_attention_uses_them():
    torch.manual_seed(0)
    q, k, v = (torch.randn(1, 8, 2, 16) for _ in range(3))
    out, lse, _, state = fa._flash_attn_forward(q, k, v, 0.0, 0.25, True, -1, -1, 0.0, None, False)
    dout = torch.randn_like(out)
    buffers = [torch.full((1, 8, 2, 32), torch.nan)[..., :16] for _ in range(3)]
    d = fa._flash_attn_backward(
        dout, q, k, v, out, lse, *buffers, 0.0, 0.25, True, -1, -1, 0.0, None, False, state
    )
    leaves = [t.clone().requires_grad_() for t in (q, k, v)]
    fa.flash_attn_func(*leaves, softmax_scale=0.25, causal=True).backward(dout)
    for buffer, leaf in zip(buffers, leaves):
        assert torch.equal(buffer, leaf.grad)
    exact, naive = ((dout.to(t) * out.to(t)).sum(-1).transpose(1, 2) for t in (torch.float64, torch.float32))
    reference.assert_within_rule("softmax_d", *(t.numpy() for t in (d, exact, naive)))
    cu = torch.tensor([0, 8], dtype=torch.int32)
    out2, lse2, _, _ = fa._flash_attn_varlen_forward(q[0], k[0], v[0], cu, cu, 8, 8, 0.0, 0.25, True)
    assert torch.equal(out2, out[0]) and torch.equal(lse2, lse[0])


def test_what_is_missing_says_so():
    q = torch.randn(1, 4, 2, 8)
    with pytest.raises(NotImplementedError, match="flash_attn_with_kvcache"):
        fa.flash_attn_with_kvcache(q, q, q)
    with pytest.raises(NotImplementedError, match="block_table"):
        fa.flash_attn_varlen_func(q[0], q[0], q[0], None, None, 4, 4, block_table=q)
    with pytest.raises(ValueError, match="rng_state"):
        fa._flash_attn_backward(q, q, q, q, q, q, None, None, None, 0.1, 1.0, False, -1, -1, 0.0, None, False)
