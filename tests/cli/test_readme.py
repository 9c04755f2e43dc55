"""The README's commands work as they stand there."""

import pathlib
import re
import shlex

import pytest

README = (pathlib.Path(__file__).resolve().parents[2] / "README.md").read_text()


def commands():
    blocks = re.findall(r"<!-- executed by tests/cli/test_readme.py.*?-->\n```sh\n(.*?)```", README, re.S)
    return [line for block in blocks for line in block.splitlines() if line]


def test_there_are_commands():
    assert len(commands()) >= 5


@pytest.mark.parametrize("command", commands())
def test_command(qkv, command):
    words = shlex.split(command)
    assert words[0] == "tilewise"
    assert qkv.good(*words[1:]) or "--out" in words


def test_two_commands_exist():
    for name in ("run", "test"):
        assert (
            f"./{name} " in README
            and (pathlib.Path(__file__).resolve().parents[2] / name).stat().st_mode & 0o111
        )
