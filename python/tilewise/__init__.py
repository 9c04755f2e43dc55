"""Tilewise: exact attention, one tile at a time.

    import tilewise
    out = tilewise.attention(q, k, v, causal=True)        # numpy, DLPack or torch, CPU or CUDA

Shapes: q (B, Sq, H, D), k (B, Sk, Hk, D), v (B, Sk, Hk, Dv), out (B, Sq, H, Dv); packed with `cu_seqlens_q`
and `cu_seqlens_k`: (T, H, D). H must be a multiple of Hk; D and Dv are free. dtypes: float32, float16,
bfloat16.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Any, NamedTuple, Optional

from . import _arrays, _core

__all__ = [
    "attention",
    "attention_backward",
    "merge",
    "explain",
    "prepare",
    "info",
    "Gradients",
    "UnsupportedError",
    "__version__",
]

__version__: str = _core.__version__
UnsupportedError = _core.UnsupportedError

_TENSOR_OPTIONS = (
    "bias",
    "mask",
    "alibi_slopes",
    "sink",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
)


class Gradients(NamedTuple):
    """What :func:`attention_backward` returns; dbias and dsink are None without bias and sink."""

    dq: Any
    dk: Any
    dv: Any
    dbias: Any = None
    dsink: Any = None


def _is_torch(x: Any) -> bool:
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(x, torch.Tensor)


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    causal: bool = False,
    window: Sequence[int] = (-1, -1),
    alignment: str = "bottom-right",
    scale: Optional[float] = None,
    softcap: float = 0.0,
    alibi_slopes: Any = None,
    bias: Any = None,
    mask: Any = None,
    sink: Any = None,
    dropout_p: float = 0.0,
    seed: int = 0,
    cu_seqlens_q: Any = None,
    cu_seqlens_k: Any = None,
    seqused_q: Any = None,
    seqused_k: Any = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
    return_lse: bool = False,
    out: Any = None,
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int = 0,
    algorithm: Optional[str] = None,
) -> Any:
    """softmax(scale q kᵀ + ...) v, exactly, in O(S) memory.

    causal, window: query i sees keys i + Sk - Sq - left <= j <= i + Sk - Sq + right (inclusive, -1 =
        unbounded); causal means right = min(right, 0). `alignment="top-left"` drops the Sk - Sq.
    scale: on q·k; None = 1 / sqrt(D). softcap c > 0: c tanh(s / c).
    bias: added to the scores, broadcastable to (B, H, Sq, Sk); mask: bool, same, True = visible.
    alibi_slopes: float32 (H,) or (B, H). sink: float32 (H,), exp(sink) joins the denominator.
    dropout_p in [0, 1), seed: Philox stream for numpy arrays (torch tensors draw it from torch's generator).
    threads: of the CPU; 0 = all cores, for torch tensors as many as torch uses (and its own). The result is the same
        for any number.
    cu_seqlens_*: int32 or int64 (B + 1,) offsets of packed sequences. seqused_*: (B,) used lengths.
    return_lse: also return lse float32 (B, H, Sq), packed (H, T): the natural log of the softmax denominator;
        differentiable in torch.

    A row that sees no key gives 0, its lse is -inf. Raises ValueError for a wrong argument (the message says
    what works), UnsupportedError for a legal problem that no kernel here runs.
    """
    tensors = dict(
        bias=bias,
        mask=mask,
        alibi_slopes=alibi_slopes,
        sink=sink,
        cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
        seqused_q=seqused_q,
        seqused_k=seqused_k,
    )
    options = dict(
        causal=causal,
        window=window,
        alignment=alignment,
        scale=scale,
        softcap=softcap,
        dropout_p=dropout_p,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        deterministic=deterministic,
        batch_invariant=batch_invariant,
        threads=threads,
        algorithm=algorithm,
    )
    if _is_torch(q):
        from . import _torch

        return _torch.attention(q, k, v, return_lse=return_lse, out=out, tensors=tensors, options=options)
    options["seed"] = seed
    return _arrays.attention(q, k, v, out=out, return_lse=return_lse, tensors=tensors, options=options)


def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, dlse: Any = None, **kwargs: Any
) -> Gradients:
    """Gradients of :func:`attention` for host arrays; keyword arguments are those of the forward (with its
    seed).

    dout as out, dlse (optional) as lse; returns dq, dk, dv as q, k, v, and float32 dbias, dsink when bias,
    sink are given.
    Torch users call backward() on the result of :func:`attention` instead.
    """
    if _is_torch(q):
        raise TypeError(
            "attention_backward takes host arrays; torch tensors get their gradients from autograd"
        )
    tensors = {name: kwargs.pop(name, None) for name in _TENSOR_OPTIONS}
    return Gradients(
        **_arrays.attention_backward(dout, q, k, v, out, lse, dlse=dlse, tensors=tensors, options=kwargs)
    )


def merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple:
    """Merges attention over two disjoint sets of keys into attention over their union: (out, lse)."""
    if _is_torch(out_a):
        from . import _torch

        return _torch.merge(out_a, lse_a, out_b, lse_b)
    return _arrays.merge(out_a, lse_a, out_b, lse_b)


def explain(q: Any, k: Any, v: Any, *, backward: bool = False, **kwargs: Any) -> str:
    """Which kernel :func:`attention` (or its backward) would run for these arguments, and why not the others."""
    from . import _plan

    return _plan.explain(q, k, v, backward, kwargs)


def prepare(q: Any, k: Any, v: Any, *, backward: bool = False, **kwargs: Any) -> None:
    """Compiles and loads the GPU kernels of :func:`attention` for arguments like these (and of its backward), so
    that the first call does not: before a CUDA graph is captured, or from several threads at once."""
    from . import _plan

    _plan.prepare(q, k, v, backward, kwargs)


def info() -> str:
    """What this installation and machine offer: instruction sets, GPUs, NVRTC, torch."""
    lines = [_core.info().rstrip()]
    try:
        import torch

        lines.append(
            f"torch {torch.__version__}, CUDA {'available' if torch.cuda.is_available() else 'not available'}"
        )
    except Exception as error:  # whatever keeps torch from loading is what the user wants to see
        lines.append(f"torch: not importable ({type(error).__name__}: {error})")
    return "\n".join(lines)
