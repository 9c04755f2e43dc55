"""What the tests of the command-line tool share: the tool, tensors in files, and one line a test for the closing count."""

import os
import pathlib
import subprocess

import numpy as np
import pytest

TOOL = os.environ["TILEWISE_TOOL"]


def pytest_runtest_logreport(report):
    log = os.environ.get("TILEWISE_TEST_LOG")
    if not log or not (report.when == "call" or report.outcome != "passed"):
        return
    name = "cli." + report.nodeid.split("/")[-1].replace(" ", "_")
    line = {"passed": f"PASS {name}", "failed": f"FAIL {name}"}.get(report.outcome)
    if report.outcome == "skipped":
        line = f"SKIP {name}: {report.longrepr[2]}"
    with open(log, "a") as f:
        f.write(line + "\n")


class Tool:
    """Runs the tool in a folder of its own."""

    def __init__(self, folder):
        self.folder = pathlib.Path(folder)

    def __call__(self, *arguments, **environment):
        return subprocess.run(
            [TOOL, *map(str, arguments)],
            cwd=self.folder,
            capture_output=True,
            text=True,
            timeout=120,
            env={**os.environ, **environment},
        )

    def good(self, *arguments, **environment):
        result = self(*arguments, **environment)
        assert result.returncode == 0, result.stderr
        return result.stdout

    def bad(self, *arguments, says=(), code=2):
        """One message, the exit status of bad input, and not a file more than before."""
        before = sorted(p.name for p in self.folder.iterdir())
        result = self(*arguments)
        assert result.returncode == code, (result.returncode, result.stderr)
        lines = result.stderr.strip().split("\n")
        assert len(lines) == 1 and lines[0].startswith("tilewise: "), result.stderr
        for word in [says] if isinstance(says, str) else says:
            assert word in lines[0], lines[0]
        assert sorted(p.name for p in self.folder.iterdir()) == before
        return lines[0]

    def save(self, name, array):
        np.save(self.folder / name, array)
        return array

    def load(self, name):
        return np.load(self.folder / name)


@pytest.fixture
def tool(tmp_path):
    return Tool(tmp_path)


@pytest.fixture
def qkv(tool):
    """q.npy, k.npy, v.npy, do.npy of (2, 20, 4, 16) and, with two key/value heads, (2, 30, 2, 16)."""
    rng = np.random.default_rng(1)
    tool.q = tool.save("q.npy", rng.standard_normal((2, 20, 4, 16), np.float32))
    tool.k = tool.save("k.npy", rng.standard_normal((2, 30, 2, 16), np.float32))
    tool.v = tool.save("v.npy", rng.standard_normal((2, 30, 2, 16), np.float32))
    tool.do = tool.save("do.npy", rng.standard_normal((2, 20, 4, 16), np.float32))
    return tool


ATTEND = ["attend", "--q", "q.npy", "--k", "k.npy", "--v", "v.npy", "--out", "o.npy"]


def reference(q, k, v, visible=None, scale=None, bias=0):
    """Attention and log-sum-exp in fp64, straight from the definition."""
    q, k, v = (np.asarray(x, np.float64).transpose(0, 2, 1, 3) for x in (q, k, v))
    group = q.shape[1] // k.shape[1]
    k, v = np.repeat(k, group, 1), np.repeat(v, group, 1)
    s = q @ k.transpose(0, 1, 3, 2) * (scale or q.shape[-1] ** -0.5) + bias
    if visible is not None:
        s = np.where(visible, s, -np.inf)
    top = s.max(-1, keepdims=True)
    p = np.exp(s - np.where(np.isinf(top), 0, top))
    total = p.sum(-1, keepdims=True)
    with np.errstate(divide="ignore"):
        lse = (np.log(total) + np.where(np.isinf(top), 0, top))[..., 0]
    return (p / np.where(total == 0, 1, total) @ v).transpose(0, 2, 1, 3), lse
