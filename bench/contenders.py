"""Who takes part in the figures: each contender makes, for one cell of the grid, the calls that are timed.

A contender's `attend(q, k, v, causal)` takes (B, S, H, D) or (B, H, S, D) tensors (`layout`) and is
differentiable unless `backward` is False. `available()` returns why it cannot run here, or "".
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
    backward: bool = True
    stored_scores: int = (
        0  # S x S tensors alive at once (forward, backward is twice): predicts an out-of-memory cell
    )


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
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    if "compiled" not in _flex_state:
        _flex_state["compiled"] = torch.compile(flex_attention, dynamic=False)
    mask = None
    if causal:
        S = q.shape[2]
        if S not in _flex_state:
            _flex_state[S] = create_block_mask(lambda b, h, i, j: i >= j, None, None, S, S, device=q.device)
        mask = _flex_state[S]
    return _flex_state["compiled"](q, k, v, block_mask=mask)


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


def contenders(device: torch.device) -> list[Contender]:
    def anywhere(_):
        return ""

    if device.type == "cpu":
        return [
            Contender("pytorch", "PyTorch standard", "PyTorch", "bhsd", _standard, anywhere, stored_scores=3),
            Contender(
                "sdpa",
                "PyTorch SDPA (CPU)",
                "FlashAttention-2",
                "bhsd",
                _sdpa(SDPBackend.FLASH_ATTENTION),
                anywhere,
            ),
            Contender("tilewise", "Tilewise", "", "bshd", _tilewise(None), _tilewise_runs(None)),
        ]
    xformers = not _installed("xformers")
    flash_attn = not _installed("flash_attn")
    return [
        Contender("pytorch", "PyTorch", "PyTorch", "bhsd", _standard, _gpu, stored_scores=3),
        Contender(
            "fa1",
            "FlashAttention 1 (ours)",
            "FlashAttention",
            "bshd",
            _tilewise("fa1"),
            _tilewise_runs("fa1"),
        ),
        Contender(
            "unfused",
            "unfused (ours)",
            "",
            "bshd",
            _tilewise("unfused"),
            _tilewise_runs("unfused"),
            stored_scores=2,
        ),
        Contender(
            "xformers",
            "xFormers",
            "xFormers",
            "bshd" if xformers else "bhsd",
            _xformers if xformers else _sdpa(SDPBackend.EFFICIENT_ATTENTION),
            _gpu,
        ),
        Contender(
            "triton",
            "FlashAttention Triton",
            "FA Triton",
            "bshd",
            _triton,
            lambda d: _gpu(d) or _installed("triton"),
        ),
        Contender(
            "fa2",
            "FlashAttention-2",
            "FlashAttention-2",
            "bshd" if flash_attn else "bhsd",
            _flash_attn_2 if flash_attn else _sdpa(SDPBackend.FLASH_ATTENTION),
            _gpu,
        ),
        Contender("cudnn", "cuDNN", "", "bhsd", _sdpa(SDPBackend.CUDNN_ATTENTION), _gpu),
        Contender(
            "fa3",
            "FlashAttention-3",
            "",
            "bshd",
            _flash_attn_3,
            lambda d: _gpu(d) or _installed("flash_attn_interface"),
        ),
        Contender("flex", "flex_attention", "", "bhsd", _flex, _gpu),
        Contender("tilewise-mma", "Tilewise (mma)", "", "bshd", _tilewise("fa2"), _tilewise_runs("fa2")),
        Contender("tilewise", "Tilewise", "", "bshd", _tilewise(None), _tilewise_runs(None)),
    ]
