from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, Optional, TypeVar, overload

from ._core import UnsupportedError as UnsupportedError

Array = TypeVar("Array")  # numpy arrays, DLPack arrays in host memory, torch tensors

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

__version__: str

class Gradients(NamedTuple):
    dq: Any
    dk: Any
    dv: Any
    dbias: Any = ...
    dsink: Any = ...

@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = ...,
    window: Sequence[int] = ...,
    alignment: str = ...,
    scale: Optional[float] = ...,
    softcap: float = ...,
    alibi_slopes: Any = ...,
    bias: Any = ...,
    mask: Any = ...,
    sink: Any = ...,
    dropout_p: float = ...,
    seed: int = ...,
    cu_seqlens_q: Any = ...,
    cu_seqlens_k: Any = ...,
    seqused_q: Any = ...,
    seqused_k: Any = ...,
    max_seqlen_q: Optional[int] = ...,
    max_seqlen_k: Optional[int] = ...,
    return_lse: Literal[False] = ...,
    out: Optional[Array] = ...,
    deterministic: bool = ...,
    batch_invariant: bool = ...,
    threads: int = ...,
    algorithm: Optional[str] = ...,
) -> Array: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = ...,
    window: Sequence[int] = ...,
    alignment: str = ...,
    scale: Optional[float] = ...,
    softcap: float = ...,
    alibi_slopes: Any = ...,
    bias: Any = ...,
    mask: Any = ...,
    sink: Any = ...,
    dropout_p: float = ...,
    seed: int = ...,
    cu_seqlens_q: Any = ...,
    cu_seqlens_k: Any = ...,
    seqused_q: Any = ...,
    seqused_k: Any = ...,
    max_seqlen_q: Optional[int] = ...,
    max_seqlen_k: Optional[int] = ...,
    return_lse: Literal[True],
    out: Optional[Array] = ...,
    deterministic: bool = ...,
    batch_invariant: bool = ...,
    threads: int = ...,
    algorithm: Optional[str] = ...,
) -> tuple[Array, Any]: ...
@overload
def attention(
    q: Array,
    k: Array,
    v: Array,
    *,
    causal: bool = ...,
    window: Sequence[int] = ...,
    alignment: str = ...,
    scale: Optional[float] = ...,
    softcap: float = ...,
    alibi_slopes: Any = ...,
    bias: Any = ...,
    mask: Any = ...,
    sink: Any = ...,
    dropout_p: float = ...,
    seed: int = ...,
    cu_seqlens_q: Any = ...,
    cu_seqlens_k: Any = ...,
    seqused_q: Any = ...,
    seqused_k: Any = ...,
    max_seqlen_q: Optional[int] = ...,
    max_seqlen_k: Optional[int] = ...,
    return_lse: bool,
    out: Optional[Array] = ...,
    deterministic: bool = ...,
    batch_invariant: bool = ...,
    threads: int = ...,
    algorithm: Optional[str] = ...,
) -> Any: ...
def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, dlse: Any = ..., **kwargs: Any
) -> Gradients: ...
def merge(out_a: Array, lse_a: Any, out_b: Array, lse_b: Any) -> tuple[Array, Any]: ...
def explain(q: Any, k: Any, v: Any, *, backward: bool = ..., **kwargs: Any) -> str: ...
def prepare(q: Any, k: Any, v: Any, *, backward: bool = ..., **kwargs: Any) -> None: ...
def info() -> str: ...
