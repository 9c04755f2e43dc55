"""PyTorch: `tilewise::forward` and `tilewise::backward` as custom ops with exact fakes and autograd.

Registered from Python, so that one wheel serves every torch >= 2.10. The ops take torch tensors apart into
addresses, shapes and strides; workspace comes from torch's allocator, the stream is the current one of the
tensors' device.
"""

from __future__ import annotations

import functools
import os
from typing import Any, Optional

import torch
from torch import Tensor

from . import _core
from ._options import BACKWARD, FORWARD, TENSORS, make_options

_DTYPES = {
    torch.float32: 1,
    torch.float16: 2,
    torch.bfloat16: 3,
    torch.bool: 4,
    torch.uint8: 4,
    torch.int32: 5,
    torch.int64: 6,
}
_CPU, _CUDA = 1, 2


def describe(name: str, t: Optional[Tensor]) -> Optional[tuple]:
    if t is None:
        return None
    code = _DTYPES.get(t.dtype)
    if code is None:
        raise TypeError(
            f"{name}: dtype {t.dtype}; must be float32, float16 or bfloat16 "
            "(masks: bool; indices: int32, int64)"
        )
    if t.is_cuda:
        return (t.data_ptr(), code, _CUDA, t.get_device(), t.shape, t.stride())
    if t.device.type != "cpu":
        raise ValueError(f"{name}: on {t.device}; CPU and CUDA tensors are supported")
    return (t.data_ptr(), code, _CPU, 0, t.shape, t.stride())


# torch >= 2.10 hands its tensors to C without Python calls; the tuples of describe() are the slow way round.
_direct = (
    _core.use_exchange_api(Tensor.__dlpack_c_exchange_api__)
    if hasattr(Tensor, "__dlpack_c_exchange_api__")
    else False
)

# On the CPU our tasks run on PyTorch's own threads, as many as it uses where nobody says how many.
_core.use_threads_of(os.path.join(os.path.dirname(torch.__file__), "lib", "libtorch_cpu.so"))
_as_many_as_torch = not os.environ.get("TILEWISE_THREADS")


def cpu_threads(asked: int) -> int:
    return asked or (torch.get_num_threads() if _as_many_as_torch else 0)


cached_options = functools.lru_cache(maxsize=256)(make_options)


def run(
    pass_: int, tensors: tuple[Optional[Tensor], ...], options: Any, rng_state: Optional[Tensor] = None
) -> None:
    """Executes a pass; `tensors` in the order of _options.TENSORS, trailing ones may be left out."""
    q = tensors[0]
    assert q is not None
    described: tuple = tensors
    if not _direct:
        described = tuple([describe(name, t) for name, t in zip(TENSORS, tensors)])
    work = _core.Call(pass_, described, options, 0 if rng_state is None else rng_state.data_ptr())
    if not q.is_cuda:
        work.run(0, 0, 0)
        return
    stream = torch._C._cuda_getCurrentRawStream(q.get_device())
    size = work.workspace()
    if size:
        workspace = torch.empty(size, dtype=torch.uint8, device=q.device)
        work.run(workspace.data_ptr(), size, stream)
    else:
        work.run(0, 0, stream)


def _outputs(q: Tensor, v: Tensor, packed: bool, result: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    out = q.new_empty(*q.shape[:-1], v.shape[-1]) if result is None else result
    rows = (q.shape[1], q.shape[0]) if packed else (q.shape[0], q.shape[2], q.shape[1])
    return out, q.new_empty(rows, dtype=torch.float32)


# Both ops take these, in this order; the backward after what belongs to it alone.
_INPUTS = (
    "q",
    "k",
    "v",
    "bias",
    "mask",
    "alibi_slopes",
    "sink",
    "cu_seqlens_q",
    "cu_seqlens_k",
    "seqused_q",
    "seqused_k",
    "rng_state",
)
_OPTIONS = {
    "scale": "float?",
    "softcap": "float",
    "causal": "bool",
    "alignment": "str",
    "window_left": "SymInt",
    "window_right": "SymInt",
    "dropout_p": "float",
    "max_seqlen_q": "SymInt",
    "max_seqlen_k": "SymInt",
    "deterministic": "bool",
    "batch_invariant": "bool",
    "threads": "SymInt",
    "algorithm": "str",
}
_N = len(_INPUTS)
_THREADS = list(_OPTIONS).index("threads")
_SCHEMA = ", ".join(
    [f"Tensor {n}" if n in ("q", "k", "v") else f"Tensor? {n}" for n in _INPUTS]
    + [f"{kind} {n}" for n, kind in _OPTIONS.items()]
)


@functools.lru_cache(maxsize=256)
def _options_of(threads: int, *values: Any) -> Any:
    named = dict(zip(_OPTIONS, values), threads=threads)
    return make_options(window=(named.pop("window_left"), named.pop("window_right")), **named)


def _options(q: Tensor, values: tuple) -> Any:
    threads = values[_THREADS]
    return _options_of(threads if q.is_cuda else cpu_threads(threads), *values)


def _attend(arguments: tuple, result: Optional[Tensor] = None) -> tuple[Tensor, Tensor]:
    q, k, v, *others, rng_state = arguments[:_N]
    out, lse = _outputs(q, v, arguments[7] is not None, result)
    run(FORWARD, (q, k, v, out, lse, *others), _options(q, arguments[_N:]), rng_state)
    return out, lse


@torch.library.custom_op("tilewise::forward", mutates_args=(), schema=f"({_SCHEMA}) -> (Tensor, Tensor)")
def forward(*arguments: Any) -> tuple[Tensor, Tensor]:
    return _attend(arguments)


@forward.register_fake
def _(*arguments):
    return _outputs(arguments[0], arguments[2], arguments[7] is not None)


@torch.library.custom_op(
    "tilewise::backward",
    mutates_args=(),
    schema=f"(Tensor dout, Tensor? dlse, Tensor out, Tensor lse, bool want_dbias, bool want_dsink, {_SCHEMA})"
    " -> (Tensor, Tensor, Tensor, Tensor, Tensor)",
)
def backward(
    dout: Tensor,
    dlse: Optional[Tensor],
    out: Tensor,
    lse: Tensor,
    want_dbias: bool,
    want_dsink: bool,
    *arguments: Any,
) -> tuple[Tensor, ...]:
    q, k, v, *others, rng_state = arguments[:_N]
    gradients = _gradients(want_dbias, want_dsink, arguments)
    wanted = (*gradients[:3], gradients[3] if want_dbias else None, gradients[4] if want_dsink else None)
    tensors = (q, k, v, out, lse, *others, dout, dlse, *wanted)
    run(BACKWARD, tensors, _options(q, arguments[_N:]), rng_state)
    return gradients


def _gradients(want_dbias: bool, want_dsink: bool, arguments: tuple) -> tuple[Tensor, ...]:
    """dq, dk, dv, dbias, dsink in the layout of their tensors (contiguous where those are expanded); empty where not
    wanted."""
    q, k, v, bias, _, _, sink = arguments[:7]
    return (
        *map(torch.empty_like, (q, k, v)),
        torch.empty_like(bias) if want_dbias else torch.empty(0),
        torch.empty_like(sink) if want_dsink else torch.empty(0),
    )


@backward.register_fake
def _(dout, dlse, out, lse, want_dbias, want_dsink, *arguments):
    return _gradients(want_dbias, want_dsink, arguments)


def _save(ctx, inputs, output):
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:_N], *output)
    ctx.options = inputs[_N:]


def _differentiate(ctx, dout, dlse):
    *inputs, out, lse = ctx.saved_tensors
    want_dbias, want_dsink = ctx.needs_input_grad[3], ctx.needs_input_grad[6]
    if dout is None:
        dout = torch.zeros_like(out)
    dq, dk, dv, dbias, dsink = backward(dout, dlse, out, lse, want_dbias, want_dsink, *inputs, *ctx.options)
    needs = ctx.needs_input_grad
    gradients = [None] * (_N + len(ctx.options))
    gradients[0:3] = [d if need else None for d, need in zip((dq, dk, dv), needs)]
    gradients[3] = dbias if want_dbias else None
    gradients[6] = dsink if want_dsink else None
    return tuple(gradients)


def _no_double_backward(ctx, *_gradients):
    raise NotImplementedError(
        "tilewise: gradients of gradients are not implemented; for double backward use "
        "torch.nn.attention.sdpa_kernel(SDPBackend.MATH) with scaled_dot_product_attention"
    )


forward.register_autograd(_differentiate, setup_context=_save)
backward.register_autograd(_no_double_backward, setup_context=lambda ctx, inputs, output: None)


def _plain(*tensors: Any) -> bool:
    """No autograd, tracing or subclass is involved: the op's body can run without the dispatcher in
    between."""
    if torch.compiler.is_compiling():
        return False
    if torch._C._len_torch_dispatch_stack() or torch._C._functorch.peek_interpreter_stack() is not None:
        return False
    grad = torch.is_grad_enabled()
    for t in tensors:
        if t is not None and (
            (type(t) is not Tensor and type(t) is not torch.nn.Parameter) or (grad and t.requires_grad)
        ):
            return False
    return True


def new_rng_state(device: torch.device) -> Tensor:
    """Philox {seed, offset} for one call, drawn on `device` from torch's default generator: fresh per call
    and per graph replay."""
    return torch.randint(-(2**63), 2**63 - 1, (2,), dtype=torch.int64, device=device)


def forward_with_lse(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tensors: dict,
    options: dict,
    rng_state: Optional[Tensor] = None,
    result: Optional[Tensor] = None,
):
    """(out, lse, rng_state), differentiable; `options` as tilewise.attention has them. `result` is written in place."""
    if torch.is_autocast_enabled(q.device.type):
        dtype = torch.get_autocast_dtype(q.device.type)
        q, k, v = (t.to(dtype) if t.dtype == torch.float32 else t for t in (q, k, v))
    dropout_p = float(options.get("dropout_p", 0.0))
    if not 0.0 <= dropout_p < 1.0:
        raise ValueError(f"dropout_p: {dropout_p}; must be in [0, 1)")
    if dropout_p > 0 and rng_state is None:
        rng_state = new_rng_state(q.device)
    window = options.get("window", (-1, -1))
    if len(window) != 2:
        raise ValueError(f"window: {window!r}; must be (left, right), -1 for unbounded")
    deterministic = bool(options.get("deterministic", False)) or torch.are_deterministic_algorithms_enabled()
    sink, slopes = tensors.get("sink"), tensors.get("alibi_slopes")
    if sink is not None and sink.dtype != torch.float32:
        sink = sink.float()
    if slopes is not None and slopes.dtype != torch.float32:
        slopes = slopes.float()
    arguments = (
        q,
        k,
        v,
        tensors.get("bias"),
        tensors.get("mask"),
        slopes,
        sink,
        tensors.get("cu_seqlens_q"),
        tensors.get("cu_seqlens_k"),
        tensors.get("seqused_q"),
        tensors.get("seqused_k"),
        rng_state,
        options.get("scale"),
        float(options.get("softcap") or 0.0),
        bool(options.get("causal", False)),
        options.get("alignment", "bottom-right"),
        -1 if window[0] is None else int(window[0]),
        -1 if window[1] is None else int(window[1]),
        dropout_p,
        int(options.get("max_seqlen_q") or 0),
        int(options.get("max_seqlen_k") or 0),
        deterministic,
        bool(options.get("batch_invariant", False)),
        int(options.get("threads", 0)),
        options.get("algorithm") or "",
    )
    if _plain(*arguments[:_N], result):
        return *_attend(arguments, result), rng_state
    out, lse = forward(*arguments)
    if result is not None:
        if torch.is_grad_enabled() and out.requires_grad:
            raise ValueError("out: cannot be given while gradients are recorded; use torch.no_grad()")
        out = result.copy_(out)
    return out, lse, rng_state


def attention(
    q: Tensor, k: Tensor, v: Tensor, *, return_lse: bool, out: Optional[Tensor], tensors: dict, options: dict
) -> Any:
    result, lse, _ = forward_with_lse(q, k, v, tensors, options, result=out)
    return (result, lse) if return_lse else result


def merge(out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor) -> tuple[Tensor, Tensor]:
    if torch.is_grad_enabled() and any(t.requires_grad for t in (out_a, lse_a, out_b, lse_b)):
        raise NotImplementedError(
            "merge: has no gradient; use torch.no_grad(), or torch operations: lse = logaddexp(lse_a, lse_b), "
            "out = exp(lse_a - lse) * out_a + exp(lse_b - lse) * out_b"
        )
    out, lse = torch.empty_like(out_a), torch.empty_like(lse_a)
    parts = dict(out_a=out_a, lse_a=lse_a, out_b=out_b, lse_b=lse_b, out=out, lse=lse)
    stream = torch._C._cuda_getCurrentRawStream(out_a.get_device()) if out_a.is_cuda else 0
    _core.merge(tuple(describe(n, t.detach()) for n, t in parts.items()), stream)
    return out, lse
