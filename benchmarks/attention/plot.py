"""Plots the attention benchmark's time ratios."""

PASSES = {"forward": "forward", "both": "forward and backward"}
RATIO_TICKS = (0.5, 0.7, 1, 1.5, 2, 3, 4, 6, 8)


def plot_ratios(pyplot, rows: list[dict], path):
    """Plots the time relative to plain attention over length, with one line per other setting.

    Args:
        pyplot: `matplotlib.pyplot`.
        rows: rows of attention.csv, without those of plain attention.
        path: the PNG file to write.
    """
    figure, axis = pyplot.subplots(figsize=(8, 5))
    lines = {}
    for row in rows:
        labels = row["implementation"], row["part"], row["direction"], PASSES[row["passes"]]
        label = ", ".join([*labels, f"K = {row['max_relative_position']}"])
        lines.setdefault(label, []).append((row["length"], row["ratio"]))
    for label, points in sorted(lines.items()):
        axis.plot(*zip(*points), marker="o", label=label)
    axis.axhline(1, color="black", linewidth=1)
    axis.set(xscale="log", yscale="log", xlabel="length n", ylabel="time / time of plain attention")
    lengths = sorted({row["length"] for row in rows})
    for direction, ticks in ((axis.xaxis, lengths), (axis.yaxis, RATIO_TICKS)):
        direction.set_ticks([], minor=True)
        direction.set_ticks(ticks, labels=map(str, ticks))
    ratios = [1, *(row["ratio"] for row in rows)]
    axis.set_ylim(0.9 * min(ratios), 1.1 * max(ratios))
    axis.legend(fontsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=120)
