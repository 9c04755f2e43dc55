"""`python -m tilewise ...`: the command-line tool that came with this installation, or its main verbs in Python."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def main() -> int:
    tool = Path(__file__).parent / "bin" / "tilewise"
    if tool.exists():
        os.execv(tool, ["tilewise", *sys.argv[1:]])
    from . import _tool

    return _tool.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
