"""tilewise attend and grad on good input."""

import numpy as np
import pytest
import safetensors_file
from conftest import ATTEND, reference


def bf16(x):
    """fp32 to bf16 bits, to nearest even."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


def from_bf16(bits):
    return (bits.astype(np.uint32) << 16).view(np.float32)


def causal(sq, sk, top_left=False):
    return np.arange(sk)[None] <= np.arange(sq)[:, None] + (0 if top_left else sk - sq)


def test_out_and_lse(qkv):
    qkv.good(*ATTEND, "--lse", "l.npy")
    out, lse = reference(qkv.q, qkv.k, qkv.v)
    assert qkv.load("o.npy").dtype == np.float32
    np.testing.assert_allclose(qkv.load("o.npy"), out, atol=2e-6)
    np.testing.assert_allclose(qkv.load("l.npy"), lse, atol=2e-6)


@pytest.mark.parametrize("flag, top_left", [("--causal", False), ("--causal-top-left", True)])
def test_causal(qkv, flag, top_left):
    qkv.good(*ATTEND, flag)
    np.testing.assert_allclose(
        qkv.load("o.npy"), reference(qkv.q, qkv.k, qkv.v, causal(20, 30, top_left))[0], atol=2e-6
    )


def test_window_scale_bias_mask(qkv):
    rng = np.random.default_rng(2)
    bias = qkv.save("b.npy", rng.standard_normal((4, 20, 30), np.float32))
    mask = qkv.save("m.npy", rng.random((2, 1, 20, 30)) < 0.7)
    distance = np.arange(30)[None] - np.arange(20)[:, None] - 10
    visible = mask & (distance >= -7) & (distance <= 3)
    qkv.good(*ATTEND, "--window", "7,3", "--scale", "0.3", "--bias", "b.npy", "--mask", "m.npy")
    np.testing.assert_allclose(
        qkv.load("o.npy"), reference(qkv.q, qkv.k, qkv.v, visible, 0.3, bias)[0], atol=2e-6
    )


def test_unbounded_window_is_no_window(qkv):
    qkv.good(*ATTEND)
    whole = qkv.load("o.npy")
    qkv.good(*ATTEND, "--window", "-1,-1")
    assert (qkv.load("o.npy") == whole).all()


def test_packed_sequences(tool):
    rng = np.random.default_rng(3)
    q, k, v = (tool.save(f"{n}.npy", rng.standard_normal((17, 2, 8), np.float32)) for n in "qkv")
    tool.save("cu.npy", np.array([0, 5, 5, 15], np.int64))
    tool.good(*ATTEND, "--cu-seqlens-q", "cu.npy", "--cu-seqlens-k", "cu.npy", "--lse", "l.npy", "--check")
    out = tool.load("o.npy")
    for begin, end in ((0, 5), (5, 15)):
        expected, lse = reference(q[None, begin:end], k[None, begin:end], v[None, begin:end])
        np.testing.assert_allclose(out[begin:end], expected[0], atol=2e-6)
        np.testing.assert_allclose(tool.load("l.npy")[:, begin:end], lse[0], atol=2e-6)
    assert (out[15:] == 0).all() and (tool.load("l.npy")[:, 15:] == -np.inf).all()


@pytest.mark.parametrize("dtype, tolerance", [("fp16", 2e-3), ("bf16", 2e-2)])
def test_rounds_to_dtype_on_request(qkv, dtype, tolerance):
    qkv.good(*ATTEND, "--dtype", dtype)
    out = qkv.load("o.npy")
    assert out.dtype == {"fp16": np.float16, "bf16": np.uint16}[dtype]
    values = out.astype(np.float32) if dtype == "fp16" else from_bf16(out)
    np.testing.assert_allclose(values, reference(qkv.q, qkv.k, qkv.v)[0], atol=tolerance)


def test_uint16_is_bf16_bits(qkv):
    for name in "qkv":
        qkv.save(f"{name}.npy", bf16(getattr(qkv, name)))
    qkv.good(*ATTEND, "--dtype", "bf16")
    from_bits = qkv.load("o.npy")
    for name in "qkv":
        qkv.save(f"{name}.npy", getattr(qkv, name))
    qkv.good(*ATTEND, "--dtype", "bf16")
    assert (qkv.load("o.npy") == from_bits).all()


def test_float64_is_rounded_once(qkv):
    for name in "qkv":
        qkv.save(f"{name}.npy", getattr(qkv, name).astype(np.float64))
    qkv.good(*ATTEND, "--dtype", "fp32")
    np.testing.assert_allclose(qkv.load("o.npy"), reference(qkv.q, qkv.k, qkv.v)[0], atol=2e-6)


def test_fortran_order_and_old_versions(qkv):
    qkv.good(*ATTEND)
    expected = qkv.load("o.npy")
    np.save(qkv.folder / "q.npy", np.asfortranarray(qkv.q))
    with open(qkv.folder / "k.npy", "wb") as f:
        np.lib.format.write_array(f, qkv.k, version=(2, 0))
    with open(qkv.folder / "v.npy", "wb") as f:
        np.lib.format.write_array(f, qkv.v, version=(3, 0))
    qkv.good(*ATTEND)
    np.testing.assert_allclose(qkv.load("o.npy"), expected, atol=1e-6)


def test_safetensors_in_and_out(qkv):
    safetensors_file.write(
        qkv.folder / "x.safetensors",
        {"q": bf16(qkv.q), "keys": bf16(qkv.k), "v": bf16(qkv.v)},
        bf16=("q", "keys", "v"),
    )
    qkv.good(
        "attend",
        "--tensors",
        "x.safetensors",
        "--k",
        "keys",
        "--out",
        "r.safetensors:result",
        "--lse",
        "r.safetensors",
    )
    tensors, dtypes = safetensors_file.read(qkv.folder / "r.safetensors")
    assert dtypes == {"result": "BF16", "lse": "F32"}
    np.testing.assert_allclose(from_bf16(tensors["result"]), reference(qkv.q, qkv.k, qkv.v)[0], atol=2e-2)
    np.testing.assert_allclose(tensors["lse"], reference(qkv.q, qkv.k, qkv.v)[1], atol=2e-2)


def test_check_prints_both_errors(qkv):
    text = qkv.good(*ATTEND, "--causal", "--check")
    assert "naive" in text and "ok" in text and "out" in text and "lse" in text


def test_empty_problems(tool):
    for name, shape in (("q", (0, 5, 2, 8)), ("k", (0, 7, 2, 8)), ("v", (0, 7, 2, 8))):
        tool.save(f"{name}.npy", np.zeros(shape, np.float32))
    tool.good(*ATTEND)
    assert tool.load("o.npy").shape == (0, 5, 2, 8)
    for name, shape in (("q", (1, 5, 2, 8)), ("k", (1, 0, 2, 8)), ("v", (1, 0, 2, 8))):
        tool.save(f"{name}.npy", np.ones(shape, np.float32))
    tool.good(*ATTEND, "--lse", "l.npy")
    assert (tool.load("o.npy") == 0).all() and (tool.load("l.npy") == -np.inf).all()


def test_threads_and_instruction_sets_agree(qkv):
    qkv.good(*ATTEND)
    expected = qkv.load("o.npy")
    qkv.good(*ATTEND, "--threads", "1")
    assert (qkv.load("o.npy") == expected).all()
    qkv.good(*ATTEND, TILEWISE_ISA="scalar")
    np.testing.assert_allclose(qkv.load("o.npy"), expected, atol=2e-6)


def test_dropout_is_reproducible(qkv):
    runs = []
    for seed in ("1", "1", "2"):
        qkv.good(*ATTEND, "--dropout", "0.3", "--seed", seed)
        runs.append(qkv.load("o.npy"))
    assert (runs[0] == runs[1]).all() and (runs[0] != runs[2]).any()


def test_overwrites_an_old_result(qkv):
    qkv.save("o.npy", np.zeros(3))
    qkv.good(*ATTEND)
    assert qkv.load("o.npy").shape == (2, 20, 4, 16)


GRAD = [
    "grad",
    "--q",
    "q.npy",
    "--k",
    "k.npy",
    "--v",
    "v.npy",
    "--dout",
    "do.npy",
    "--dq",
    "dq.npy",
    "--dk",
    "dk.npy",
    "--dv",
    "dv.npy",
]


def test_gradients_agree_with_differences(qkv):
    """Along a random direction of q, k and v, the loss sum(out * dout) changes as the gradients say."""
    qkv.good(*GRAD, "--causal", "--check")
    rng = np.random.default_rng(5)
    predicted, moved = 0.0, []
    for name in "qkv":
        direction = rng.standard_normal(getattr(qkv, name).shape)
        predicted += (qkv.load(f"d{name}.npy").astype(np.float64) * direction).sum()
        moved.append((getattr(qkv, name), direction))
    losses = [
        (reference(*(x + e * d for x, d in moved), causal(20, 30))[0] * qkv.do).sum() for e in (1e-5, -1e-5)
    ]
    assert abs(predicted - (losses[0] - losses[1]) / 2e-5) < 1e-4 * max(1, abs(predicted))


def test_gradients_of_bias_and_sink(qkv):
    rng = np.random.default_rng(6)
    bias = qkv.save("b.npy", rng.standard_normal((1, 4, 1, 30), np.float32))
    qkv.save("s.npy", rng.standard_normal(4, np.float32))
    qkv.save("dl.npy", rng.standard_normal((2, 4, 20), np.float32))
    text = qkv.good(
        *GRAD,
        "--bias",
        "b.npy",
        "--sink",
        "s.npy",
        "--dlse",
        "dl.npy",
        "--dbias",
        "db.npy",
        "--dsink",
        "ds.npy",
        "--out",
        "o.npy",
        "--lse",
        "l.npy",
        "--check",
    )
    assert qkv.load("db.npy").shape == bias.shape and qkv.load("ds.npy").shape == (4,)
    assert "dbias" in text and "dsink" in text
    qkv.good(*ATTEND[:-1], "forward.npy", "--bias", "b.npy", "--sink", "s.npy")
    assert (qkv.load("forward.npy") == qkv.load("o.npy")).all()
