"""The stubs say what the package has, and a type checker that reads them finds a user's mistakes."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import tilewise

PACKAGE = Path(tilewise.__file__).parent

USER = """
import numpy as np
import tilewise

q = np.zeros((1, 2, 1, 4), np.float32)
out: np.ndarray = tilewise.attention(q, q, q, causal=True)
pair: tuple[np.ndarray, object] = tilewise.attention(q, q, q, return_lse=True)
text: str = tilewise.info()
"""


def test_the_package_is_marked_as_typed():
    assert (PACKAGE / "py.typed").exists() and (PACKAGE / "__init__.pyi").exists()


def test_stub_and_package_have_the_same_functions_and_parameters():
    stubs: dict[str, list] = {}
    for node in ast.parse((PACKAGE / "__init__.pyi").read_text()).body:
        if isinstance(node, ast.FunctionDef):
            stubs.setdefault(node.name, []).append(node.args)
    assert set(stubs) == {n for n in tilewise.__all__ if inspect.isfunction(getattr(tilewise, n))}
    for name, overloads in stubs.items():
        real = inspect.signature(getattr(tilewise, name)).parameters.values()
        for a in overloads:
            assert [x.arg for x in a.args] == [p.name for p in real if p.kind is p.POSITIONAL_OR_KEYWORD], (
                name
            )
            assert [x.arg for x in a.kwonlyargs] == [p.name for p in real if p.kind is p.KEYWORD_ONLY], name


@pytest.mark.parametrize(
    "line, complaint",
    [
        ("", ""),
        ("tilewise.attention(q, q, q, casual=True)", "casual"),
        ("tilewise.attention(q, q, q, softcap='high')", "softcap"),
        ("wrong: int = tilewise.attention(q, q, q)", "int"),
    ],
)
def test_mypy(tmp_path, line, complaint):
    pytest.importorskip("mypy")
    (tmp_path / "user.py").write_text(USER + line + "\n")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", str(tmp_path / "cache"), "user.py"],
        cwd=tmp_path,
        env={"MYPYPATH": str(PACKAGE.parent), "PATH": ""},
        capture_output=True,
        text=True,
    )
    if complaint:
        assert done.returncode == 1 and complaint in done.stdout
    else:
        assert done.returncode == 0, done.stdout + done.stderr
