"""PNGs of experiments. Needs matplotlib."""

import math
from pathlib import Path

from examples.paper_tables.report import mean
from examples.paper_tables.scoring import Result, bucket_labels
from trainer.visualization.matplotlib_figures import make_figure, save_figure


def plot_rows(path: Path, results: list[list[Result]]):
    """BLEU of every row on each test set, a mark for each seed and a line for their mean, beside the paper's.

    Args:
        path: the PNG.
        results: of every row, a result for each seed.
    """
    rows = [of_row[0].trial.row for of_row in results]
    tests, paper = results[0][0].trial.sentences.tests, list(rows[0].paper)
    figure, axes = make_figure(1, len(tests) + bool(paper))
    for axis, split in zip(axes[0], tests):
        axis.set(title=f"Ours: {split}", ylabel="sacreBLEU")
        for place, of_row in enumerate(results):
            values = [result.bleu(split) for result in of_row if result.scores]
            axis.plot([place] * len(values), values, "o", color="tab:blue", alpha=0.6)
            axis.plot(
                [place], [mean(values) if values else math.nan], "_", color="black", markersize=16
            )
    for column in paper:
        values = [row.paper[column] for row in rows]
        axes[0, -1].plot(
            [value if isinstance(value, float) else math.nan for value in values], "o", label=column
        )
        axes[0, -1].set(title="The paper", ylabel="tokenised BLEU")
        axes[0, -1].legend(frameon=False)
    for axis in axes[0]:
        axis.set_xticks(range(len(rows)), [row.label for row in rows], rotation=20, ha="right")
        axis.margins(x=0.15)
    save_figure(figure, path)


def plot_lengths(path: Path, results: list[list[Result]], longest: int):
    """BLEU over the length of the source, a line for every row: the mean over seeds.

    Args:
        path: the PNG.
        results: of every row, a result for each seed.
        longest: tokens of the longest sentence that was trained on.
    """
    figure, axes = make_figure(1, 1)
    axis, labels = axes[0, 0], bucket_labels(longest)
    for of_row in results:
        of_seeds = [[bleu for _, bleu in result.buckets] for result in of_row if result.buckets]
        if of_seeds:
            means = [mean(of_bucket) for of_bucket in zip(*of_seeds)]
            axis.plot(
                [math.nan if value is None else value for value in means],
                "o-",
                label=of_row[0].trial.row.label,
            )
            axis.legend(frameon=False)
    axis.axvline(1.5, color="gray", linestyle=":")
    axis.text(
        1.5, 0.02, " longer than trained on", color="gray", transform=axis.get_xaxis_transform()
    )
    axis.set_xticks(range(len(labels)), labels)
    axis.set(xlabel="tokens of the source", ylabel="sacreBLEU", title="Trained on short sentences")
    save_figure(figure, path)
