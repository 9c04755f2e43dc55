#!/usr/bin/env python3
"""The form that the project keeps: include direction, sizes, columns, formatting, environment variables, words.

Include direction: core <- oracle, plan <- cpu, cuda <- capi <- cli, python. kernels/ includes kernels/ alone."""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]

# What each folder may include besides itself (first part of the include path).
ALLOWED = {
    "src/core": {"core", "kernels", "tilewise"},
    "src/oracle": {"core", "kernels", "tilewise", "oracle"},
    "src/plan": {"core", "kernels", "tilewise", "plan"},
    "src/cpu": {"core", "kernels", "tilewise", "plan", "cpu"},
    "src/cuda": {"core", "kernels", "tilewise", "plan", "cuda"},
    "src/capi": {"core", "kernels", "tilewise", "plan", "cpu", "cuda", "capi"},
    "cli": {"core", "kernels", "tilewise", "plan", "cpu", "cuda", "oracle", "cli", "CLI", "nlohmann"},
}
MAX_COLUMNS = 110
MAX_LINES = {"kernel": 600, "header": 400}
MAX_FUNCTION = 80
SOURCES = {".h", ".hpp", ".cpp", ".c", ".cuh"}
# The C interface's comments are laid out by hand to 130 columns.
WIDE = {"include/tilewise/tilewise.h"}


def files():
    names = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.split("\n")
    return [ROOT / n for n in names if n and (ROOT / n).is_file()]


def check_includes(path, relative, lines):
    top = next((f for f in ALLOWED if relative.startswith(f + "/")), None)
    for number, line in enumerate(lines, 1):
        match = re.match(r'\s*#\s*include\s+([<"])([^">]+)', line)
        if not match:
            continue
        quote, target = match.groups()
        if relative.startswith("kernels/"):
            if quote == "<":
                yield f"{relative}:{number}: kernels include kernels alone, not <{target}>"
            elif not (path.parent / target).resolve().is_relative_to(ROOT / "kernels"):
                yield f'{relative}:{number}: "{target}" leaves kernels/'
            continue
        if top and quote == '"' and not (path.parent / target).is_file() and "/" in target:
            if target.split("/")[0] not in ALLOWED[top]:
                yield f'{relative}:{number}: {top} must not include "{target}"'


def check_functions(relative, lines):
    """A function body opens with a brace at the end of a column-0 line (clang-format) and closes in column 0."""
    start = None
    for number, line in enumerate(lines, 1):
        if (
            start is None
            and re.match(r"[A-Za-z].*\) (const )?(noexcept )?\{$|^    .*\) (const )?(noexcept )?\{$", line)
            and not line.startswith(("namespace", "struct", "class", "    "))
        ):
            start = number
        elif (
            start is None
            and re.match(r" {4,}.*\) (const |noexcept )*\{$", line)
            and lines[number - 2][:1].isalpha()
        ):
            start = number
        elif start is not None and line.startswith("}"):
            if number - start > MAX_FUNCTION:
                yield f"{relative}:{start}: function of {number - start} lines; the limit is {MAX_FUNCTION}"
            start = None


def check_sizes(path, relative, lines):
    kernel = relative.startswith("kernels/")
    limit = MAX_LINES["kernel"] if kernel else MAX_LINES["header"] if path.suffix in {".h", ".hpp"} else None
    generated = lines and "do not edit" in lines[0]
    if limit and len(lines) > limit and not generated:
        yield f"{relative}: {len(lines)} lines; the limit is {limit}"
    for number, line in enumerate(lines, 1):
        if len(line) > MAX_COLUMNS and relative not in WIDE:
            yield f"{relative}:{number}: {len(line)} columns; the limit is {MAX_COLUMNS}"
        if line != line.rstrip():
            yield f"{relative}:{number}: blank at the end of the line"


def check_words(relative, lines):
    for number, line in enumerate(lines, 1):
        if re.search(r"\b(TOD[O]|FIXM[E]|XX[X]|HAC[K])\b", line):  # brackets: not found in this line itself
            yield f"{relative}:{number}: an unfinished thought: {line.strip()}"


def check_environment(sources):
    table = set(re.findall(r'\{"(TILEWISE_\w+)"', (ROOT / "src/core/env.h").read_text()))
    for _, relative, lines in sources:
        if not relative.startswith(("src/", "cli/")):
            continue
        for number, line in enumerate(lines, 1):
            if "getenv(" in line and relative not in {"src/core/env.cpp"} and "TILEWISE" in line:
                yield f"{relative}:{number}: reads the environment past src/core/env.cpp"
            for name in re.findall(r'\benv\("(\w+)"\)', line):
                if name not in table:
                    yield f"{relative}:{number}: {name} is not in the table of core/env.h"


def check_format(paths):
    tool = shutil.which("clang-format-14") or shutil.which("clang-format")
    if not tool:
        print("clang-format is not installed: formatting was not checked")
        return
    for start in range(0, len(paths), 40):
        run = subprocess.run(
            [tool, "--dry-run", *paths[start : start + 40]], cwd=ROOT, capture_output=True, text=True
        )
        seen = set()
        for match in re.finditer(
            r"^(\S+?):(\d+):\d+: warning: code should be clang-formatted", run.stderr, re.M
        ):
            if match.group(1) not in seen:
                seen.add(match.group(1))
                yield f"{pathlib.Path(match.group(1))}:{match.group(2)}: not clang-formatted"


def main():
    sources = []
    for path in files():
        relative = str(path.relative_to(ROOT))
        if path.suffix in SOURCES:
            sources.append((path, relative, path.read_text().split("\n")[:-1]))
    problems = []
    for path, relative, lines in sources:
        problems += check_includes(path, relative, lines)
        problems += check_sizes(path, relative, lines)
        problems += check_words(relative, lines)
        if not relative.startswith(("kernels/", "tests/")):  # a test's body is a list
            problems += check_functions(relative, lines)
    problems += check_environment(sources)
    problems += check_format([r for _, r, _ in sources if r not in WIDE])
    print("\n".join(problems) if problems else f"{len(sources)} files keep the form")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
