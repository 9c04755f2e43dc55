"""Figures 4 to 7 laid out like the paper's: four panels (D 64/128, causal or not), our machine's bars solid,
the paper's as outlines."""

from __future__ import annotations

import csv
from pathlib import Path

PASSES = {4: "fwd+bwd", 5: "fwd", 6: "bwd", 7: "fwd+bwd"}
TITLES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward + backward"}
PANELS = ((64, False), (128, False), (64, True), (128, True))
FLOP_SHARE = {"fwd": 1.0, "bwd": 2.5}


def paper_bars(figure: int) -> dict:
    """(D, causal, method, S) -> TFLOP/s of the paper's own chart."""
    bars = {}
    with open(Path(__file__).parent / "paper.csv") as file:
        for row in csv.DictReader(file):
            if int(row["figure"]) == figure and row["tflops"] not in ("", "OOM"):
                key = int(row["head_dim"]), row["causal"] == "yes", row["method"], int(row["seqlen"])
                bars[key] = float(row["tflops"])
    return bars


def our_bars(rows: list[dict], pass_: str) -> dict:
    """(D, causal, contender, S) -> TFLOP/s, or the note of a cell without one."""
    cells = {(r["D"], r["causal"], r["contender"], r["S"], r["pass"]): r for r in rows}
    bars = {}
    for D, causal, name, S, p in cells:
        key = D, causal, name, S
        if pass_ != "fwd+bwd":
            if p == pass_:
                row = cells[(*key, p)]
                bars[key] = row["tflops"] if row["ms"] else row["note"]
            continue
        both = [cells.get((*key, each)) for each in ("fwd", "bwd")]
        if p != "fwd" or None in both:
            continue
        missing = [r["note"] for r in both if not r["ms"]]
        # 3.5 F / (t_fwd + t_bwd), with F = tflops_fwd * t_fwd
        bars[key] = (
            missing[0]
            if missing
            else 3.5 * both[0]["tflops"] * both[0]["ms"] / (both[0]["ms"] + both[1]["ms"])
        )
    return bars


def draw(results: dict, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    names = list(results["labels"])
    colours = dict(zip(names, plt.get_cmap("tab20").colors))
    colours.update({n: c for n, c in (("tilewise", "#c0392b"), ("tilewise-mma", "#e59866")) if n in colours})
    out.mkdir(parents=True, exist_ok=True)
    for figure, pass_ in PASSES.items():
        ours, paper = our_bars(results["rows"], pass_), paper_bars(figure)
        if not ours:
            continue
        fig, axes = plt.subplots(2, 2, figsize=(18, 10))
        for axis, (D, causal) in zip(axes.flat, PANELS):
            lengths = sorted({S for d, c, _, S in ours if d == D and c == causal})
            width = 0.84 / max(len(names), 1)
            for n, name in enumerate(names):
                for x, S in enumerate(lengths):
                    value, at = ours.get((D, causal, name, S)), x + (n + 0.5) * width - 0.42
                    if isinstance(value, (int, float)):
                        axis.bar(
                            at,
                            value,
                            width,
                            color=colours[name],
                            label=results["labels"][name] if x == 0 else None,
                        )
                        axis.text(
                            at, value, f"{value:.0f}", ha="center", va="bottom", fontsize=6, rotation=90
                        )
                    elif value is not None:
                        axis.text(
                            at,
                            0,
                            "OOM" if value == "OOM" else "–",
                            ha="center",
                            va="bottom",
                            fontsize=6,
                            rotation=90,
                        )
                    theirs = paper.get((D, causal, results["paper"][name], S))
                    if theirs:
                        axis.bar(at, theirs, width, fill=False, edgecolor="black", linewidth=0.8)
            axis.set_title(f"head dim {D}, {'causal' if causal else 'no causal mask'}")
            axis.set_xticks(range(len(lengths)), [f"{S // 1024}k" if S >= 1024 else str(S) for S in lengths])
            axis.set_xlabel("sequence length")
            axis.set_ylabel("TFLOP/s")
        handles, labels = {}, []
        for axis in axes.flat:
            for handle, label in zip(*axis.get_legend_handles_labels()):
                handles.setdefault(label, handle)
        handles["the paper's own bars"] = plt.Rectangle((0, 0), 1, 1, fill=False, edgecolor="black")
        labels = list(handles)
        fig.legend([handles[n] for n in labels], labels, loc="lower center", ncols=6)
        source = "H100 80GB SXM5" if figure == 7 else "A100 80GB SXM4"
        fig.suptitle(
            f"Figure {figure}: attention {TITLES[pass_]} on {results['machine']['device']} "
            f"(outlines: the paper, {source})"
        )
        fig.tight_layout(rect=(0, 0.06, 1, 1))
        for kind in ("png", "svg"):
            fig.savefig(out / f"figure{figure}.{kind}", dpi=110)
        plt.close(fig)
