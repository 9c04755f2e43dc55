#!/usr/bin/env python3
"""Mutation check: plants one fault after the other into a copy of the sources and proves that the suite
catches each.

    tools/mutation.py [--work FOLDER] [--only N ...] [--report FILE.md] [--jobs N]

The copy is built without optimisation to speak of and with the portable instruction set alone, so a fault
costs one compilation and the conformance cases of its pass, up to the first failure. Exit code 1 when a fault
survives, or when a fault's text is no longer in the sources."""

import argparse
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[1]
BACKWARD, FORWARD = "*scalar*bwd*", "*scalar*fwd*"
SCORES, BLOCK = "src/cpu/generic/backward_scores.h", "src/cpu/generic/backward.h"
DRIVER, BUILDER = "src/cpu/backward.cpp", "src/cpu/task_builder.cpp"

# What, where, the right text, the faulty text, the cases that must catch it.
FAULTS = [
    (
        "causal and window edge one key too far",
        "src/cpu/generic/scores.h",
        "(high > j)",
        "(high >= j)",
        FORWARD,
    ),
    ("left window edge one key too short", "src/cpu/generic/scores.h", "(low <= j)", "(low < j)", FORWARD),
    (
        "causal mask aligned top-left",
        "kernels/shared/ranges.h",
        "top_left ? Int(0) : sk - sq",
        "Int(0)",
        BACKWARD,
    ),
    (
        "missing rescale of the running sum",
        "src/cpu/generic/forward.h",
        "V::load(q.row_sum + v * V::W) * V::load(f.alpha + v * V::W)",
        "V::load(q.row_sum + v * V::W)",
        FORWARD,
    ),
    (
        "sink left out of the denominator",
        "src/cpu/generic/forward.h",
        "l * past + float(",
        "l * past + 0 * float(",
        FORWARD,
    ),
    ("dropped dlse", BLOCK, "if (t.dlse) q.delta[i] -=", "if (false) q.delta[i] -=", BACKWARD),
    ("dropped delta", BLOCK, "if (!dead[i]) q.delta[i] = dot;", "", BACKWARD),
    ("missing scale in dS", SCORES, "(p * scale)", "p", BACKWARD),
    ("dropped softcap derivative", SCORES, "ds * (slope * o.scale)", "ds * o.scale", BACKWARD),
    ("dropout not applied to dP", SCORES, "dp = V::select(kept, dp * o.inv_keep, F{});", "", BACKWARD),
    (
        "dropped probabilities not scaled by 1 / (1 - p)",
        SCORES,
        "V::select(kept | masked, p * o.inv_keep, F{})",
        "V::select(kept | masked, p, F{})",
        BACKWARD,
    ),
    ("dropout of another head", BUILDER, "o.dropout_h = u32(head)", "o.dropout_h = 0", BACKWARD),
    (
        "masked dS not excluded",
        SCORES,
        "V::select(masked, F{}, p * (dp - delta))",
        "p * (dp - delta)",
        BACKWARD,
    ),
    (
        "NaN of masked rows not kept out of the products",
        BLOCK,
        "if (tile.edge && !(q.finite && kb.finite))",
        "if (false)",
        BACKWARD,
    ),
    ("swapped strides of dlse", DRIVER, "t.dlse_row = p.dlse.s", "t.dlse_row = p.dlse.h", BACKWARD),
    (
        "dout read with out's strides",
        DRIVER,
        "head_matrix(p.dout, s.q_b, s.q_row, h)",
        "head_matrix(View{p.dout.data, p.dtype, p.out.stride}, s.q_b, s.q_row, h)",
        BACKWARD,
    ),
    (
        "wrong key/value head of a group",
        DRIVER,
        "const i64 kv_head = h / p.group();",
        "const i64 kv_head = h % p.Hk;",
        BACKWARD,
    ),
    (
        "a split part left out of the sum",
        DRIVER,
        "for (i64 i = 0; i < unit.parts; ++i) {",
        "for (i64 i = unit.parts > 1; i < unit.parts; ++i) {",
        BACKWARD,
    ),
    (
        "maximum's sum not divided by where lse is large",
        BLOCK,
        "q.normalizer[i] = float(",
        "q.normalizer[i] += 0 * float(",
        BACKWARD,
    ),
    ("dbias not kept apart by batch", DRIVER, "if (size[0] != 1 && s.index != r.b) continue;", "", BACKWARD),
    ("sign of dsink", BLOCK, "*t.dsink -= double", "*t.dsink += double", BACKWARD),
    (
        "uncovered gradient rows left as they were",
        DRIVER,
        "if (p.varlen()) clear_unused_rows<T>(p, all);",
        "",
        BACKWARD,
    ),
    (
        "last key of a sub-block left out",
        BLOCK,
        "end = b.any_end < kb.end ? b.any_end : kb.end,",
        "end = b.any_end < kb.end ? b.any_end - 1 : kb.end,",
        BACKWARD,
    ),
    (
        "ALiBi left out of the backward",
        SCORES,
        "V::to_float(distance < 0 ? -distance : distance) * o.slope",
        "V::to_float(distance) * 0.f",
        BACKWARD,
    ),
]


def copy_sources(to):
    files = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True)
    for name in filter(None, files.stdout.split("\0")):
        source, target = ROOT / name, to / name
        if source.is_file():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)
    # The portable instruction set alone.
    with open(to / "src/cpu/isa.cmake", "a", encoding="utf-8") as f:
        f.write(
            "\nset_source_files_properties(cpu/isa_avx2.cpp cpu/isa_avx512.cpp cpu/isa_avx512_bf16.cpp"
            " PROPERTIES HEADER_FILE_ONLY TRUE)\n"
        )
    isa = to / "src/cpu/isa.cpp"
    isa.write_text(isa.read_text().replace("#if defined(__x86_64__)", "#if 0"))


def build(tree, jobs):
    command = ["cmake", "--build", "build", "--target", "test_conformance", "-j", str(jobs)]
    return subprocess.run(command, cwd=tree, capture_output=True, text=True)


def run_cases(tree, cases):
    """True when every case passes, and the first line that says what failed."""
    program = "build/tests/test_conformance"
    command = [program, f"--gtest_filter={cases}", "--gtest_fail_fast", "--gtest_brief=1"]
    environment = os.environ | {"TILEWISE_ISA": ""}
    try:
        r = subprocess.run(command, cwd=tree, capture_output=True, text=True, timeout=600, env=environment)
    except subprocess.TimeoutExpired:
        return False, "did not end within 600 s"
    if "[==========]" not in r.stdout and r.returncode == 0:
        raise SystemExit(f"no case ran for {cases}:\n{r.stdout}{r.stderr}")
    signs = (" (allowed ", " where exact arithmetic")
    told = [line for line in r.stdout.splitlines() if any(sign in line for sign in signs)]
    return r.returncode == 0, told[0].split(";")[0] if told else f"exit code {r.returncode}"


def main():
    raw = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=raw)
    parser.add_argument("--work", type=pathlib.Path, help="folder of the copy (default: a temporary one)")
    parser.add_argument("--only", type=int, nargs="*", help="numbers of the faults to plant")
    parser.add_argument("--report", type=pathlib.Path, help="write the table to this file too")
    parser.add_argument("--jobs", type=int, default=2)
    x = parser.parse_args()
    tree = x.work or pathlib.Path(tempfile.mkdtemp(prefix="tilewise-mutation-"))
    copy_sources(tree)
    flags = [
        "-DTILEWISE_TESTS=ON",
        "-DTILEWISE_CLI=OFF",
        "-DTILEWISE_INSTALL=OFF",
        "-DCMAKE_BUILD_TYPE=None",
        "-DCMAKE_CXX_FLAGS=-O1",
    ]
    if shutil.which("ccache"):
        flags += ["-DCMAKE_CXX_COMPILER_LAUNCHER=ccache"]
    configure = ["cmake", "-S", ".", "-B", "build", "-G", "Ninja", *flags]
    subprocess.run(configure, cwd=tree, check=True, stdout=subprocess.DEVNULL)
    if (b := build(tree, x.jobs)).returncode:
        raise SystemExit(f"the sources as they are do not build:\n{b.stdout[-3000:]}")
    for cases in (BACKWARD, FORWARD):
        passed, told = run_cases(tree, cases)
        if not passed:
            raise SystemExit(f"the sources as they are fail {cases}: {told}")
    lines = ["| | fault | in | caught by |", "|---|---|---|---|"]
    print("\n".join(lines))
    survivors = 0
    for number, (what, where, right, wrong, cases) in enumerate(FAULTS, 1):
        if x.only and number not in x.only:
            continue
        path = tree / where
        original = path.read_text()
        if original.count(right) != 1:
            times = original.count(right)
            raise SystemExit(f"fault {number} ({what}): its text stands {times} times in {where}, not once")
        path.write_text(original.replace(right, wrong))
        started = time.time()
        b = build(tree, x.jobs)
        if b.returncode:
            raise SystemExit(f"fault {number} ({what}) does not build:\n{b.stdout[-3000:]}")
        passed, told = run_cases(tree, cases)
        path.write_text(original)
        survivors += passed
        caught_by = "**nothing**" if passed else told
        lines.append(f"| {number} | {what} | {where} | {caught_by} |")
        print(lines[-1], f" [{time.time() - started:.0f} s]", flush=True)
    print(f"{len(lines) - 2 - survivors} of {len(lines) - 2} faults caught")
    if x.report:
        x.report.write_text("\n".join(lines) + "\n")
    if not x.work:
        shutil.rmtree(tree)
    return 1 if survivors else 0


if __name__ == "__main__":
    sys.exit(main())
