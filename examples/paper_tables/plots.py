"""PNG plots of the results. Requires matplotlib."""

import math
from pathlib import Path

from examples.paper_tables.report import mean
from examples.paper_tables.scoring import Result, bucket_labels
from trainer.png_plots import make_figure, save_figure


def plot_variants(path: Path, results: list[list[Result]]):
    """Plots the BLEU of every variant on each test set, and the paper's results.

    Args:
        path: the PNG file.
        results: for every variant, one result per seed.
    """
    trial = results[0][0].trial
    variants = [seeds[0].trial.variant for seeds in results]
    figure, axes = make_figure(1, len(trial.dataset.tests) + bool(trial.variant.paper))
    for axis, split in zip(axes[0], trial.dataset.tests):
        axis.set(title=f"Ours: {split}", ylabel="sacreBLEU")
        for index, seeds in enumerate(results):
            values = [result.bleu(split) for result in seeds if result.scores]
            axis.plot([index] * len(values), values, "o", color="tab:blue", alpha=0.6)
            average = mean(values) if values else math.nan
            axis.plot([index], [average], "_", color="black", markersize=16)
    for column in trial.variant.paper:
        values = [variant.paper[column] for variant in variants]
        values = [value if isinstance(value, float) else math.nan for value in values]
        axes[0, -1].plot(values, "o", label=column)
        axes[0, -1].set(title="Paper", ylabel="tokenized BLEU")
        axes[0, -1].legend(frameon=False)
    for axis in axes[0]:
        labels = [variant.label for variant in variants]
        axis.set_xticks(range(len(labels)), labels, rotation=20, ha="right")
        axis.margins(x=0.15)
        axis.set_ylim(bottom=max(0.0, axis.get_ylim()[0]))
    save_figure(figure, path)


def plot_lengths(path: Path, results: list[list[Result]], max_train_length: int):
    """Plots the BLEU of every variant over source length, averaged over seeds.

    Args:
        path: the PNG file.
        results: for every variant, one result per seed.
        max_train_length: length of the longest training sentence in tokens.
    """
    figure, axes = make_figure(1, 1)
    axis, labels = axes[0, 0], bucket_labels(max_train_length)
    for seeds in results:
        bleu = [[bleu for _, bleu in result.buckets] for result in seeds if result.buckets]
        if bleu:
            means = [mean(values) for values in zip(*bleu)]
            means = [math.nan if value is None else value for value in means]
            axis.plot(means, "o-", label=seeds[0].trial.variant.label)
            axis.legend(frameon=False)
    axis.axvline(1.5, color="gray", linestyle=":")
    axis.text(
        1.5, 0.02, " longer than in training", color="gray", transform=axis.get_xaxis_transform()
    )
    axis.set_xticks(range(len(labels)), labels)
    axis.set(xlabel="source tokens", ylabel="sacreBLEU", title="Trained on short sentences")
    axis.set_ylim(bottom=max(0.0, axis.get_ylim()[0]))
    save_figure(figure, path)
