"""Draws the figures of docs/results.md: python docs/figures/results.py

Reads paper_tables.csv and length_buckets.csv in docs/dev/measurements.
"""

import statistics

from charts import BLUE, ORANGE, TEXT, pyplot, read_measurements, save

LABELS = {"table1": "position encoding", "table2": "clipping distance K", "table3": "tables used"}
PAPER = {
    "table1": "paper: newstest2014 en-de",
    "table2": "paper: newstest2013 en-de",
    "table3": "paper: newstest2013 en-de",
}


def scores(experiment: str, test_set: str) -> dict[str, list[float]]:
    """Returns the BLEU scores of each variant, one for each seed."""
    by_variant = {}
    for row in read_measurements("paper_tables.csv", experiment=experiment, test_set=test_set):
        by_variant.setdefault(row["variant"], []).append(float(row["bleu"]))
    return by_variant


def draw_table(experiment: str):
    """Draws the scores of both seeds and their mean, and the paper's scores."""
    ours, paper = scores(experiment, "test_2016_flickr"), scores(experiment, PAPER[experiment])
    figure, axes = pyplot.subplots(1, 2, figsize=(8, 3.2))
    names = list(ours)
    for index, name in enumerate(names):
        axes[0].plot([index] * len(ours[name]), ours[name], "o", color=BLUE, alpha=0.5)
        axes[0].plot(index, statistics.mean(ours[name]), "_", color=BLUE, markersize=18)
        axes[1].plot(index, *paper.get(name, [float("nan")]), "o", color=ORANGE)
    axes[0].set(title="Multi30k, test_2016_flickr", ylabel="BLEU")
    axes[1].set(title=PAPER[experiment].replace("paper: ", "WMT 2014, "))
    for axis in axes:
        labels = [name.replace("k = ", "") for name in names]
        axis.set_xticks(range(len(names)), labels)
        axis.set(xlabel=LABELS[experiment], xlim=(-0.5, len(names) - 0.5), ylim=(0, 32))
    save(figure, experiment)


def draw_lengths():
    """Draws BLEU by source length, averaged over the seeds."""
    by_variant = {}
    for row in read_measurements("length_buckets.csv"):
        buckets = by_variant.setdefault(row["variant"], {})
        buckets.setdefault(row["source_tokens"], []).append(float(row["bleu"]))
    figure, axis = pyplot.subplots(figsize=(8, 3.2))
    for variant, buckets in by_variant.items():
        axis.plot(list(buckets), [statistics.mean(bleu) for bleu in buckets.values()], "o-")
        axis.lines[-1].set_label(variant)
    axis.axvline(1.5, color=TEXT, linestyle=":")
    axis.text(1.55, 33, "longer than in training")
    axis.set(xlabel="tokens of the source sentence", ylabel="BLEU", ylim=(0, None))
    axis.legend()
    save(figure, "lengths")


if __name__ == "__main__":
    for table in LABELS:
        draw_table(table)
    draw_lengths()
