"""`tilewise.explain`: the plan of a call without running it."""

from __future__ import annotations

import sys
from typing import Any

from ._options import FORWARD, call, make_options

_TENSORS = ("bias", "mask", "alibi_slopes", "sink", "cu_seqlens_q", "cu_seqlens_k", "seqused_q", "seqused_k")


def explain(q: Any, k: Any, v: Any, kwargs: dict) -> str:
    inputs = {name: kwargs.pop(name, None) for name in _TENSORS}
    inputs.update(q=q, k=k, v=v)
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(q, torch.Tensor):
        from ._torch import describe
    else:
        from ._arrays import as_host_array
        from ._arrays import describe as describe_host

        def describe(name: str, x: Any) -> Any:
            return None if x is None else describe_host(name, as_host_array(name, x))

    tensors = {name: describe(name, x) for name, x in inputs.items()}
    _, dtype, device, index, shape, _ = tensors["q"]
    shape = tuple(shape[:-1]) + tuple(tensors["v"][4][-1:])
    strides = [1]
    for n in reversed(shape[1:]):
        strides.insert(0, strides[0] * max(n, 1))
    tensors["out"] = (0, dtype, device, index, shape, tuple(strides))
    return call(FORWARD, tensors, make_options(**kwargs)).explain()
