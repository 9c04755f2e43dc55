"""Tilewise behind torch.nn.functional.scaled_dot_product_attention.

    import tilewise.sdpa                                            # registers, does not activate
    torch.nn.attention.activate_flash_attention_impl("tilewise")    # from here SDPA's flash path is ours
    torch.nn.attention.restore_flash_attention_impl()

Replaces the CUDA kernels of the four aten flash-attention ops, so nn.MultiheadAttention, nanoGPT-style
code, Hugging Face's "sdpa" models and context parallelism run on Tilewise unchanged, dropout and backward
included. A case that we do not run raises with the reason; nothing falls back or recurses.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _torch

NAME = "tilewise"


def _state(dropout_p: float, device: torch.device) -> tuple[Optional[Tensor], Tensor, Tensor]:
    """(state for our op, rng_state, philox_offset) in the form that the aten schema returns and hands back
    to backward."""
    if dropout_p > 0:
        state = _torch.new_rng_state(device)
        return state, state.view(torch.uint64), torch.empty((), dtype=torch.uint64, device=device)
    return (
        None,
        torch.empty(2, dtype=torch.uint64, device=device),
        torch.empty((), dtype=torch.uint64, device=device),
    )


def _window(left: Optional[int], right: Optional[int]) -> tuple[int, int]:
    return (-1 if left is None else int(left), -1 if right is None else int(right))


def _forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: dict,
    out: Tensor,
    lse: Tensor,
    state: Optional[Tensor],
    **options: Any,
) -> None:
    named = dict(tensors, q=q, k=k, v=v, out=out, lse=lse)
    _torch.run(_torch.FORWARD, tuple(map(named.get, _torch.TENSORS)), _torch.cached_options(**options), state)


def _backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    lse: Tensor,
    tensors: dict,
    state: Optional[Tensor],
    **options: Any,
):
    dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
    options["deterministic"] = torch.are_deterministic_algorithms_enabled()
    named = dict(tensors, q=q, k=k, v=v, out=out, lse=lse, dout=dout, dq=dq, dk=dk, dv=dv)
    _torch.run(
        _torch.BACKWARD, tuple(map(named.get, _torch.TENSORS)), _torch.cached_options(**options), state
    )
    return dq, dk, dv


def _refuse(**unsupported: Any) -> None:
    for name, value in unsupported.items():
        if value is not None:
            raise NotImplementedError(
                f"tilewise: {name} is not supported by the SDPA override; call tilewise.attention directly"
            )


def scaled_dot_product_flash_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    dropout_p: float = 0.0,
    is_causal: bool = False,
    return_debug_mask: bool = False,
    *,
    scale: Optional[float] = None,
    **extra: Any,
):
    """(B, H, S, D) as SDPA has it; the output's layout follows the query's."""
    _refuse(**extra, return_debug_mask=True if return_debug_mask else None)
    out = (
        torch.empty_like(query)
        if value.shape[-1] == query.shape[-1]
        else query.new_empty(*query.shape[:-1], value.shape[-1])
    )
    lse = query.new_empty(query.shape[:3], dtype=torch.float32)
    state, rng_state, philox_offset = _state(dropout_p, query.device)
    q, k, v, o = (t.transpose(1, 2) for t in (query, key, value, out))
    _forward(
        q, k, v, {}, o, lse, state, scale=scale, causal=is_causal, dropout_p=dropout_p, alignment="top-left"
    )
    debug_mask = query.new_empty(0)
    return out, lse, None, None, query.shape[2], key.shape[2], rng_state, philox_offset, debug_mask


def scaled_dot_product_flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Any,
    cum_seq_k: Any,
    max_q: Any,
    max_k: Any,
    dropout_p: float,
    is_causal: bool,
    philox_seed: Tensor,
    philox_offset: Tensor,
    *,
    scale: Optional[float] = None,
    **extra: Any,
):
    _refuse(**extra)
    state = philox_seed.view(torch.int64) if dropout_p > 0 else None
    dout, q, k, v, o = (t.transpose(1, 2) for t in (grad_out, query, key, value, out))
    options = dict(scale=scale, causal=is_causal, dropout_p=dropout_p, alignment="top-left")
    return tuple(g.transpose(1, 2) for g in _backward(dout, q, k, v, o, logsumexp, {}, state, **options))


def flash_attention_forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    cum_seq_q: Optional[Tensor],
    cum_seq_k: Optional[Tensor],
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    return_debug_mask: bool,
    *,
    scale: Optional[float] = None,
    window_size_left: Optional[int] = None,
    window_size_right: Optional[int] = None,
    seqused_k: Optional[Tensor] = None,
    alibi_slopes: Optional[Tensor] = None,
    **extra: Any,
):
    """(B, S, H, D), or packed (T, H, D) with cum_seq_q and cum_seq_k."""
    _refuse(**extra, return_debug_mask=True if return_debug_mask else None)
    out, lse = _torch._outputs(query, value, cum_seq_q is not None)
    state, rng_state, philox_offset = _state(dropout_p, query.device)
    tensors = dict(
        cu_seqlens_q=cum_seq_q, cu_seqlens_k=cum_seq_k, seqused_k=seqused_k, alibi_slopes=alibi_slopes
    )
    _forward(
        query,
        key,
        value,
        tensors,
        out,
        lse,
        state,
        scale=scale,
        causal=is_causal,
        dropout_p=dropout_p,
        window=_window(window_size_left, window_size_right),
        max_seqlen_q=max_q if cum_seq_q is not None else 0,
        max_seqlen_k=max_k if cum_seq_q is not None else 0,
    )
    return out, lse, rng_state, philox_offset, query.new_empty(0)


def flash_attention_backward(
    grad_out: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    out: Tensor,
    logsumexp: Tensor,
    cum_seq_q: Optional[Tensor],
    cum_seq_k: Optional[Tensor],
    max_q: int,
    max_k: int,
    dropout_p: float,
    is_causal: bool,
    rng_state: Tensor,
    unused: Tensor,
    *,
    scale: Optional[float] = None,
    window_size_left: Optional[int] = None,
    window_size_right: Optional[int] = None,
    **extra: Any,
):
    _refuse(**extra)
    state = rng_state.view(torch.int64) if dropout_p > 0 else None
    tensors = dict(cu_seqlens_q=cum_seq_q, cu_seqlens_k=cum_seq_k)
    return _backward(
        grad_out,
        query,
        key,
        value,
        out,
        logsumexp,
        tensors,
        state,
        scale=scale,
        causal=is_causal,
        dropout_p=dropout_p,
        window=_window(window_size_left, window_size_right),
        max_seqlen_q=max_q if cum_seq_q is not None else 0,
        max_seqlen_k=max_k if cum_seq_q is not None else 0,
    )


OVERRIDES = {
    "_scaled_dot_product_flash_attention": scaled_dot_product_flash_attention,
    "_scaled_dot_product_flash_attention_backward": scaled_dot_product_flash_attention_backward,
    "_flash_attention_forward": flash_attention_forward,
    "_flash_attention_backward": flash_attention_backward,
}


class _Handle:
    """Holds the registrations; PyTorch calls remove() when another implementation is activated."""

    def __init__(self) -> None:
        self.library: Optional[torch.library.Library] = torch.library.Library("aten", "IMPL", "CUDA")
        for name, function in OVERRIDES.items():
            self.library.impl(name, function, "CUDA")

    def remove(self) -> None:
        self.library = None


def register() -> bool:
    """Makes "tilewise" known to torch.nn.attention; True when this torch has the registry (2.10 and
    later)."""
    registry = getattr(torch.nn.attention, "register_flash_attention_impl", None)
    if registry is None:
        return False
    registry(NAME, register_fn=_Handle)
    return True


register()
