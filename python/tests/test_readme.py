"""README.md's Python snippets run."""

import re
from pathlib import Path

import pytest

README = Path(__file__).resolve().parents[2] / "README.md"
MARK = "<!-- executed by python/tests/test_readme.py -->"


def snippets():
    return re.findall(re.escape(MARK) + r"\n```python\n(.*?)```", README.read_text(), re.S)


def test_there_are_snippets():
    assert len(snippets()) >= 2


@pytest.mark.parametrize("number", range(len(snippets())))
def test_snippet(number):
    code = snippets()[number]
    if "torch" in code:
        pytest.importorskip("torch", minversion="2.10")
        pytest.importorskip("transformers", minversion="5.0")
    exec(compile(code, f"README snippet {number}", "exec"), {})
