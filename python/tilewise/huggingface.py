"""Hugging Face transformers: `attn_implementation="tilewise"`.

    import tilewise.huggingface                                     # registers the name
    model = AutoModelForCausalLM.from_pretrained(..., attn_implementation="tilewise")

Padding masks become boolean masks, packed position ids become cu_seqlens; sliding window, softcap, sinks, GQA and
value head dims of their own go straight to the kernels.
"""

from __future__ import annotations

from typing import Any, Optional

import torch
from torch import Tensor

from . import _torch

NAME = "tilewise"


def _packed_offsets(position_ids: Optional[Tensor], batch: int, length: int) -> Optional[Tensor]:
    """cu_seqlens of sequences packed into one batch entry, read off position ids that restart; None when
    nothing is packed."""
    if (
        position_ids is None
        or batch != 1
        or position_ids.ndim != 2
        or position_ids.shape != (1, length)
        or length < 2
    ):
        return None
    positions = position_ids[0]
    starts = torch.nonzero(positions[1:] != positions[:-1] + 1).flatten() + 1
    if not len(starts):
        return None
    edges = [torch.zeros(1, dtype=starts.dtype, device=starts.device), starts, starts.new_tensor([length])]
    return torch.cat(edges).to(torch.int32)


def attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Optional[Tensor],
    dropout: float = 0.0,
    scaling: Optional[float] = None,
    sliding_window: Optional[int] = None,
    softcap: Optional[float] = None,
    is_causal: Optional[bool] = None,
    s_aux: Optional[Tensor] = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """query (B, H, Sq, D), key/value (B, Hk, Sk, D/Dv) -> (out (B, Sq, H, Dv), None)."""
    q, k, v = (t.transpose(1, 2) for t in (query, key, value))
    if q.dtype != v.dtype or k.dtype != v.dtype:  # norms that are kept in float32
        q, k = q.to(v.dtype), k.to(v.dtype)
    if (
        attention_mask is not None and attention_mask.shape[-1] < k.shape[1]
    ):  # a static cache with unused slots
        k, v = k[:, : attention_mask.shape[-1]], v[:, : attention_mask.shape[-1]]
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = bool(causal) and q.shape[1] > 1
    options: dict[str, Any] = dict(scale=scaling, dropout_p=dropout, softcap=softcap or 0.0, causal=causal)
    if sliding_window is not None and k.shape[1] > sliding_window:
        options["window"] = (sliding_window - 1, 0 if causal or q.shape[1] == 1 else sliding_window - 1)
    tensors: dict[str, Optional[Tensor]] = dict(sink=s_aux)

    cu_q, cu_k = kwargs.get("cu_seq_lens_q"), kwargs.get("cu_seq_lens_k")
    if cu_q is None and attention_mask is None and q.shape[1] == k.shape[1]:
        cu_q = cu_k = _packed_offsets(kwargs.get("position_ids"), q.shape[0], q.shape[1])
    if cu_q is not None:
        longest_q = kwargs.get("max_length_q", kwargs.get("max_seqlen_q"))
        longest_k = kwargs.get("max_length_k", kwargs.get("max_seqlen_k"))
        options.update(max_seqlen_q=int(longest_q or 0), max_seqlen_k=int(longest_k or 0))
        tensors.update(cu_seqlens_q=cu_q, cu_seqlens_k=cu_k)
        out, _, _ = _torch.forward_with_lse(
            q.flatten(0, 1), k.flatten(0, 1), v.flatten(0, 1), tensors, options
        )
        return out.view(*q.shape[:3], v.shape[-1]), None

    if attention_mask is not None:
        if attention_mask.ndim == 2:  # (B, Sk), True = a real token
            tensors["mask"] = attention_mask[:, None, None, -k.shape[1] :].bool()
        elif attention_mask.dtype == torch.bool:
            tensors["mask"], options["causal"] = attention_mask, False
            options.pop("window", None)
        else:
            tensors["bias"], options["causal"] = attention_mask, False
            options.pop("window", None)
    out, _, _ = _torch.forward_with_lse(q, k, v, tensors, options)
    return out, None


def register() -> None:
    """Makes the name known to transformers (5.x)."""
    from transformers import AttentionInterface, AttentionMaskInterface
    from transformers.masking_utils import flash_attention_mask

    AttentionInterface.register(NAME, attention)
    # The 2-D padding mask (or None): causality and windows are the kernel's business.
    AttentionMaskInterface.register(NAME, flash_attention_mask)


register()
