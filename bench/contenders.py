"""Who takes part in the figures: each contender makes, for one cell of the grid, the calls that are timed.

A contender's `attend(q, k, v, causal)` takes (B, S, H, D) or (B, H, S, D) tensors (`layout`) and is
differentiable. `available()` returns why it cannot run here, or "".
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


@dataclass(frozen=True)
class Contender:
    name: str  # the key on the command line and in the JSON
    label: str  # in the figure
    paper: str  # whose bars of the paper it stands beside; "" for none
    layout: str  # "bshd" or "bhsd"
    attend: Callable
    available: Callable[[torch.device], str]
    compiles: str = ""  # "process": by running it once, in helper processes; "plan": by tilewise.prepare
    algorithm: str | None = None  # of tilewise
    stored_scores: int = 0  # S x S tensors alive at once in the forward; the backward has twice as many


def _installed(module: str) -> str:
    return "" if importlib.util.find_spec(module) else f"{module} is not installed"


def _gpu(device: torch.device) -> str:
    return "" if device.type == "cuda" else "needs a CUDA GPU"


def _sdpa(backend: SDPBackend) -> Callable:
    def attend(q, k, v, causal):
        with sdpa_kernel(backend):
            return F.scaled_dot_product_attention(q, k, v, is_causal=causal)

    return attend


def _standard(q, k, v, causal):
    """The paper's PyTorch baseline: scores and probabilities as tensors."""
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    if causal:
        S = q.shape[-2]
        scores = scores.masked_fill(torch.ones(S, S, dtype=torch.bool, device=q.device).triu(1), -torch.inf)
    return torch.softmax(scores, -1) @ v


def _xformers(q, k, v, causal):
    from xformers.ops import LowerTriangularMask, memory_efficient_attention

    return memory_efficient_attention(q, k, v, attn_bias=LowerTriangularMask() if causal else None)


def _triton(q, k, v, causal):
    from peers.triton_attention import attention

    return attention(q, k, v, causal)


def _flash_attn_2(q, k, v, causal):
    from flash_attn import flash_attn_func

    return flash_attn_func(q, k, v, causal=causal)


def _flash_attn_3(q, k, v, causal):
    from flash_attn_interface import flash_attn_func

    out = flash_attn_func(q, k, v, causal=causal)
    return out[0] if isinstance(out, tuple) else out


_flex_state: dict = {}


def _flex(q, k, v, causal):
    """Compiled for each shape by itself: a list of compiled shapes costs host time, a long one falls back to eager."""
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    key = q.shape, q.requires_grad, causal
    if _flex_state.get("key") != key:
        torch._dynamo.reset()
        _flex_state.update(key=key, call=torch.compile(flex_attention, dynamic=False), mask=None)
        if causal:
            S = q.shape[2]
            _flex_state["mask"] = create_block_mask(_causal, None, None, S, S, device=q.device)
    return _flex_state["call"](q, k, v, block_mask=_flex_state["mask"])


def _causal(b, h, i, j):
    return i >= j


def _tilewise(algorithm: str | None) -> Callable:
    def attend(q, k, v, causal):
        import tilewise

        return tilewise.attention(q, k, v, causal=causal, algorithm=algorithm)

    return attend


def _tilewise_runs(algorithm: str | None) -> Callable:
    def available(device: torch.device) -> str:
        try:
            import tilewise

            q = torch.empty(1, 64, 1, 64, device=device, dtype=torch.bfloat16)
            tilewise.explain(q, q, q, algorithm=algorithm)
            return ""
        except Exception as error:
            return f"{type(error).__name__}: {error}"

    return available


def _ours(name: str, label: str, paper: str, algorithm: str | None, stored_scores: int = 0) -> Contender:
    return Contender(
        name,
        label,
        paper,
        "bshd",
        _tilewise(algorithm),
        _tilewise_runs(algorithm),
        compiles="plan",
        algorithm=algorithm,
        stored_scores=stored_scores,
    )


def _anywhere(_: torch.device) -> str:
    return ""


def contenders(device: torch.device) -> list[Contender]:
    """In the figures' order, the paper's methods first."""
    if device.type == "cpu":
        sdpa = _sdpa(SDPBackend.FLASH_ATTENTION)
        return [
            Contender(
                "pytorch", "PyTorch (unfused)", "PyTorch", "bhsd", _standard, _anywhere, stored_scores=3
            ),
            Contender("sdpa", "PyTorch SDPA", "FlashAttention-2", "bhsd", sdpa, _anywhere),
            _ours("tilewise", "Tilewise", "", None),
        ]
    efficient, flash, cudnn = (
        _sdpa(b)
        for b in (SDPBackend.EFFICIENT_ATTENTION, SDPBackend.FLASH_ATTENTION, SDPBackend.CUDNN_ATTENTION)
    )

    def needs(module: str) -> Callable:
        return lambda d: _gpu(d) or _installed(module)

    if _installed("xformers"):
        xformers = Contender("xformers", "xFormers' kernels (PyTorch's)", "xFormers", "bhsd", efficient, _gpu)
    else:
        xformers = Contender("xformers", "xFormers", "xFormers", "bshd", _xformers, _gpu)
    if _installed("flash_attn"):
        fa2 = Contender("fa2", "FlashAttention-2 (PyTorch's)", "FlashAttention-2", "bhsd", flash, _gpu)
    else:
        fa2 = Contender("fa2", "FlashAttention-2", "FlashAttention-2", "bshd", _flash_attn_2, _gpu)
    return [
        Contender("pytorch", "PyTorch", "PyTorch", "bhsd", _standard, _gpu, stored_scores=3),
        _ours("unfused", "unfused (ours)", "", "unfused", stored_scores=2),
        _ours("fa1", "FlashAttention 1 (ours)", "FlashAttention", "fa1"),
        xformers,
        Contender(
            "triton",
            "FlashAttention Triton",
            "FA Triton",
            "bshd",
            _triton,
            needs("triton"),
            compiles="process",
        ),
        fa2,
        Contender("cudnn", "cuDNN", "", "bhsd", cudnn, _gpu),
        Contender("fa3", "FlashAttention-3", "", "bshd", _flash_attn_3, needs("flash_attn_interface")),
        Contender("flex", "flex_attention", "", "bhsd", _flex, _gpu, compiles="process"),
        _ours("tilewise-mma", "Tilewise (mma)", "", "fa2"),
        _ours("tilewise", "Tilewise", "", None),
    ]
