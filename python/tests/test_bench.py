"""bench/figures.py: the Triton peer in Triton's interpreter, the judge of its cells, and the drawing; the bridge of
bench/builds.py."""

import importlib.metadata
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

torch = pytest.importorskip("torch", minversion="2.10")

BENCH = Path(__file__).resolve().parents[2] / "bench"
TESTS = Path(__file__).resolve().parent

INTERPRETED = """
import itertools, sys
sys.path[:0] = [{bench!r}, {tests!r}]
import torch
import torch_reference as reference
import peers.triton_attention as peer

shapes = [(16, 200, False), (16, 200, True), (64, 130, True)]
choices = itertools.zip_longest(*(peer._configs(t) for t in (peer.FORWARD_TILES, peer.DKDV_TILES, peer.DQ_TILES)))
for forward, dkdv, dq in choices:
    for kernel, config in ((peer._forward, forward), (peer._dkdv, dkdv), (peer._dq, dq)):
        kernel.configs = [config or kernel.configs[0]]
    for D, S, causal in shapes:
        q, k, v = reference.make("cpu", B=1, Sq=S, Sk=S, H=2, Hk=2, D=D, dtype=torch.float32, grad=True)
        out = peer.attention(q, k, v, causal)
        dout = torch.randn_like(out)
        reference.judge(out, None, (q, k, v), causal=causal)
        reference.judge_gradients(torch.autograd.grad(out, (q, k, v), dout), (q, k, v), dout, causal=causal)
print("right")
"""


def test_the_triton_peer_is_right_with_every_tile():
    pytest.importorskip("triton")
    if tuple(map(int, importlib.metadata.version("numpy").split(".")[:2])) > (2, 2):
        pytest.skip("Triton's interpreter needs numpy 2.2 or older")
    code = INTERPRETED.format(bench=str(BENCH), tests=str(TESTS))
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
    )
    assert run.stdout.strip().endswith("right"), run.stderr[-2000:]


@pytest.fixture
def figures(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import figures

    return figures


def test_wrong_results_are_not_timed(figures):
    torch.manual_seed(0)
    q, k, v, dout = (torch.randn(2, 64, 2, 16, dtype=torch.bfloat16) for _ in range(4))
    judged = figures.reference(q, k, v, dout, True)
    s = torch.einsum("bihd,bjhd->bhij", q, k) / 4
    s = s.masked_fill(torch.ones(64, 64, dtype=torch.bool).triu(1), -torch.inf)
    out = torch.einsum("bhij,bjhd->bihd", torch.softmax(s, -1), v)
    assert figures.check([out], judged, False) == (True, "")
    out[-1, :, -1] += 0.1
    timed, note = figures.check([out], judged, False)
    assert not timed and note.startswith("wrong: out")


def test_a_contender_that_fails_says_why_and_the_rest_goes_on(figures):
    import contenders

    calls = dict.fromkeys(("good", "late", "never"), 0)

    def attend(name, fails_from):
        def call(q, k, v, causal):
            calls[name] += 1
            if calls[name] >= fails_from:
                raise RuntimeError(f"{name} does not work")
            return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=causal)

        return contenders.Contender(name, name, "", "bhsd", call, contenders._anywhere)

    field = [attend("never", 1), attend("late", 5), attend("good", 10**9)]
    cell = dict(D=16, H=2, B=1, S=64, causal=True, **{"pass": "fwd"})
    args = SimpleNamespace(dtype=torch.float32, budget_ms=1e-3, rounds=3)
    rows = figures.measure(cell, args, torch.device("cpu"), field, 1e9, 1.0)
    notes = {r["contender"]: (r["ms"] is not None, r["note"]) for r in rows}
    assert notes == {
        "never": (False, "RuntimeError: never does not work"),
        "late": (False, "RuntimeError: late does not work"),  # in the second round
        "good": (True, ""),
    }


def run_figures(*arguments):
    return subprocess.run(
        [sys.executable, str(BENCH / "figures.py"), *map(str, arguments)], capture_output=True, text=True
    )


SMALL = ("--device", "cpu", "--tokens", "64", "--hidden", "128", "--rounds", "1", "--budget-ms", "1")


def test_a_run_on_the_cpu_and_its_figures(tmp_path):
    pytest.importorskip("matplotlib")
    done = run_figures(*SMALL, "--seq", "32,64", "--out", tmp_path)
    assert done.returncode == 0, done.stderr
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["labels"]) == {"pytorch", "sdpa", "tilewise"}
    assert len(results["rows"]) == 2 * 2 * 2 * 2 * 3
    assert all(r["ms"] > 0 and r["note"] == "" for r in results["rows"])
    assert {"device", "torch", "tilewise", "commit", "date"} <= set(results["machine"])
    for figure in (4, 5, 6, 7):
        assert (tmp_path / f"figure{figure}.png").stat().st_size > 10_000
        assert "Tilewise" in (tmp_path / f"figure{figure}.svg").read_text()


def test_a_spent_budget_is_said_and_files_are_merged(tmp_path):
    pytest.importorskip("matplotlib")
    done = run_figures(*SMALL, "--seq", "32", "--budget", "0", "--out", tmp_path / "a")
    assert done.returncode == 0, done.stderr
    rows = json.loads((tmp_path / "a/results.json").read_text())["rows"]
    assert all(r["ms"] is None and "--budget" in r["note"] for r in rows)
    assert run_figures(*SMALL, "--seq", "32", "--out", tmp_path / "b").returncode == 0
    both = (tmp_path / "a/results.json", tmp_path / "b/results.json")
    drawn = run_figures("--draw", *both, "--out", tmp_path / "c")
    assert drawn.returncode == 0, drawn.stderr
    assert (tmp_path / "c/figure4.svg").read_text().count("n/a") == 0
    results = json.loads(both[1].read_text())
    results["machine"]["device"] = "another"
    both[1].write_text(json.dumps(results))
    drawn = run_figures("--draw", *both, "--out", tmp_path / "c")
    assert drawn.returncode == 1 and "another" in drawn.stderr


def test_combined_speed_is_that_of_the_summed_times(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import draw

    cell = dict(D=64, causal=False, contender="x", S=512, note="")
    forward = dict(cell, ms=1.0, tflops=100.0, **{"pass": "fwd"})  # 0.1 TFLOP
    backward = dict(cell, ms=4.0, tflops=62.5, **{"pass": "bwd"})
    bars = draw.our_bars([forward, backward], "fwd+bwd")
    assert bars == {(64, False, "x", 512): pytest.approx(0.35 / 5e-3)}
    backward.update(ms=None, note="OOM")
    assert draw.our_bars([forward, backward], "fwd+bwd") == {(64, False, "x", 512): "OOM"}


def test_the_papers_bars_are_all_there(monkeypatch):
    monkeypatch.syspath_prepend(str(BENCH))
    import draw

    counts = {figure: len(draw.paper_bars(figure)) for figure in (4, 5, 6, 7)}
    assert counts == {4: 116, 5: 116, 6: 116, 7: 68}
    assert draw.paper_bars(7)[128, True, "FlashAttention-2", 16384] == 327.8
    assert (64, False, "PyTorch", 16384) not in draw.paper_bars(4)  # out of memory there


@pytest.mark.skipif(not shutil.which("c++"), reason="needs a C++ compiler")
def test_builds_are_opened_one_by_one(monkeypatch, capfd, tmp_path):
    monkeypatch.syspath_prepend(str(BENCH))
    import builds

    library = builds.bridge()
    with pytest.raises(SystemExit):
        builds.Build(library, "name=/nonexistent/libtilewise.so")
    other = tmp_path / "other.so"
    subprocess.run(["c++", "-shared", "-fPIC", "-x", "c++", "/dev/null", "-o", other], check=True)
    with pytest.raises(SystemExit):
        builds.Build(library, str(other))
    said = capfd.readouterr().err
    assert "/nonexistent/libtilewise.so: cannot open" in said and "is not a libtilewise" in said
