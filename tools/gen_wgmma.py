#!/usr/bin/env python3
"""Writes kernels/ptx/wgmma_shapes.h: one struct per wgmma width in use. Run it after changing WIDTHS; the output is checked in.

python3 tools/gen_wgmma.py > kernels/ptx/wgmma_shapes.h
"""

WIDTHS = (32, 64, 80, 96, 128, 192, 256)
TYPES = (("bf16", "bf16"), ("fp16", "f16"))


def wrap(items, indent, width=108):
    """Joins items with ", " into lines of at most `width` columns."""
    lines, line = [], indent
    for n, item in enumerate(items):
        piece = item + (", " if n + 1 < len(items) else "")
        if len(line) + len(piece.rstrip()) > width:
            lines.append(line.rstrip())
            line = indent
        line += piece
    return lines + [line]


def statement(n, a_in_registers, ptx_type):
    accumulators = n // 2
    regs = [f"%{i}" for i in range(accumulators)]
    next_ = accumulators
    if a_in_registers:
        a = "{" + ", ".join(f"%{next_ + i}" for i in range(4)) + "}"
        next_ += 4
    else:
        a = f"%{next_}"
        next_ += 1
    b, scale_d, trans_b = f"%{next_}", f"%{next_ + 1}", f"%{next_ + 2}"
    out = ["      asm volatile("]
    out.append(f'          "{{ .reg .pred p; setp.ne.b32 p, {scale_d}, 0;\\n"')
    out.append(f'          "wgmma.mma_async.sync.aligned.m64n{n}k16.f32.{ptx_type}.{ptx_type} {{"')
    for line in wrap(regs, "", 92):
        out.append(f'          "{line}"')
    tail = f"{a}, {b}, p, 1, 1, {trans_b}" if a_in_registers else f"{a}, {b}, p, 1, 1, 0, {trans_b}"
    out.append(f'          "}}, {tail}; }}\\n"')
    operands = wrap([f'"+f"(d[{i // 4}][{i % 4}])' for i in range(accumulators)], "            ")
    operands[0] = "          : " + operands[0].lstrip()
    out += operands
    if a_in_registers:
        out.append(
            '          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(accumulate), "n"(TransB));'
        )
    else:
        out.append('          : "l"(a), "l"(b), "r"(accumulate), "n"(TransB));')
    return out


def method(n, a_in_registers):
    a = "const u32 (&a)[4]" if a_in_registers else "u64 a"
    name = "rs" if a_in_registers else "ss"
    out = ["  template <Element E, int TransB>"]
    out.append(
        f"  static TILEWISE_INLINE void {name}(float (&d)[{n // 8}][4], {a}, u64 b, int accumulate) {{"
    )
    for n_type, (_, ptx_type) in enumerate(TYPES):
        out.append("    if constexpr (E == Element::bf16) {" if n_type == 0 else "    } else {")
        out += statement(n, a_in_registers, ptx_type)
    return out + ["    }", "  }"]


def main():
    out = [
        "// Written by tools/gen_wgmma.py: do not edit. wgmma.h says what the functions do.",
        "#pragma once",
        "",
    ]
    out += [
        '#include "../shared/config.h"',
        '#include "target.h"',
        "",
        "// clang-format off",
        "namespace tilewise::ptx {",
        "",
    ]
    out += ["template <int N>", "struct Wgmma;", ""]
    for n in WIDTHS:
        out += ["template <>", f"struct Wgmma<{n}> {{"] + method(n, False) + method(n, True) + ["};", ""]
    out += ["}  // namespace tilewise::ptx"]
    print("\n".join(out))


if __name__ == "__main__":
    main()
