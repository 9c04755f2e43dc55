"""tilewise.attention on numpy and DLPack arrays."""

import threading
import time

import numpy as np
import pytest

import tilewise

import reference

RNG = np.random.default_rng(20)


def make(B=2, Sq=37, Sk=53, H=4, Hk=2, D=24, Dv=40, dtype=np.float32):
    shapes = (B, Sq, H, D), (B, Sk, Hk, D), (B, Sk, Hk, Dv)
    return tuple(RNG.standard_normal(s).astype(np.float32).astype(dtype) for s in shapes)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_equals_the_definition(dtype):
    if dtype == "bfloat16":
        dtype = pytest.importorskip("ml_dtypes").bfloat16
    q, k, v = make(dtype=dtype)
    out, lse = tilewise.attention(q, k, v, return_lse=True)
    assert out.dtype == q.dtype
    reference.judge(out, lse, q, k, v)


OPTIONS = [
    dict(causal=True),
    dict(causal=True, alignment="top-left"),
    dict(window=(5, 2)),
    dict(window=(0, 0)),
    dict(scale=0.3, softcap=2.0),
]


@pytest.mark.parametrize("options", OPTIONS, ids=str)
def test_options(options):
    q, k, v = make()
    mine = dict(options)
    theirs = {
        ("top_left" if n == "alignment" else n): (x == "top-left" if n == "alignment" else x)
        for n, x in options.items()
    }
    out, lse = tilewise.attention(q, k, v, return_lse=True, **mine)
    reference.judge(out, lse, q, k, v, **theirs)


def test_score_modifiers_broadcast():
    q, k, v = make()
    bias = RNG.standard_normal((1, 4, 1, 53)).astype(np.float32)
    mask = RNG.random((2, 1, 37, 53)) < 0.6
    mask[0, 0, 3] = False
    sink = RNG.standard_normal(4).astype(np.float32)
    slopes = (RNG.random(4) * 0.1).astype(np.float32)
    out, lse = tilewise.attention(
        q, k, v, bias=bias, mask=mask, sink=sink, alibi_slopes=slopes, return_lse=True
    )
    reference.judge(out, lse, q, k, v, bias=bias, mask=mask, sink=sink, slopes=slopes)
    assert (out[0, 3] == 0).all() and (lse[0, :, 3] == sink).all()


def test_packed_equals_dense():
    lengths_q, lengths_k = [3, 0, 17, 9], [5, 4, 0, 30]
    cu_q, cu_k = (np.concatenate([[0], np.cumsum(n)]).astype(np.int32) for n in (lengths_q, lengths_k))
    q, k, v = (
        RNG.standard_normal((n, h, 16)).astype(np.float32)
        for n, h in ((cu_q[-1] + 2, 4), (cu_k[-1], 2), (cu_k[-1], 2))
    )
    q[cu_q[-1] :] = np.nan  # rows that no sequence covers
    out, lse = tilewise.attention(q, k, v, causal=True, cu_seqlens_q=cu_q, cu_seqlens_k=cu_k, return_lse=True)
    for b in range(4):
        rows, keys = slice(cu_q[b], cu_q[b + 1]), slice(cu_k[b], cu_k[b + 1])
        part = q[None, rows], k[None, keys], v[None, keys]
        reference.judge(out[None, rows], lse[None, :, rows], *part, causal=True)
    assert (out[cu_q[-1] :] == 0).all()


def test_strided_views_are_read_in_place():
    qkv = RNG.standard_normal((2, 19, 3, 4, 16)).astype(np.float32)
    q, k, v = (qkv[:, :, n] for n in range(3))
    want = tilewise.attention(*(np.ascontiguousarray(x) for x in (q, k, v)))
    np.testing.assert_array_equal(tilewise.attention(q, k, v), want)
    bhsd = [np.ascontiguousarray(x.transpose(0, 2, 1, 3)).transpose(0, 2, 1, 3) for x in (q, k, v)]
    np.testing.assert_array_equal(tilewise.attention(*bhsd), want)


class Foreign:
    """An array of another library: DLPack and nothing else."""

    def __init__(self, x):
        self.x = x

    def __dlpack__(self, **options):
        return self.x.__dlpack__(**options)

    def __dlpack_device__(self):
        return self.x.__dlpack_device__()


def test_dlpack_arrays_are_read_in_place():
    q, k, v = make()
    out = tilewise.attention(*map(Foreign, (q, k, v)), causal=True)
    np.testing.assert_array_equal(out, tilewise.attention(q, k, v, causal=True))

    class OnGpu(Foreign):
        def __dlpack_device__(self):
            return (2, 0)

    with pytest.raises(ValueError, match="q: lies on DLPack device type 2"):
        tilewise.attention(OnGpu(q), k, v)


def test_out_is_written_in_place():
    q, k, v = make()
    out = np.full((2, 37, 4, 40), np.nan, np.float32)
    assert tilewise.attention(q, k, v, out=out) is out
    np.testing.assert_array_equal(out, tilewise.attention(q, k, v))


def test_merge_of_two_halves_is_the_whole():
    q, k, v = make()
    parts = [
        tilewise.attention(q, k[:, s], v[:, s], return_lse=True) for s in (slice(0, 20), slice(20, None))
    ]
    out, lse = tilewise.merge(*parts[0], *parts[1])
    reference.judge(out, lse, q, k, v)


def test_backward_by_finite_differences():
    """The exact gradients are slopes of the float64 reference, the naive ones those of the formulas in fp32."""
    q, k, v = make(B=1, Sq=5, Sk=7, H=2, Hk=2, D=4, Dv=4)
    out, lse = tilewise.attention(q, k, v, causal=True, return_lse=True)
    dout, dlse = (RNG.standard_normal(x.shape).astype(np.float32) for x in (out, lse))
    gradients = tilewise.attention_backward(dout, q, k, v, out, lse, dlse=dlse, causal=True)

    def loss(*qkv):
        o, l = reference.attention(*qkv, causal=True)
        return (o * dout).sum() + (l * dlse).sum()

    naive = reference.gradients(q, k, v, dout, dlse, dtype=np.float32, causal=True)
    for n, x in enumerate((q, k, v)):
        slopes = np.empty(x.shape)
        for index in np.ndindex(x.shape):
            step = np.zeros(x.shape)
            step[index] = 1e-4
            ends = [
                [y + (sign * step if m == n else 0) for m, y in enumerate((q, k, v))] for sign in (1.0, -1.0)
            ]
            slopes[index] = (loss(*ends[0]) - loss(*ends[1])) / 2e-4
        reference.assert_within_rule("d" + "qkv"[n], gradients[n], slopes, naive[n], gradient=True)


def test_dropout_is_seeded():
    q, k, v = make()
    a = tilewise.attention(q, k, v, dropout_p=0.3, seed=1)
    np.testing.assert_array_equal(a, tilewise.attention(q, k, v, dropout_p=0.3, seed=1))
    assert (a != tilewise.attention(q, k, v, dropout_p=0.3, seed=2)).any()
    np.testing.assert_array_equal(
        tilewise.attention(q, k, v, dropout_p=0.0, seed=1), tilewise.attention(q, k, v)
    )


@pytest.mark.parametrize("shape", [(0, 3, 2, 8), (1, 0, 2, 8)])
def test_empty_queries(shape):
    q = np.zeros(shape, np.float32)
    out, lse = tilewise.attention(q, q, q, return_lse=True)
    assert out.shape == shape and lse.shape == (shape[0], 2, shape[1])


def test_no_keys():
    q, k = np.ones((1, 3, 2, 8), np.float32), np.ones((1, 0, 2, 8), np.float32)
    out, lse = tilewise.attention(q, k, k, return_lse=True)
    assert (out == 0).all() and np.isneginf(lse).all()


@pytest.mark.parametrize(
    "change, error, words",
    [
        (dict(dropout_p=1.0), ValueError, "dropout_p"),
        (dict(window=(-2, 0)), ValueError, "window_left"),
        (dict(softcap=-1.0), ValueError, "softcap"),
        (dict(alignment="middle"), ValueError, "bottom-right"),
        (dict(mask=np.ones((3, 3), bool)), ValueError, "mask"),
        (dict(sink=np.ones(4)), TypeError, "float64"),
        (dict(algorithm="warp drive"), ValueError, "warp drive"),
    ],
)
def test_bad_arguments_say_what_works(change, error, words):
    q, k, v = make()
    with pytest.raises(error, match=words):
        tilewise.attention(q, k, v, **change)


def test_wrong_shapes_and_types():
    q, k, v = make()
    with pytest.raises(ValueError, match="k: "):
        tilewise.attention(q, k[..., :3], v)
    with pytest.raises(ValueError, match="v: "):
        tilewise.attention(q, k, v[:, :5])
    with pytest.raises(TypeError, match="q: list"):
        tilewise.attention([[1.0]], k, v)
    with pytest.raises(ValueError, match="shares memory"):
        tilewise.attention(q[:, :, :2], q[:, :, :2], q[:, :, :2], out=q[:, :, :2])


def test_explain_and_info():
    q, k, v = make()
    assert "problem    forward" in tilewise.explain(q, k, v, causal=True)
    assert "problem    backward" in tilewise.explain(q, k, v, causal=True, backward=True)
    tilewise.prepare(q, k, v, causal=True, backward=True)
    with pytest.raises(ValueError, match="warp drive"):
        tilewise.prepare(q, k, v, algorithm="warp drive")
    assert tilewise.__version__ in tilewise.info()


def test_the_gil_is_released():
    q = RNG.standard_normal((1, 2048, 4, 64)).astype(np.float32)
    ticks, done = [], threading.Event()

    def tick():
        while not done.is_set():
            ticks.append(time.perf_counter())
            time.sleep(0.0005)

    thread = threading.Thread(target=tick)
    thread.start()
    time.sleep(0.02)
    begin = time.perf_counter()
    tilewise.attention(q, q, q, threads=1)
    end = time.perf_counter()
    done.set()
    thread.join()
    assert sum(begin < t < end for t in ticks) >= 2
