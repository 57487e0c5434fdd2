"""Draws the figure of README.md: python docs/figures/overview.py

Left: the relative-position id of every pair of positions. Right: the cost of a layer, from
attention.csv in docs/dev/measurements.
"""

from charts import draw_ratios, pyplot, read_measurements, save

PROCESSOR, COMMIT = "Intel Xeon (AMX)", "cb92a5a"
LENGTH, K = 9, 3


def draw_ids(axis):
    """Draws clip(j - i, -K, K) for each query i and key j, with a color for each id."""
    ids = [[min(max(j - i, -K), K) for j in range(LENGTH)] for i in range(LENGTH)]
    axis.imshow(ids, cmap="coolwarm", vmin=-K - 1, vmax=K + 1)
    for i, row in enumerate(ids):
        for j, value in enumerate(row):
            text = f"{value:+d}".replace("+0", "0").replace("-", "\N{MINUS SIGN}")
            axis.text(j, i, text, ha="center", va="center", fontsize=8, color="#1c2128")
    axis.set(title=f"Distance from query to key, clipped at K = {K}", xlabel="key j")
    axis.set(ylabel="query i", xticks=range(LENGTH), yticks=range(LENGTH))
    axis.grid(visible=False)
    axis.tick_params(length=0)


def main():
    layer = {"part": "layer", "passes": "both", "implementation": "relative", "options": ""}
    measured = {"processor": PROCESSOR, "commit": COMMIT, "compiled": "no"}
    rows = read_measurements("attention.csv", **measured, **layer)
    figure, axes = pyplot.subplots(1, 2, figsize=(9, 3.9), width_ratios=(1, 1.2))
    draw_ids(axes[0])
    draw_ratios(axes[1], "Training step of an encoder layer", rows)
    axes[1].set(ylabel="time / time without relative positions", ylim=(0, 1.5))
    axes[1].legend(loc="lower left")
    save(figure, "overview")


if __name__ == "__main__":
    main()
