"""The options of one attention call, as the C interface takes them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Optional

from . import _core

FORWARD, BACKWARD = 1, 2

#: Order of the tensors in `_core.Call`.
TENSORS = (
    "q",
    "k",
    "v",
    "out",
    "lse",
    "bias",
    "mask",
    "alibi_slopes",
    "sink",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "dout",
    "dlse",
    "dq",
    "dk",
    "dv",
    "dbias",
    "dsink",
)

ALIGNMENTS = {"bottom-right": False, "top-left": True}


def make_options(
    *,
    scale: Optional[float] = None,
    softcap: float = 0.0,
    causal: bool = False,
    alignment: str = "bottom-right",
    window: Sequence[int] = (-1, -1),
    dropout_p: float = 0.0,
    seed: int = 0,
    offset: int = 0,
    deterministic: bool = False,
    batch_invariant: bool = False,
    threads: int = 0,
    algorithm: Optional[str] = None,
    max_seqlen_q: Optional[int] = None,
    max_seqlen_k: Optional[int] = None,
) -> Any:
    if alignment not in ALIGNMENTS:
        raise ValueError(f"alignment: {alignment!r}; must be 'bottom-right' or 'top-left'")
    if len(window) != 2:
        raise ValueError(f"window: {window!r}; must be (left, right), -1 for unbounded")
    left, right = (-1 if w is None else int(w) for w in window)
    return _core.Options(
        math.nan if scale is None else float(scale),
        float(softcap or 0.0),
        bool(causal),
        ALIGNMENTS[alignment],
        left,
        right,
        float(dropout_p),
        seed & (2**64 - 1),
        offset & (2**64 - 1),
        bool(deterministic),
        bool(batch_invariant),
        int(threads),
        algorithm or "",
        int(max_seqlen_q or 0),
        int(max_seqlen_k or 0),
    )


def call(pass_: int, tensors: dict[str, Any], options: Any) -> Any:
    """A `_core.Call` from descriptions by name (absent ones None)."""
    return _core.Call(pass_, tuple([tensors.get(name) for name in TENSORS]), options, 0)
