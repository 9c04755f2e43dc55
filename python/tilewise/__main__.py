"""`python -m tilewise ...`: the command-line tool that came with this installation."""

from __future__ import annotations

import os
import shutil
import sys
from pathlib import Path


def main() -> int:
    bundled = Path(__file__).parent / "bin" / "tilewise"
    tool = str(bundled) if bundled.exists() else shutil.which("tilewise")
    if tool:
        os.execv(tool, ["tilewise", *sys.argv[1:]])
    if sys.argv[1:2] == ["info"]:
        from . import info

        print(info())
        return 0
    print(
        "tilewise: this wheel was built without the command-line tool, because CLI11 or nlohmann-json was "
        "missing then. Install libcli11-dev and nlohmann-json3-dev (Debian) and run "
        "`pip install --force-reinstall .` again.",
        file=sys.stderr,
    )
    return 2


if __name__ == "__main__":
    sys.exit(main())
