"""The torch ops on a GPU: values, gradients, CUDA graphs, streams, dropout, real model configs."""

import copy

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
import tilewise  # noqa: E402
from tilewise import flash_attn as fa  # noqa: E402

pytestmark = pytest.mark.gpu
CUDA = "cuda"


def make(B=2, Sq=257, Sk=257, H=4, Hk=2, D=64, Dv=None, dtype=torch.bfloat16, grad=False):
    torch.manual_seed(0)
    shapes = (B, Sq, H, D), (B, Sk, Hk, D), (B, Sk, Hk, Dv or D)
    return tuple(torch.randn(s, device=CUDA, dtype=dtype).requires_grad_(grad) for s in shapes)


def plain(q, k, v, dtype, *, causal=False, window=(-1, -1), softcap=0.0, bias=None, mask=None, sink=None):
    """The definition in `dtype` operations: out."""
    q, k, v = (t.to(dtype).transpose(1, 2) for t in (q, k, v))
    k, v = (t.repeat_interleave(q.shape[1] // t.shape[1], 1) for t in (k, v))
    s = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if softcap:
        s = softcap * torch.tanh(s / softcap)
    if bias is not None:
        s = s + bias.to(dtype)
    i = torch.arange(s.shape[-2], device=CUDA)[:, None] + s.shape[-1] - s.shape[-2]
    j = torch.arange(s.shape[-1], device=CUDA)
    left, right = window
    right = 0 if causal else right
    hidden = torch.zeros_like(s, dtype=torch.bool)
    if left >= 0:
        hidden |= j < i - left
    if right >= 0:
        hidden |= j > i + right
    if mask is not None:
        hidden |= ~mask
    s = s.masked_fill(hidden, -torch.inf)
    if sink is not None:
        s = torch.cat([s, sink.to(dtype)[None, :, None, None].expand(*s.shape[:-1], 1)], -1)
    p = torch.nan_to_num(torch.softmax(s, -1))[..., : k.shape[-2]]
    return (p @ v).transpose(1, 2)


def assert_within_rule(got, exact, naive, factor):
    error, allowed = (got.double() - exact).abs().max(), factor * (naive.double() - exact).abs().max()
    assert error <= allowed + 1e-5 * exact.abs().max(), (error.item(), allowed.item())


CASES = [
    dict(),
    dict(causal=True),
    dict(window=(50, 10)),
    dict(causal=True, softcap=3.0),
    dict(causal=True, D=128, H=8, Hk=1),
    dict(causal=True, Sq=100, Sk=333, D=96),
    dict(D=40, Dv=72),
    dict(D=192, Dv=128, causal=True),
    dict(D=256, causal=True, dtype=torch.float16),
    dict(dtype=torch.float32, causal=True),
    dict(bias=(1, 4, 1, 257)),
    dict(mask=(2, 1, 257, 257)),
    dict(sink=True, causal=True),
]


@pytest.mark.parametrize("case", CASES, ids=str)
def test_values_and_gradients(case):
    case = dict(case)
    options = {n: case.pop(n) for n in ("causal", "window", "softcap") if n in case}
    extras = {n: case.pop(n) for n in ("bias", "mask", "sink") if n in case}
    q, k, v = make(grad=True, **case)
    tensors = {}
    if "bias" in extras:
        tensors["bias"] = torch.randn(extras["bias"], device=CUDA, dtype=q.dtype)
    if "mask" in extras:
        tensors["mask"] = torch.rand(extras["mask"], device=CUDA) < 0.7
    if "sink" in extras:
        tensors["sink"] = torch.randn(4, device=CUDA)
    out = tilewise.attention(q, k, v, **options, **tensors)
    dout = torch.randn_like(out)
    mine = (out.detach(), *torch.autograd.grad(out, (q, k, v), dout))
    results = []
    for dtype in (torch.float64, q.dtype):
        leaves = [t.detach().to(dtype).requires_grad_() for t in (q, k, v)]
        want = plain(*leaves, dtype, **options, **tensors)
        results.append((want.detach(), *torch.autograd.grad(want, leaves, dout.to(dtype))))
    for n, (got, exact, naive) in enumerate(zip(mine, *results)):
        assert_within_rule(got, exact, naive, 3 if n else 2)


def test_varlen_equals_dense_pieces():
    lengths = [5, 0, 130, 300, 1]
    cu = torch.tensor([0, *torch.tensor(lengths).cumsum(0)], dtype=torch.int32, device=CUDA)
    q, k, v = (t[0] for t in make(B=1, Sq=436, Sk=436))
    out = fa.flash_attn_varlen_func(q, k, v, cu, cu, 300, 300, causal=True)
    for a, b in zip(cu[:-1].tolist(), cu[1:].tolist()):
        if a < b:
            want = fa.flash_attn_func(*(t[None, a:b] for t in (q, k, v)), causal=True)[0]
            torch.testing.assert_close(out[a:b], want, rtol=1e-2, atol=1e-2)


def test_side_stream_and_threads_use_the_current_stream():
    q, k, v = make(Sq=1024, Sk=1024)
    want = tilewise.attention(q, k, v)
    stream = torch.cuda.Stream()
    a = torch.empty_like(q)
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)
        a.copy_(q)
        out = tilewise.attention(a, k, v)
    stream.synchronize()
    assert torch.equal(out, want)


def test_cuda_graph_replays_with_changed_inputs_and_fresh_dropout():
    q, k, v = make(grad=True)
    static = [t.detach().clone().requires_grad_() for t in (q, k, v)]

    def step():
        out = tilewise.attention(*static, causal=True, dropout_p=0.2)
        return (out, *torch.autograd.grad(out.float().sum(), static))

    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        for _ in range(2):
            step()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    graph.replay()
    first = [t.clone() for t in results]
    graph.replay()
    assert not torch.equal(first[0], results[0])
    with torch.no_grad():
        static[2].zero_()
    graph.replay()
    torch.cuda.synchronize()
    assert (results[0] == 0).all()


def test_graph_replay_with_changed_lengths():
    q, k, v = make(B=2, Sq=1, Sk=512)
    used = torch.tensor([3, 3], dtype=torch.int32, device=CUDA)
    for _ in range(2):
        tilewise.attention(q, k, v, seqused_k=used)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tilewise.attention(q, k, v, seqused_k=used)
    for n in (3, 100, 512, 0):
        used.fill_(n)
        graph.replay()
        torch.testing.assert_close(out, tilewise.attention(q, k, v, seqused_k=used))
        if n:
            torch.testing.assert_close(out, tilewise.attention(q, k[:, :n], v[:, :n]), rtol=1e-2, atol=1e-2)


def test_compile_without_graph_breaks():
    q, k, v = make(grad=True)

    def step(q, k, v):
        return tilewise.attention(q * 1.5, k, v, causal=True).float().square().mean()

    want = torch.autograd.grad(step(q, k, v), (q, k, v))
    got = torch.autograd.grad(torch.compile(step, fullgraph=True)(q, k, v), (q, k, v))
    for a, b in zip(got, want):
        torch.testing.assert_close(a, b, rtol=2e-2, atol=1e-4)


def test_mixed_devices_are_refused():
    q, k, v = make()
    with pytest.raises(ValueError, match="k: on the CPU while q is on CUDA device 0"):
        tilewise.attention(q, k.cpu(), v)


def models():
    transformers = pytest.importorskip("transformers", minversion="5.0")
    common = dict(
        vocab_size=257,
        hidden_size=256,
        intermediate_size=512,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=64,
    )
    gemma = dict(sliding_window=64, attn_logit_softcapping=20.0, query_pre_attn_scalar=64)
    return {
        "llama": transformers.LlamaConfig(**common),
        "gemma2": transformers.Gemma2Config(**common, **gemma),
    }


@pytest.mark.parametrize("name", ["llama", "gemma2"])
def test_ten_training_steps_track_eager(name):
    """The loss of bf16 training on us stays within three times eager bf16's distance from fp32, plus 1 %."""
    transformers = pytest.importorskip("transformers", minversion="5.0")
    import tilewise.huggingface  # noqa: F401

    torch.manual_seed(0)
    config = models()[name]
    base = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager")
    ids = torch.randint(0, 257, (2, 160), device=CUDA)
    losses = {}
    for key, implementation, dtype in (
        ("exact", "eager", torch.float32),
        ("eager", "eager", torch.bfloat16),
        ("ours", "tilewise", torch.bfloat16),
    ):
        model = transformers.AutoModelForCausalLM.from_config(
            copy.deepcopy(config), attn_implementation=implementation
        )
        model.load_state_dict(base.state_dict())
        model = model.to(CUDA, dtype)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        losses[key] = []
        for _ in range(10):
            loss = model(ids, labels=ids).loss
            losses[key].append(loss.item())
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    for exact, eager, ours in zip(losses["exact"], losses["eager"], losses["ours"]):
        assert abs(ours - exact) <= 3 * abs(eager - exact) + 0.01 * exact, losses
