"""flash_attn 2.8's functions on Tilewise: same names, parameter order, defaults and return values.

    from tilewise.flash_attn import flash_attn_func, flash_attn_varlen_func

One convention differs on purpose: a row that sees no key has lse = -inf here (flash_attn returns +inf), so
that partial results merge. Where flash_attn refuses a case that Tilewise runs (any head dim, CPU tensors,
softcap with dropout), it runs.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _torch

__all__ = [
    "flash_attn_func",
    "flash_attn_qkvpacked_func",
    "flash_attn_kvpacked_func",
    "flash_attn_varlen_func",
    "flash_attn_varlen_qkvpacked_func",
    "flash_attn_varlen_kvpacked_func",
    "flash_attn_with_kvcache",
]

__version__ = "2.8.3"  # the flash_attn release whose interface this is


def _attend(q: Tensor, k: Tensor, v: Tensor, return_attn_probs: bool, tensors: dict, options: dict) -> Any:
    out, lse, _ = _torch.forward_with_lse(q, k, v, tensors, options)
    # flash_attn's third value is filled for its own tests only; it is empty without dropout there too.
    return (out, lse, q.new_empty(0)) if return_attn_probs else out


def _options(dropout_p, softmax_scale, causal, window_size, softcap, deterministic, **more) -> dict:
    return dict(
        dropout_p=dropout_p,
        scale=softmax_scale,
        causal=causal,
        window=tuple(_bound(w) for w in window_size),
        softcap=max(softcap, 0.0),
        deterministic=deterministic,
        **more,
    )


def _bound(w: Optional[int]) -> int:
    """flash_attn reads every negative bound as 'no bound'."""
    return -1 if w is None or w < 0 else int(w)


def _no_pages(block_table: Optional[Tensor]) -> None:
    if block_table is not None:
        raise NotImplementedError(
            "tilewise: block_table (paged keys and values) is not supported yet; gather the pages first"
        )


def flash_attn_func(
    q,
    k,
    v,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv) -> out (B, Sq, H, Dv) [, lse (B, H, Sq), S_dmask
    (empty)]."""
    options = _options(dropout_p, softmax_scale, causal, window_size, softcap, deterministic)
    return _attend(q, k, v, return_attn_probs, dict(alibi_slopes=alibi_slopes), options)


def flash_attn_qkvpacked_func(
    qkv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """qkv (B, S, 3, H, D); its slices are read in place."""
    q, k, v = qkv.unbind(dim=2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_kvpacked_func(
    q,
    kv,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q (B, Sq, H, D), kv (B, Sk, 2, Hk, D)."""
    k, v = kv.unbind(dim=2)
    return flash_attn_func(
        q,
        k,
        v,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_func(
    q,
    k,
    v,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
    block_table=None,
):
    """q (Tq, H, D), k (Tk, Hk, D), v (Tk, Hk, Dv) -> out (Tq, H, Dv) [, lse (H, Tq), S_dmask (empty)]."""
    _no_pages(block_table)
    options = _options(
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        deterministic,
        max_seqlen_q=int(max_seqlen_q),
        max_seqlen_k=int(max_seqlen_k),
    )
    tensors = dict(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, alibi_slopes=alibi_slopes)
    return _attend(q, k, v, return_attn_probs, tensors, options)


def flash_attn_varlen_qkvpacked_func(
    qkv,
    cu_seqlens,
    max_seqlen,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """qkv (T, 3, H, D)."""
    q, k, v = qkv.unbind(dim=1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens,
        cu_seqlens,
        max_seqlen,
        max_seqlen,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_varlen_kvpacked_func(
    q,
    kv,
    cu_seqlens_q,
    cu_seqlens_k,
    max_seqlen_q,
    max_seqlen_k,
    dropout_p=0.0,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    alibi_slopes=None,
    deterministic=False,
    return_attn_probs=False,
):
    """q (Tq, H, D), kv (Tk, 2, Hk, D)."""
    k, v = kv.unbind(dim=1)
    return flash_attn_varlen_func(
        q,
        k,
        v,
        cu_seqlens_q,
        cu_seqlens_k,
        max_seqlen_q,
        max_seqlen_k,
        dropout_p,
        softmax_scale,
        causal,
        window_size,
        softcap,
        alibi_slopes,
        deterministic,
        return_attn_probs,
    )


def flash_attn_with_kvcache(
    q,
    k_cache,
    v_cache,
    k=None,
    v=None,
    rotary_cos=None,
    rotary_sin=None,
    cache_seqlens=None,
    cache_batch_idx=None,
    cache_leftpad=None,
    block_table=None,
    softmax_scale=None,
    causal=False,
    window_size=(-1, -1),
    softcap=0.0,
    rotary_interleaved=True,
    alibi_slopes=None,
    num_splits=0,
    return_softmax_lse=False,
):
    """Raises NotImplementedError: the cache kernels do not exist yet."""
    raise NotImplementedError(
        "tilewise: flash_attn_with_kvcache is not supported yet; without append, rotary and pages use "
        "tilewise.attention(q, k_cache, v_cache, seqused_k=cache_seqlens)"
    )


# The private functions that Megatron, TransformerEngine and ring-flash-attention import.


def _flash_attn_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    return_softmax: bool,
):
    """(out, lse (B, H, Sq), S_dmask (empty), rng_state int64 (2,))."""
    options = _options(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, False
    )
    with torch.no_grad():
        out, lse, rng_state = _torch.forward_with_lse(q, k, v, dict(alibi_slopes=alibi_slopes), options)
    return out, lse, q.new_empty(0), _state_or_empty(rng_state, q)


def _flash_attn_varlen_forward(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int = -1,
    window_size_right: int = -1,
    softcap: float = 0.0,
    alibi_slopes: Optional[Tensor] = None,
    return_softmax: bool = False,
    block_table: Optional[Tensor] = None,
    leftpad_k: Optional[Tensor] = None,
    seqused_k: Optional[Tensor] = None,
    zero_tensors: bool = False,
    num_splits: int = 0,
):
    """(out, lse (H, Tq), S_dmask (empty), rng_state int64 (2,)). Uncovered rows are 0 whatever zero_tensors
    says."""
    _no_pages(block_table)
    if leftpad_k is not None:
        raise NotImplementedError("tilewise: leftpad_k is not supported; shift cu_seqlens_k instead")
    options = _options(
        dropout_p,
        softmax_scale,
        causal,
        (window_size_left, window_size_right),
        softcap,
        False,
        max_seqlen_q=int(max_seqlen_q),
        max_seqlen_k=int(max_seqlen_k),
    )
    tensors = dict(
        cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, seqused_k=seqused_k, alibi_slopes=alibi_slopes
    )
    with torch.no_grad():
        out, lse, rng_state = _torch.forward_with_lse(q, k, v, tensors, options)
    return out, lse, q.new_empty(0), _state_or_empty(rng_state, q)


def _flash_attn_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    rng_state: Optional[Tensor] = None,
) -> Tensor:
    """Writes dq, dk, dv; returns softmax_d = rowsum(dout * out), (B, H, Sq) fp32."""
    options = _options(
        dropout_p, softmax_scale, causal, (window_size_left, window_size_right), softcap, deterministic
    )
    _backward_into(
        dout, q, k, v, out, softmax_lse, dq, dk, dv, dict(alibi_slopes=alibi_slopes), options, rng_state
    )
    return (dout.float() * out.float()).sum(-1).transpose(1, 2).contiguous()


def _flash_attn_varlen_backward(
    dout: Tensor,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    out: Tensor,
    softmax_lse: Tensor,
    dq: Optional[Tensor],
    dk: Optional[Tensor],
    dv: Optional[Tensor],
    cu_seqlens_q: Tensor,
    cu_seqlens_k: Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float,
    softmax_scale: float,
    causal: bool,
    window_size_left: int,
    window_size_right: int,
    softcap: float,
    alibi_slopes: Optional[Tensor],
    deterministic: bool,
    rng_state: Optional[Tensor] = None,
    zero_tensors: bool = False,
) -> Tensor:
    """Writes dq, dk, dv; returns softmax_d = rowsum(dout * out), (H, Tq) fp32."""
    options = _options(
        dropout_p,
        softmax_scale,
        causal,
        (window_size_left, window_size_right),
        softcap,
        deterministic,
        max_seqlen_q=int(max_seqlen_q),
        max_seqlen_k=int(max_seqlen_k),
    )
    tensors = dict(cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k, alibi_slopes=alibi_slopes)
    _backward_into(dout, q, k, v, out, softmax_lse, dq, dk, dv, tensors, options, rng_state)
    return (dout.float() * out.float()).sum(-1).transpose(0, 1).contiguous()


def _state_or_empty(rng_state: Optional[Tensor], q: Tensor) -> Tensor:
    return torch.zeros(2, dtype=torch.int64, device=q.device) if rng_state is None else rng_state


def _backward_into(
    dout, q, k, v, out, lse, dq, dk, dv, tensors: dict, options: dict, rng_state: Optional[Tensor]
) -> None:
    dq, dk, dv = (torch.empty_like(t) if g is None else g for g, t in ((dq, q), (dk, k), (dv, v)))
    if options["dropout_p"] > 0 and rng_state is None:
        raise ValueError("rng_state: missing while dropout_p > 0; pass the one that the forward returned")
    slopes = tensors.get("alibi_slopes")
    if slopes is not None:
        tensors = dict(tensors, alibi_slopes=slopes.float())
    named = dict(tensors, q=q, k=k, v=v, out=out, lse=lse, dout=dout, dq=dq, dk=dk, dv=dv)
    state = rng_state if options["dropout_p"] > 0 else None
    _torch.run(
        _torch.BACKWARD, tuple(map(named.get, _torch.TENSORS)), _torch.cached_options(**options), state
    )
