"""Figures 4 to 7 laid out like the paper's: four panels (without and with causal mask, D 64 and 128), this machine's
bars solid, the paper's own as outlines in the same place."""

from __future__ import annotations

import csv
from pathlib import Path

PASSES = {4: "fwd+bwd", 5: "fwd", 6: "bwd", 7: "fwd+bwd"}
TITLES = {"fwd": "forward", "bwd": "backward", "fwd+bwd": "forward + backward"}
PAPERS_GPU = {4: "A100 80GB SXM4", 5: "A100 80GB SXM4", 6: "A100 80GB SXM4", 7: "H100 80GB SXM5"}
PANELS = ((64, False), (128, False), (64, True), (128, True))
COLOURS = {
    "pytorch": "#7f7f7f",
    "unfused": "#c7c7c7",
    "fa1": "#e8b04a",
    "xformers": "#6aa84f",
    "triton": "#3d85c6",
    "sdpa": "#674ea7",
    "fa2": "#674ea7",
    "cudnn": "#38761d",
    "fa3": "#1c4587",
    "flex": "#76a5af",
    "tilewise-mma": "#f4a3a3",
    "tilewise": "#cc0000",
}
# The paper's legend names for the methods it has.
METHODS = ("PyTorch", "FlashAttention", "xFormers", "FA Triton", "FlashAttention-2")


def paper_bars(figure: int) -> dict:
    """(D, causal, method, S) -> TFLOP/s of the paper's own chart; nothing where it ran out of memory."""
    bars = {}
    with open(Path(__file__).parent / "paper.csv") as file:
        for row in csv.DictReader(file):
            if int(row["figure"]) == figure and row["method"] in METHODS and row["tflops"]:
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
        speed = (
            3.5 * both[0]["tflops"] * both[0]["ms"] / (both[0]["ms"] + both[1]["ms"]) if not missing else 0
        )
        bars[key] = missing[0] if missing else speed
    return bars


def label(value) -> str:
    """What stands over a bar, or in the place of one."""
    if isinstance(value, (int, float)):
        return f"{value:.0f}"
    return "OOM" if value == "OOM" else "n/a"


def draw_panel(axis, results: dict, panel: tuple, ours: dict, paper: dict, unit: float) -> None:
    D, causal = panel
    names = list(results["labels"])
    lengths = sorted({S for d, c, _, S in ours if (d, c) == panel})
    width = 0.88 / max(len(names), 1)
    size = 6.5 if len(names) > 4 else 8
    for n, name in enumerate(names):
        for x, S in enumerate(lengths):
            at = x + (n + 0.5) * width - 0.44
            value = ours.get((D, causal, name, S))
            theirs = paper.get((D, causal, results["paper"][name], S))
            if isinstance(value, (int, float)):
                value *= unit
                axis.bar(at, value, width * 0.94, color=COLOURS.get(name, "#999999"), zorder=2)
            if value is not None:
                top = max(
                    v if isinstance(v, (int, float)) else 0 for v in (value, theirs)
                )  # clear of the outline
                axis.text(
                    at,
                    top,
                    f" {label(value)}",
                    ha="center",
                    va="bottom",
                    fontsize=size,
                    rotation=90,
                    zorder=4,
                )
            if isinstance(theirs, float):
                axis.bar(at, theirs, width * 0.94, fill=False, edgecolor="black", linewidth=0.9, zorder=3)
    axis.set_xticks(range(len(lengths)), [f"{S // 1024}k" if S >= 1024 else str(S) for S in lengths])
    axis.set_xlabel("Sequence length")
    axis.set_ylabel("Speed (TFLOPs/s)" if unit == 1 else "Speed (GFLOPs/s)")
    axis.grid(axis="y", color="#dddddd", linewidth=0.6, zorder=0)
    axis.set_ylim(0, axis.get_ylim()[1] * 1.08)
    for side in ("top", "right"):
        axis.spines[side].set_visible(False)


def draw_figure(results: dict, figure: int, out: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "tilewise"
    import matplotlib.pyplot as plt

    pass_ = PASSES[figure]
    ours = our_bars(results["rows"], pass_)
    if not ours:
        return
    speeds = [v for v in ours.values() if isinstance(v, (int, float))]
    unit = (
        1 if max(speeds, default=1) > 2 else 1000
    )  # a CPU's speeds are GFLOP/s, and no match for the paper's bars
    paper = paper_bars(figure) if unit == 1 else {}
    fig, axes = plt.subplots(2, 2, figsize=(20, 11))
    for letter, axis, panel in zip("abcd", axes.flat, PANELS):
        draw_panel(axis, results, panel, ours, paper, unit)
        mask = "With" if panel[1] else "Without"
        axis.set_title(f"({letter}) {mask} causal mask, head dimension {panel[0]}", y=-0.2, fontsize=13)
    handles = [plt.Rectangle((0, 0), 1, 1, color=COLOURS.get(n, "#999999")) for n in results["labels"]]
    labels = list(results["labels"].values())
    if paper:
        handles.append(plt.Rectangle((0, 0), 1, 1, fill=False, edgecolor="black"))
        labels.append(f"the paper's own bar ({PAPERS_GPU[figure]})")
    fig.legend(handles, labels, loc="upper center", bbox_to_anchor=(0.5, 0.955), ncols=6, frameon=False)
    machine = results["machine"]
    fig.suptitle(
        f"Figure {figure}: attention {TITLES[pass_]} speed, {machine['device']}, {machine.get('dtype', 'bfloat16')}",
        y=0.985,
        fontsize=15,
    )
    fig.tight_layout(rect=(0, 0, 1, 0.92), h_pad=2.5)
    for kind in ("png", "svg"):
        fig.savefig(
            out / f"figure{figure}.{kind}", dpi=100, metadata={"Date": None} if kind == "svg" else None
        )
    plt.close(fig)


def draw(results: dict, out: Path) -> None:
    out.mkdir(parents=True, exist_ok=True)
    for figure in PASSES:
        draw_figure(results, figure, out)
