"""Mistakes and hostile files: exit status 2, one message that says what works, nothing written."""

import numpy as np
import pytest
import safetensors_file
from conftest import ATTEND


@pytest.mark.parametrize(
    "arguments, says",
    [
        (["--window", "5"], ["--window: '5'", "LEFT,RIGHT"]),
        (["--window", "-2,0"], ["window_left", "-2"]),
        (["--window", "1,2,3"], ["--window"]),
        (["--scale", "big"], ["--scale: 'big'", "number"]),
        (["--scale", "nan"], ["--scale"]),
        (["--softcap", "0"], ["--softcap: '0'", "above 0"]),
        (["--softcap", "-3"], ["--softcap"]),
        (["--dropout", "1"], ["dropout_p: 1", "[0, 1)"]),
        (["--seed", "3"], ["--seed", "--dropout"]),
        (["--threads", "0"], ["--threads: '0'", "1 to 4096"]),
        (["--threads", "many"], ["--threads"]),
        (["--dtype", "fp8"], ["--dtype: 'fp8'", "bf16"]),
        (["--device", "tpu"], ["--device: 'tpu'", "cuda"]),
        (["--algorithm", "fastest"], ["fastest", "usable here"]),
        (["--causal", "--causal-top-left"], ["--causal-top-left"]),
        (["--no-such-option"], ["--no-such-option"]),
        (["--bias", "missing.npy"], ["--bias: cannot open 'missing.npy'"]),
        (["--bias", "notes.txt"], ["--bias: 'notes.txt'", "FILE.npy"]),
        (["--cu-seqlens-q", "i.npy"], ["--q: shape (2, 20, 4, 16)", "(Tq, H, D)"]),
        (["--seqused-k", "i.npy"], ["seqused_k"]),
        (["--lse", "o.npy"], ["--lse: 'o.npy' is also --out's file"]),
        (["--lse", "q.npy"], ["--lse: 'q.npy' is also --q's file"]),
        (["--lse", "nowhere/l.npy"], ["--lse: cannot write beside 'nowhere/l.npy'"]),
        (["--out", "folder.npy"], ["folder"]),
        (["--mask", "q.npy"], ["--mask: fp32", "bool"]),
        (["--bias", "m.npy"], ["--bias: bool"]),
        (["--sink", "q.npy"], ["sink"]),
    ],
)
def test_options(qkv, arguments, says):
    qkv.save("i.npy", np.array([0, 40], np.int32))
    qkv.save("m.npy", np.ones((1, 1, 20, 30), bool))
    (qkv.folder / "folder.npy").mkdir()
    base = ATTEND[:-2] if "--out" in arguments else ATTEND
    qkv.bad(*base, *arguments, says=says)


def test_missing_tensors(qkv):
    qkv.bad(*ATTEND[:3], "--out", "o.npy", says="--k: missing")
    qkv.bad(*ATTEND[:-2], says="--out: missing")


@pytest.mark.parametrize(
    "name, shape, says",
    [
        ("k", (2, 30, 3, 16), ["heads", "3"]),
        ("k", (2, 30, 2, 8), ["k", "16"]),
        ("v", (2, 29, 2, 16), ["v", "29"]),
        ("k", (3, 30, 2, 16), ["k", "3"]),
        ("q", (20, 4, 16), ["--q: shape (20, 4, 16)", "--cu-seqlens-q"]),
        ("q", (20,), ["--q"]),
        ("q", (2, 20, 4, 0), ["q"]),
        ("v", (2, 30, 32), ["--v"]),
    ],
)
def test_shapes(qkv, name, shape, says):
    qkv.save(f"{name}.npy", np.zeros(shape, np.float32))
    qkv.bad(*ATTEND, says=says)


@pytest.mark.parametrize(
    "array, says",
    [
        (np.zeros((2, 20, 4, 16), np.float64), "pass --dtype fp32"),
        (np.zeros((2, 20, 4, 16), np.uint16), "pass --dtype bf16"),
        (np.zeros((2, 20, 4, 16), ">f4"), "big-endian"),
        (np.zeros((2, 20, 4, 16), np.int32), "int32"),
        (np.zeros((2, 20, 4, 16), np.complex64), "dtype '<c8'"),
        (np.zeros((2, 20, 4, 16), [("a", "<f4")]), "structured"),
        (np.zeros((2, 20, 4, 16), np.float16), "fp32"),
    ],
)
def test_dtypes(qkv, array, says):
    qkv.save("q.npy", array)
    qkv.bad(*ATTEND, says=says)


def npy(header, data=b"", version=(1, 0), length=None):
    text = header.encode()
    size = (len(text) if length is None else length).to_bytes(2 if version[0] == 1 else 4, "little")
    return b"\x93NUMPY" + bytes(version) + size + text + data


HOSTILE_NPY = {
    "empty": b"",
    "short": b"\x93NUM",
    "not npy": b"PK\x03\x04" + bytes(100),
    "version 9": npy("{}", version=(9, 0)),
    "header length beyond the file": npy("{'descr': '<f4'", length=60000),
    "huge header": npy("{}", version=(2, 0), length=0xFFFFFFFF),
    "no dictionary": npy("[1, 2]"),
    "unclosed": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, "),
    "missing key": npy("{'descr': '<f4', 'shape': (1,)}"),
    "twice": npy("{'descr': '<f4', 'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", bytes(4)),
    "unknown key": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,), 'more': 1}", bytes(4)),
    "code": npy("{'descr': __import__('os').system('true'), 'fortran_order': False, 'shape': (1,)}"),
    "negative size": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4)}", bytes(16)),
    "overflowing shape": npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296, 2)}", bytes(16)
    ),
    "beyond 64 bits": npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (99999999999999999999,)}", bytes(16)
    ),
    "many dimensions": npy(
        "{'descr': '<f4', 'fortran_order': False, 'shape': (" + "1," * 100 + ")}", bytes(4)
    ),
    "truncated data": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (2, 20, 4, 16)}", bytes(100)),
    "trailing data": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)}", bytes(5)),
    "objects": npy("{'descr': '|O', 'fortran_order': False, 'shape': (1,)}", bytes(8)),
    "text after": npy("{'descr': '<f4', 'fortran_order': False, 'shape': (1,)} x", bytes(4)),
}


@pytest.mark.parametrize("name", HOSTILE_NPY)
def test_hostile_npy(qkv, name):
    (qkv.folder / "q.npy").write_bytes(HOSTILE_NPY[name])
    qkv.bad(*ATTEND, says="--q")


def entry(dtype="F32", shape="[2]", offsets="[0, 8]", more=""):
    return f'"dtype": "{dtype}", "shape": {shape}, "data_offsets": {offsets}{more}'


HOSTILE_SAFETENSORS = {
    "not json": b"{nothing",
    "array": b"[1, 2]",
    "deep": b'{"q": ' + b"[" * 100000 + b"]" * 100000 + b"}",
    "deep objects": b'{"q": ' + b'{"a":' * 100000 + b"1" + b"}" * 100000 + b"}",
    "no fields": b'{"q": {}}',
    "unknown dtype": f'{{"q": {{{entry("F3")}}}}}'.encode(),
    "negative shape": f'{{"q": {{{entry(shape="[-2]")}}}}}'.encode(),
    "fractional shape": f'{{"q": {{{entry(shape="[2.5]")}}}}}'.encode(),
    "overflowing shape": f'{{"q": {{{entry(shape="[4294967296, 4294967296]")}}}}}'.encode(),
    "beyond 64 bits": f'{{"q": {{{entry(shape="[99999999999999999999]")}}}}}'.encode(),
    "size mismatch": f'{{"q": {{{entry(offsets="[0, 4]")}}}}}'.encode(),
    "outside the file": f'{{"q": {{{entry(shape="[200]", offsets="[0, 800]")}}}}}'.encode(),
    "reversed offsets": f'{{"q": {{{entry(offsets="[8, 0]")}}}}}'.encode(),
    "overlap": f'{{"q": {{{entry()}}}, "k": {{{entry()}}}}}'.encode(),
    "hole": f'{{"q": {{{entry(shape="[1]", offsets="[4, 8]")}}}}}'.encode(),
    "twice": f'{{"q": {{{entry()}}}, "q": {{{entry()}}}}}'.encode(),
    "field twice": f'{{"q": {{{entry(more=", ")}"dtype": "F32"}}}}'.encode(),
    "unknown field": f'{{"q": {{{entry(more=", ")}"extra": 1}}}}'.encode(),
    "null": b'{"q": null}',
    "string": b'{"q": "x"}',
    "not utf-8": b'{"\xff\xfe": {}}',
}


@pytest.mark.parametrize("name", HOSTILE_SAFETENSORS)
def test_hostile_safetensors(tool, name):
    safetensors_file.write_raw(tool.folder / "x.safetensors", HOSTILE_SAFETENSORS[name], bytes(8))
    tool.bad("attend", "--tensors", "x.safetensors", "--out", "o.npy", says="--q")


@pytest.mark.parametrize("length", [0, 9, 200_000_000, 2**63, 2**64 - 1])
def test_hostile_safetensors_length(tool, length):
    safetensors_file.write_raw(tool.folder / "x.safetensors", b"{}", b"", length)
    tool.bad("attend", "--tensors", "x.safetensors", "--out", "o.npy", says="--q")


def test_names_what_the_file_has(tool):
    safetensors_file.write(tool.folder / "x.safetensors", {"queries": np.zeros((1, 2, 1, 4), np.float32)})
    tool.bad(
        "attend", "--tensors", "x.safetensors", "--out", "o.npy", says=["no tensor 'q'", "it has queries"]
    )


def test_a_folder_a_pipe_and_a_device_are_no_files(qkv):
    qkv.bad(
        "attend", "--q", "/dev/zero.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", says="cannot open"
    )
    (qkv.folder / "d.npy").mkdir()
    qkv.bad(
        "attend", "--q", "d.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy", says="not a regular file"
    )


def test_metadata_that_leaves_the_tensors(tool):
    for name in "qkv":
        tool.save(f"{name}.npy", np.zeros((10, 2, 8), np.float32))
    for offsets in ([0, 5, 11], [0, 7, 3], [1, 5, 10], [0, 2**40, 10]):
        tool.save("cu.npy", np.array(offsets, np.int64))
        tool.bad(*ATTEND, "--cu-seqlens-q", "cu.npy", "--cu-seqlens-k", "cu.npy", says="cu_seqlens_q")


def test_verbs(tool):
    assert "--q" not in tool.bad(says="subcommand")
    tool.bad("attned", says="attned")
    tool.bad("explain", "--seqlen", "many", says="--seqlen: 'many'")
    tool.bad("explain", "--heads", "6", "--kv-heads", "4", says=["6", "4"])
    tool.bad("explain", "--pass", "sideways", says="--pass")
    tool.bad("bench", "--against", "magic", says="--against: 'magic'")
    tool.bad("bench", "--against", "unfused", "--dtype", "bf16", says=["unfused", "--dtype fp32"])
    tool.bad("bench", "--against", "unfused", "--pass", "bwd", says=["unfused", "--pass fwd"])
    tool.bad("bench", "--algorithm", "scalar,fastest", says="fastest")
    tool.bad("bench", "--seqlen", "1", "--clock", "cpu", says=["--clock", "wall"])
    tool.bad("bench", "--clock", "sun", says="--clock: 'sun'")
    tool.bad("bench", "--dim", "64,,8", says="--dim")


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
]


@pytest.mark.parametrize(
    "arguments, says",
    [
        ([], ["--dv: missing"]),
        (["--dv", "dq.npy"], ["--dv: 'dq.npy' is also --dq's file"]),
        (["--dv", "dv.npy", "--dbias", "db.npy"], ["--dbias", "--bias"]),
        (["--dv", "dv.npy", "--dsink", "ds.npy"], ["--dsink", "--sink"]),
        (["--dv", "dv.npy", "--dlse", "q.npy"], ["dlse"]),
        (["--dv", "v.npy"], ["--dv: 'v.npy' is also --v's file"]),
    ],
)
def test_gradient_options(qkv, arguments, says):
    qkv.bad(*GRAD, *arguments, says=says)


def test_gradient_shapes(qkv):
    qkv.save("do.npy", np.zeros((2, 20, 4, 8), np.float32))
    qkv.bad(*GRAD, "--dv", "dv.npy", says=["dout", "(2, 20, 4, 8)"])
