"""The plan of a call without running it: `tilewise.explain` and `tilewise.prepare`."""

from __future__ import annotations

import sys
from typing import Any

from ._options import BACKWARD, FORWARD, call, make_options

_FP32 = 1
_TENSORS = ("bias", "mask", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")


def _describe(name: str, x: Any) -> Any:
    if x is None:
        return None
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(x, torch.Tensor):
        from . import _torch

        return _torch.describe(name, x)
    from . import _arrays

    return _arrays.describe(name, _arrays.as_host_array(name, x))


def _threads(q: Any, asked: int) -> int:
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(q, torch.Tensor) or q.is_cuda:
        return asked
    from . import _torch

    return _torch.cpu_threads(asked)


def _plan(pass_: int, q: Any, k: Any, v: Any, options: dict) -> Any:
    """The call with outputs that have a shape and no memory yet."""
    inputs = {name: options.pop(name, None) for name in _TENSORS}
    tensors = {name: _describe(name, x) for name, x in dict(inputs, q=q, k=k, v=v).items()}
    options["threads"] = _threads(q, options.get("threads", 0))
    _, dtype, device, index, shape, _ = tensors["q"]

    def output(size: tuple, dtype: int = dtype) -> tuple:
        strides = [1]
        for n in reversed(size[1:]):
            strides.insert(0, strides[0] * max(n, 1))
        return (0, dtype, device, index, size, tuple(strides))

    packed = tensors["cu_seqlens_q"] is not None
    rows = (shape[1], shape[0]) if packed else (shape[0], shape[2], shape[1])
    tensors["out"] = output((*shape[:-1], tensors["v"][4][-1]))
    tensors["lse"] = output(rows, _FP32)
    if pass_ == BACKWARD:
        tensors["dout"] = tensors["out"]
        tensors.update(("d" + n, (0, *tensors[n][1:])) for n in ("q", "k", "v"))
    return call(pass_, tensors, make_options(**options))


def explain(q: Any, k: Any, v: Any, backward: bool, options: dict) -> str:
    return _plan(BACKWARD if backward else FORWARD, q, k, v, options).explain()


def prepare(q: Any, k: Any, v: Any, backward: bool, options: dict) -> None:
    _plan(FORWARD, q, k, v, dict(options)).prepare()
    if backward:
        _plan(BACKWARD, q, k, v, dict(options)).prepare()
