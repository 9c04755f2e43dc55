"""`python -m tilewise`, its verbs in Python, and the import on a bare machine."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest

from tilewise import _check, _tool


def run(*command):
    return subprocess.run([sys.executable, *command], capture_output=True, text=True)


def test_the_module_runs_as_a_tool():
    explained = run("-m", "tilewise", "explain", "--seqlen", "100", "--dim", "64", "--causal")
    assert explained.returncode == 0 and "algorithm" in explained.stdout
    assert "CPU" in run("-m", "tilewise", "info").stdout
    assert run("-m", "tilewise", "no-such-verb").returncode == 2


def test_explain(capsys):
    assert _tool.main("explain --seqlen 64,128 --dim 32 --pass fwd,bwd --causal".split()) == 0
    said = capsys.readouterr().out
    assert said.count("problem    forward fp32") == said.count("problem    backward fp32") == 2


SMALL = "bench --seqlen 32,64 --dim 16 --heads 2 --seconds 0.01".split()


def test_bench(capsys):
    assert _tool.main([*SMALL, "--pass", "fwd,bwd,fwdbwd", "--full"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:]
    assert len(lines) == 6 and all(re.search(r"[\d.]+ ms +\d+ GFLOP/s$", line) for line in lines)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_bench_in_json(capsys, dtype):
    assert _tool.main([*SMALL, "--seqlen-k", "48", "--clock", "cpu", "--json", "--dtype", dtype]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(r["mask"], r["seqlen_q"]) for r in rows] == [("full", 32), ("full", 64), ("causal", 32), ("causal", 64)]
    scores = [r["flops_per_second"] * r["seconds"] / (2 * 2 * 32) for r in rows]
    assert scores == pytest.approx([32 * 48, 64 * 48, sum(range(17, 49)), sum(range(1, 49))])


def test_bench_takes_bf16_from_torch_where_ml_dtypes_is_missing(capsys, monkeypatch):
    pytest.importorskip("torch", minversion="2.10")
    find_spec = _tool.importlib.util.find_spec
    monkeypatch.setattr(_tool.importlib.util, "find_spec", lambda n: n != "ml_dtypes" and find_spec(n))
    assert _tool.main([*SMALL, "--pass", "fwd,bwd", "--dtype", "bf16"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == 9


def test_check_through_torch(device):
    """The trials in torch tensors, as --device cuda runs them; host memory takes the same way here."""
    pytest.importorskip("torch", minversion="2.10")
    for _, shape, options in (_check.TRIALS[n] for n in (1, 6, 7)):
        assert _check.run_trial(shape, options, np.float32, None, f"{device}:0") <= 1


def test_info(capsys):
    assert _tool.main(["info"]) == 0
    assert "instruction sets" in capsys.readouterr().out


def test_check_finds_an_installation_right_and_a_fault_in_it(capsys, monkeypatch):
    assert _tool.main(["check"]) == 0
    assert "Everything that ran is right." in capsys.readouterr().out
    attention = _check.attention
    monkeypatch.setattr(_check, "TRIALS", _check.TRIALS[:2])

    def off_by_one_key(q, k, v, **options):
        k = k.copy()
        k[:, -1] += 1
        return attention(q, k, v, **options)

    monkeypatch.setattr(_check, "attention", off_by_one_key)
    assert _tool.main(["check"]) == 1
    assert "WRONG: fp32, plain" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, words",
    [
        ("explain --dtype fp8", "--dtype: 'fp8'; must be fp32, fp16 or bf16"),
        ("bench --pass sideways", "--pass: 'sideways'; must be fwd or bwd or fwdbwd"),
        ("explain --pass fwdbwd", "--pass: 'fwdbwd'; must be fwd or bwd"),
        ("bench --against unfused", "--against"),
        ("explain --algorithm guess", "guess"),
        ("attend --q q.npy", "this wheel has no 'attend'"),
    ],
)
def test_bad_input_says_what_works(capsys, arguments, words):
    assert _tool.main(arguments.split()) == 2
    assert words in capsys.readouterr().err


def test_import_needs_no_torch():
    code = "import sys; sys.modules['torch'] = None; import tilewise; print(tilewise.info())"
    bare = run("-c", code)
    assert bare.returncode == 0, bare.stderr
    assert "torch: not importable" in bare.stdout and "CUDA" in bare.stdout


def test_import_does_not_load_torch():
    code = "import sys, numpy as np, tilewise; q = np.ones((1, 2, 1, 4), np.float32); tilewise.attention(q, q, q)"
    lean = run("-c", code + "; assert 'torch' not in sys.modules")
    assert lean.returncode == 0, lean.stderr
