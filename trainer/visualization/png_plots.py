"""PNGs of learning curves and of tables' norms. Needs matplotlib."""

from pathlib import Path

import numpy as np

from trainer.visualization.learning_curves import LearningCurves
from trainer.visualization.matplotlib_figures import make_figure, save_figure
from trainer.visualization.table_statistics import distances, row_norms

_TITLES = {
    "encoder": "encoder self-attention",
    "decoder": "decoder self-attention",
    "cross": "decoder to encoder",
}


def write_plots(folder: Path, curves: LearningCurves, tables: dict) -> tuple[list[Path], list[str]]:
    """Writes learning_curves.png and table_norms.png.

    Args:
        folder: made where missing.
        curves: of the run.
        tables: of the model, as `attention_maps.tables` gives them.

    Returns:
        The files, and for each that there is nothing to draw in, why.

    Raises:
        OSError: where the folder can't be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    files, missing = [], []
    if curves.train_loss or curves.dev_loss:
        files.append(save_figure(_draw_curves(curves), folder / "learning_curves.png"))
    else:
        missing.append("No learning curves: the model directory records no training.")
    if any(table is not None for layers in tables.values() for layer in layers for table in layer):
        files.append(save_figure(_draw_norms(tables), folder / "table_norms.png"))
    else:
        missing.append("No norms of tables: the model has no relative position tables.")
    return files, missing


def _draw_curves(curves):
    """Losses over steps, and beside them BLEU where there is any."""
    figure, axes = make_figure(1, 2 if curves.dev_bleu else 1)
    losses, bleu = axes[0, 0], axes[0, -1]
    training = (
        f"training (label smoothing {curves.label_smoothing:g})"
        if curves.label_smoothing
        else "training"
    )
    for points, label, style in (
        (curves.train_loss, training, "-"),
        (curves.dev_loss, "dev", "o-"),
    ):
        if points:
            losses.plot(*zip(*points), style, markersize=4, label=label)
    losses.set(title="Loss", xlabel="step", ylabel="per target token (nats)")
    losses.legend(frameon=False)
    if curves.dev_bleu:
        bleu.plot(*zip(*curves.dev_bleu), "o-", markersize=4, color="tab:green")
        bleu.set(title="Dev BLEU", xlabel="step", ylabel="sacreBLEU", ylim=(0, None))
    return figure


def _draw_norms(tables):
    """A row for every kind of attention with tables, a column for a^K and a^V, a line for every layer (and head with its own)."""
    from matplotlib import colormaps

    parts = [
        part for part, layers in tables.items() if any(table is not None for table in layers[0])
    ]
    figure, axes = make_figure(len(parts), 2)
    for row, part in zip(axes, parts):
        for column, (axis, name) in enumerate(zip(row, ("a^K", "a^V"))):
            axis.set(
                title=f"${name}$, {_TITLES[part]}",
                xlabel="distance, key less query (positions)",
                ylabel="norm of the row",
            )
            layers = [layer[column] for layer in tables[part]]
            if layers[0] is None:
                axis.text(
                    0.5, 0.5, "the model has no such table", ha="center", transform=axis.transAxes
                )
                continue
            for number, (table, place) in enumerate(
                zip(layers, np.linspace(0.0, 0.85, len(layers)))
            ):
                _plot_norms(axis, table, f"layer {number + 1}", colormaps["viridis"](place))
            axis.set_ylim(bottom=0)
            axis.legend(frameon=False, fontsize="small")
    return figure


def _plot_norms(axis, table, label, colour):
    norms = row_norms(table)
    for head, line in enumerate(norms):
        alpha = 1.0 if len(norms) == 1 else 0.5
        axis.plot(
            distances(table),
            line,
            ".-",
            color=colour,
            linewidth=1,
            alpha=alpha,
            label=None if head else label,
        )
