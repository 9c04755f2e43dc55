#!/usr/bin/env python3
"""Writes cases.txt: every pair of values of the features below at least once (greedy pairwise cover), seeded random
combinations on top, sweeps of tails, and long rows. Deterministic; run it after a change and commit the result."""

import itertools
import random
import sys

FEATURES = {
    "dtype": ["fp32", "fp16", "bf16"],
    "mask_band": [
        "",
        "causal",
        "causal topleft",
        "window=3,0",
        "window=5,7",
        "window=0,0",
        "window=4,-1 topleft",
        "causal window=9223372036854775807,9223372036854775807",
        "window=-1,2",
    ],
    "softcap": ["", "softcap=1.5", "softcap=30"],
    "alibi": ["", "alibi=h", "alibi=bh"],
    "bias": ["", "bias=bhij:fp32", "bias=11ij:bf16", "bias=b11j:fp16", "bias=h11:fp32", "bias=ij:fp32"],
    "mask": ["", "mask=bhij", "mask=b11j", "mask=ij", "mask=1hi1"],
    "sink": ["", "sink"],
    "dropout": ["", "dropout=0.25"],
    "lengths": ["", "varlen", "used=qk", "used=k", "varlen used=qk"],
    "layout": [
        "",
        "layout=t",
        "layout=2",
        "layout=p",
        "layout=n",
        "layout=o",
        "layout=k",
        "layout=e",
        "layout=m",
    ],
    "heads": ["H=1 Hk=1", "H=4 Hk=4", "H=6 Hk=2", "H=5 Hk=1"],
    "lengths_qk": [
        "Sq=1 Sk=97",
        "Sq=33 Sk=33",
        "Sq=70 Sk=40",
        "Sq=40 Sk=131",
        "Sq=7 Sk=300",
        "Sq=129 Sk=64",
        "Sq=16 Sk=1",
    ],
    "dims": [
        "D=64 Dv=64",
        "D=128 Dv=128",
        "D=40 Dv=40",
        "D=1 Dv=3",
        "D=96 Dv=32",
        "D=33 Dv=72",
        "D=192 Dv=128",
        "D=256 Dv=256",
    ],
    "scores": ["", "shift=-120", "shift=90", "scale=0.5", "amplitude=3"],
    "threads": ["", "threads=1", "threads=3"],
    "dlse": ["", "dlse"],
}
FORWARD_ONLY = {"dlse": [""]}


def pairwise(features, rng):
    """Greedy cover: each row takes, feature by feature, the value that covers most pairs not yet covered."""
    names = list(features)
    missing = {
        (a, x, b, y) for a, b in itertools.combinations(names, 2) for x in features[a] for y in features[b]
    }
    order = {n: i for i, n in enumerate(names)}

    def pair(a, x, b, y):
        return (a, x, b, y) if order[a] < order[b] else (b, y, a, x)

    rows = []
    while missing:
        best, best_cover = None, -1
        for _ in range(12):
            a, x, b, y = rng.choice(sorted(missing))
            row = {a: x, b: y}
            for name in rng.sample(names, len(names)):
                if name in row:
                    continue
                gain = {
                    v: sum(pair(name, v, o, w) in missing for o, w in row.items()) for v in features[name]
                }
                most = max(gain.values())
                row[name] = rng.choice([v for v in features[name] if gain[v] == most])
            cover = sum(pair(a, row[a], b, row[b]) in missing for a, b in itertools.combinations(names, 2))
            if cover > best_cover:
                best, best_cover = row, cover
        missing -= {pair(a, best[a], b, best[b]) for a, b in itertools.combinations(names, 2)}
        rows.append(best)
    return rows


def line(row, direction, batch, seed):
    words = [
        row["dtype"],
        direction,
        f"B={batch}",
        row["lengths_qk"],
        row["heads"],
        row["dims"],
        row["mask_band"],
        row["scores"],
        row["softcap"],
        row["alibi"],
        row["bias"],
        row["mask"],
        row["sink"],
        row["dropout"],
        row["lengths"],
        row["layout"],
        row["dlse"],
        row["threads"],
        f"seed={seed}",
    ]
    return " ".join(w for w in words if w)


def main(path):
    rng = random.Random(2026)
    lines = [
        "# Written by generate.py: pairwise cover of the features, forward and backward, then random combinations",
        "# and tails. One case a line; support/case.h reads it.",
    ]
    seed = 0
    for direction, features in (("fwd", FEATURES | FORWARD_ONLY), ("bwd", FEATURES)):
        for row in pairwise(features, rng):
            seed += 1
            lines.append(line(row, direction, 1 + seed % 3, seed))
        for _ in range(60):
            seed += 1
            row = {name: rng.choice(values) for name, values in features.items()}
            for name in rng.sample(["softcap", "alibi", "bias", "mask", "sink", "dropout", "scores"], 3):
                row[name] = ""
            lines.append(line(row, direction, 1 + seed % 3, seed))
    # Tails: every remainder of the tiles in both lengths, full and causal.
    for n in sorted(set(range(1, 70)) | set(range(120, 136)) | {191, 192, 193, 255, 256, 257, 299, 300}):
        seed += 1
        dtype, direction = FEATURES["dtype"][n % 3], ("fwd", "bwd")[n // 3 % 2]
        band = ("", "causal", "causal topleft", "window=20,-1")[n % 4]
        other = rng.choice([1, 2, 3, 31, 64, 97, 160])
        for sq, sk in ((other, n), (n, other)):
            lines.append(
                " ".join(
                    w
                    for w in [
                        dtype,
                        direction,
                        f"B=1 Sq={sq} Sk={sk} H=2 Hk=1 D=32 Dv=32",
                        band,
                        f"seed={seed}",
                    ]
                    if w
                )
            )
    for d in (1, 2, 3, 5, 8, 15, 17, 31, 63, 65, 72, 80, 100, 120, 136, 144, 160, 176, 224, 255, 257, 300):
        seed += 1
        for dtype in FEATURES["dtype"]:
            lines.append(
                f"{dtype} {('fwd', 'bwd')[seed % 2]} B=1 Sq=19 Sk=37 H=2 Hk=1 D={d} Dv={d} causal seed={seed}"
            )
    # Rows of many blocks, of whatever size a backend's are.
    long = ["Sq=40 Sk=600", "Sq=5 Sk=1100", "Sq=70 Sk=777", "Sq=777 Sk=40", "Sq=530 Sk=70", "Sq=300 Sk=513"]
    for direction, features in (("fwd", FEATURES | FORWARD_ONLY), ("bwd", FEATURES)):
        for n in range(12):
            seed += 1
            row = {name: rng.choice(values) for name, values in features.items()}
            row |= {"lengths_qk": long[n % 6], "heads": "H=2 Hk=1", "dtype": FEATURES["dtype"][n // 2 % 3]}
            row["mask_band"] = ("", "causal", "window=400,-1", "causal topleft")[n // 3]
            for name in rng.sample(["softcap", "alibi", "bias", "mask", "sink", "dropout", "scores"], 4):
                row[name] = ""
            lines.append(line(row, direction, 1, seed))
    with open(path, "w") as f:
        f.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else __file__.rsplit("/", 1)[0] + "/cases.txt")
