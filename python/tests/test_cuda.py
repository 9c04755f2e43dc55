"""What only a GPU has: streams, CUDA graphs, devices that do not match."""

import pytest

torch = pytest.importorskip("torch", minversion="2.10")
import tilewise  # noqa: E402

from torch_reference import (  # noqa: E402
    LENGTHS,
    identity_v,
    judge,
    judge_dropout,
    judge_gradients,
    judge_packed,
    make,
    offsets,
)

pytestmark = pytest.mark.gpu
CUDA = "cuda"
BF16 = torch.bfloat16


def test_a_side_stream_is_respected():
    q, k, v = make(CUDA, Sq=1024, Sk=1024)
    want = tilewise.attention(q, k, v)
    a = torch.zeros_like(q)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(20_000_000)  # whoever does not wait for this stream reads zeros
        a.copy_(q)
        out = tilewise.attention(a, k, v)
    stream.synchronize()
    assert torch.equal(out, want)


def capture(step):
    """The step's results and a graph that recomputes them in place."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(2):  # compiles and loads kernels
            step()
    torch.cuda.current_stream().wait_stream(stream)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        results = step()
    return results, graph


def test_graph_replays_with_changed_inputs():
    q, k, v = inputs = make(CUDA, grad=True)
    dout = torch.randn_like(q)

    def step():
        out = tilewise.attention(*inputs, causal=True)
        return (out, *torch.autograd.grad(out, inputs, dout))

    (out, *gradients), graph = capture(step)
    for seed in (1, 2):
        torch.manual_seed(seed)
        with torch.no_grad():
            for t in (q, k, v, dout):
                t.normal_()
        graph.replay()
        judge(out, None, inputs, causal=True)
        judge_gradients(gradients, inputs, dout, causal=True)


def test_graph_replays_draw_fresh_dropout_that_backward_shares():
    inputs = identity_v(CUDA)
    dout = torch.randn_like(inputs[0])

    def step():
        out = tilewise.attention(*inputs, dropout_p=0.5)
        return out, *torch.autograd.grad(out, inputs, dout)

    (out, *gradients), graph = capture(step)
    seen = []
    for _ in range(3):
        graph.replay()
        seen.append(judge_dropout(out, gradients, inputs, dout, 0.5))
    assert not torch.equal(seen[0], seen[1]) and not torch.equal(seen[1], seen[2])


def test_graph_replays_with_changed_cache_lengths():
    q, k, v = make(CUDA, B=2, Sq=1, Sk=512)
    used = torch.tensor([3, 3], dtype=torch.int32, device=CUDA)
    out, graph = capture(lambda: tilewise.attention(q, k, v, seqused_k=used))
    for lengths in ((3, 100), (512, 1), (0, 257)):
        used.copy_(torch.tensor(lengths))
        graph.replay()
        for b, n in enumerate(lengths):
            if n:
                judge(out[b : b + 1], None, (q[b : b + 1], k[b : b + 1, :n], v[b : b + 1, :n]))
            else:
                assert (out[b] == 0).all()


def test_graph_replays_with_changed_packed_lengths():
    first, second = (100, 100, 100, 100, 36), LENGTHS
    q, k, v = inputs = tuple(t[0].detach().requires_grad_() for t in make(CUDA, B=1, Sq=436, Sk=436))
    dout, cu = torch.randn_like(q), offsets(first, CUDA)

    def step():
        out = tilewise.attention(
            q, k, v, causal=True, cu_seqlens_q=cu, cu_seqlens_k=cu, max_seqlen_q=300, max_seqlen_k=300
        )
        return (out, *torch.autograd.grad(out, inputs, dout))

    (out, *gradients), graph = capture(step)
    for lengths in (first, second):
        cu.copy_(offsets(lengths, CUDA))
        graph.replay()
        judge_packed(out, gradients, inputs, dout, lengths, causal=True)


def test_prepared_kernels_can_be_captured_at_once():
    """No call has run before; the head dim is nobody else's, so nothing was loaded either."""
    inputs = make(CUDA, D=72, grad=True)
    tilewise.prepare(*inputs, causal=True, backward=True)
    dout = torch.randn_like(inputs[0])
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out = tilewise.attention(*inputs, causal=True)
        gradients = torch.autograd.grad(out, inputs, dout)
    graph.replay()
    judge(out, None, inputs, causal=True)
    judge_gradients(gradients, inputs, dout, causal=True)


@pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")
def test_the_tensors_device_is_used_and_the_current_one_stays():
    inputs = make("cuda:1", grad=True)
    out = tilewise.attention(*inputs, causal=True, dropout_p=0.0)
    dout = torch.randn_like(out)
    gradients = torch.autograd.grad(out, inputs, dout)
    assert torch.cuda.current_device() == 0 and out.device.index == 1
    judge(out, None, inputs, causal=True)
    judge_gradients(gradients, inputs, dout, causal=True)


def test_mixed_devices_are_refused():
    q, k, v = make(CUDA)
    with pytest.raises(ValueError, match="k: on the CPU while q is on CUDA device 0"):
        tilewise.attention(q, k.cpu(), v)
