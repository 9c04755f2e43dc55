"""numpy and DLPack arrays in host memory."""

from __future__ import annotations

from typing import Any, Optional

import numpy as np

from . import _core
from ._options import BACKWARD, FORWARD, call, make_options

_DTYPES = {"float32": 1, "float16": 2, "bfloat16": 3, "bool": 4, "int32": 5, "int64": 6}
_CPU = 1


def as_host_array(name: str, x: Any) -> np.ndarray:
    """A numpy view of `x`, without a copy: numpy itself, or any DLPack array in host memory."""
    if isinstance(x, np.ndarray):
        return x
    if hasattr(x, "__dlpack_device__"):
        kind = int(x.__dlpack_device__()[0])
        if kind != _CPU:
            raise ValueError(
                f"{name}: lies on DLPack device type {kind}; host memory (1) or a torch CUDA tensor works"
            )
        try:
            return np.from_dlpack(x)
        except (BufferError, RuntimeError, TypeError):
            return np.asarray(x)  # bfloat16 of libraries whose DLPack numpy cannot name (jax, ml_dtypes)
    raise TypeError(
        f"{name}: {type(x).__name__}; pass a numpy array, a DLPack array in host memory or a torch tensor"
    )


def describe(name: str, x: Optional[np.ndarray]) -> Optional[tuple]:
    if x is None:
        return None
    code = _DTYPES.get(x.dtype.name)
    if code is None:
        raise TypeError(
            f"{name}: dtype {x.dtype}; must be float32, float16 or ml_dtypes.bfloat16 "
            "(masks: bool; indices: int32, int64)"
        )
    size = x.dtype.itemsize
    if any(s % size for s in x.strides):
        raise ValueError(
            f"{name}: strides {x.strides} bytes are not multiples of the element size {size}; copy it first"
        )
    return (x.ctypes.data, code, _CPU, 0, x.shape, tuple(s // size for s in x.strides))


def _lse_shape(q: np.ndarray, packed: bool) -> tuple:
    return (q.shape[1], q.shape[0]) if packed else (q.shape[0], q.shape[2], q.shape[1])


def _output(name: str, given: Any, shape: tuple, dtype: Any) -> np.ndarray:
    if given is None:
        return np.empty(shape, dtype)
    if not isinstance(given, np.ndarray) or not given.flags.writeable:
        raise ValueError(f"{name}: must be a writable numpy array of shape {shape} and dtype {dtype}")
    return given


def attention(
    q: Any,
    k: Any,
    v: Any,
    *,
    out: Any = None,
    lse: Any = None,
    return_lse: bool = False,
    tensors: dict,
    options: dict,
) -> Any:
    arrays = {
        name: as_host_array(name, x) for name, x in dict(tensors, q=q, k=k, v=v).items() if x is not None
    }
    q, v = arrays["q"], arrays["v"]
    packed = "cu_seqlens_q" in arrays
    rank = 3 if packed else 4
    if q.ndim != rank or v.ndim != rank:
        raise ValueError(
            f"q: shape {q.shape}, v: shape {v.shape}; must be {'(T, H, D)' if packed else '(B, S, H, D)'}"
        )
    arrays["out"] = _output("out", out, q.shape[:-1] + v.shape[-1:], q.dtype)
    if return_lse or lse is not None:
        arrays["lse"] = _output("lse", lse, _lse_shape(q, packed), np.float32)
    described = {name: describe(name, x) for name, x in arrays.items()}
    call(FORWARD, described, make_options(**options)).run(0, 0, 0)
    return (arrays["out"], arrays["lse"]) if return_lse else arrays["out"]


def attention_backward(
    dout: Any, q: Any, k: Any, v: Any, out: Any, lse: Any, *, dlse: Any = None, tensors: dict, options: dict
) -> dict:
    inputs = dict(tensors, q=q, k=k, v=v, out=out, lse=lse, dout=dout, dlse=dlse)
    arrays = {name: as_host_array(name, x) for name, x in inputs.items() if x is not None}
    gradients = {"d" + name: np.empty(arrays[name].shape, arrays[name].dtype) for name in ("q", "k", "v")}
    for name in ("bias", "sink"):
        if name in arrays:
            gradients["d" + name] = np.empty(arrays[name].shape, np.float32)
    described = {name: describe(name, x) for name, x in {**arrays, **gradients}.items()}
    call(BACKWARD, described, make_options(**options)).run(0, 0, 0)
    return gradients


def merge(out_a: Any, lse_a: Any, out_b: Any, lse_b: Any) -> tuple:
    parts = [
        as_host_array(n, x)
        for n, x in (("out_a", out_a), ("lse_a", lse_a), ("out_b", out_b), ("lse_b", lse_b))
    ]
    out, lse = np.empty(parts[0].shape, parts[0].dtype), np.empty(parts[1].shape, np.float32)
    names = ("out_a", "lse_a", "out_b", "lse_b", "out", "lse")
    _core.merge(tuple(describe(n, x) for n, x in zip(names, [*parts, out, lse])), 0)
    return out, lse
