"""The verbs without files, and what an interruption leaves behind."""

import json
import os
import select
import signal
import subprocess
import time

import numpy as np
import pytest
from conftest import ATTEND, TOOL


def test_version_and_help(tool):
    assert tool.good("--version").startswith("tilewise ")
    text = tool.good("--help")
    for verb in ("attend", "grad", "bench", "check", "explain", "info", "demo", "Examples:"):
        assert verb in text
    assert "Examples:" in tool.good("attend", "--help")


def test_info(tool):
    text = tool.good("info")
    assert "instruction sets" in text and "CUDA" in text


def test_explain(tool):
    text = tool.good("explain", "--seqlen", "300", "--dim", "64", "--causal", "--dtype", "bf16")
    for word in ("algorithm", "workspace", "because", "not "):
        assert word in text
    assert "scalar" in tool.good("explain", TILEWISE_ISA="scalar").split("algorithm")[1].split("\n")[0]


def test_bench_json(tool):
    lines = json.loads(
        tool.good(
            "bench",
            "--seqlen",
            "64,128",
            "--dim",
            "32",
            "--heads",
            "2",
            "--seconds",
            "0.02",
            "--json",
            "--against",
            "unfused",
        )
    )
    assert len(lines) == 2 * 2 * 2
    for line in lines:
        assert line["seconds"] > 0 and line["flops_per_second"] > 0 and line["share_of_peak"] > 0


def test_bench_table(tool):
    text = tool.good(
        "bench", "--seqlen", "64", "--dim", "32", "--full", "--seconds", "0.02", "--against", "unfused-kept"
    )
    assert "tilewise" in text and "unfused-kept" in text and "GFLOP/s" in text


def test_self_test(tool):
    assert "Everything that ran is right." in tool.good("check", "--algorithm", "scalar")


@pytest.fixture
def long_work(tool):
    """Files whose attention takes many seconds."""
    for name in "qkv":
        tool.save(f"{name}.npy", np.ones((1, 16384, 16, 128), np.float32))
    return tool


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGKILL"])
def test_interrupted(long_work, name):
    old = long_work.save("o.npy", np.arange(3))
    before = sorted(p.name for p in long_work.folder.iterdir())
    process = subprocess.Popen(
        [TOOL, *ATTEND], cwd=long_work.folder, env={**os.environ, "TILEWISE_ISA": "scalar"}
    )
    deadline = time.time() + 60
    while len(list(long_work.folder.iterdir())) == len(before) and time.time() < deadline:
        time.sleep(0.01)
    assert process.poll() is None
    process.send_signal(getattr(signal, name))
    assert process.wait(30) == -getattr(signal, name)
    after = sorted(
        p.name for p in long_work.folder.iterdir() if name != "SIGKILL" or not p.name.startswith(".")
    )
    assert after == before
    assert (long_work.load("o.npy") == old).all()


def test_disk_full(qkv):
    if not os.path.exists("/dev/full"):
        pytest.skip("no /dev/full here")
    result = subprocess.run([TOOL, "info"], stdout=open("/dev/full", "w"), stderr=subprocess.PIPE, text=True)
    assert result.returncode == 1 and "standard output" in result.stderr


def test_a_file_size_limit_leaves_nothing(qkv):
    result = subprocess.run(
        ["bash", "-c", f"trap '' XFSZ; ulimit -f 1; exec {TOOL} {' '.join(ATTEND)}"],
        cwd=qkv.folder,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 1 and "cannot write" in result.stderr
    assert sorted(p.name for p in qkv.folder.iterdir()) == ["do.npy", "k.npy", "q.npy", "v.npy"]


def test_progress_bar_on_a_terminal_only(long_work):
    """Standard error is a pseudo-terminal: a bar appears; elsewhere nothing does."""
    here, there = os.openpty()
    process = subprocess.Popen(
        [TOOL, *ATTEND], cwd=long_work.folder, stderr=there, env={**os.environ, "TILEWISE_ISA": "scalar"}
    )
    os.close(there)
    seen = b""
    while b"%" not in seen:
        assert select.select([here], [], [], 60)[0], "no progress bar after a minute"
        seen += os.read(here, 1000)
    process.send_signal(signal.SIGINT)
    process.wait(30)
    os.close(here)
    assert seen.startswith(b"\rforward ") and process.returncode == -signal.SIGINT
