"""PNG plots of learning curves and table norms. matplotlib is an optional dependency."""

import importlib.util
from pathlib import Path

import numpy as np

from trainer import atomic_files
from trainer.model_dir import ModelDirectory
from trainer.training.dev_results import Evaluation, Evaluations
from trainer.visualization.attention_maps import KINDS
from trainer.visualization.relative_tables import row_norms, table_distances
from trainer.visualization.train_loss import read_train_loss


def write_plots(folder: Path, directory: ModelDirectory, tables: dict) -> list[str]:
    """Writes learning_curves.png and table_norms.png.

    Args:
        folder: output folder; created if missing.
        directory: model directory with the records of the training run.
        tables: tables of the model, from `read_tables`.

    Returns:
        For each plot a status line: the file, or why it was skipped.

    Raises:
        OSError: if the folder can't be written.
        ValueError: if evaluations.json can't be read.
    """
    train_loss = read_train_loss(directory.logs / "train")
    evaluations = Evaluations(directory.evaluations_file, until=float("inf"), writes=False).entries
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    if train_loss or evaluations:
        label_smoothing = directory.read_run().get("label_smoothing") or 0.0
        figure = plot_curves(train_loss, evaluations, label_smoothing)
        lines.append(f"Wrote {save_figure(figure, folder / 'learning_curves.png')}")
    else:
        lines.append("Skipped learning_curves.png: the model directory has no training log.")
    if any(table is not None for layers in tables.values() for table in layers[0]):
        lines.append(f"Wrote {save_figure(plot_table_norms(tables), folder / 'table_norms.png')}")
    else:
        lines.append("Skipped table_norms.png: the model has no relative-position tables.")
    return lines


def plot_curves(
    train_loss: list[tuple[int, float]], evaluations: list[Evaluation], label_smoothing: float
):
    """Returns a figure of the losses over steps and, if recorded, of dev BLEU."""
    dev_loss = [(entry.step, entry.loss) for entry in evaluations]
    dev_bleu = [(entry.step, entry.bleu) for entry in evaluations if entry.bleu is not None]
    figure, axes = make_figure(1, 2 if dev_bleu else 1)
    losses, bleu = axes[0, 0], axes[0, -1]
    # The dev loss is computed without label smoothing.
    smoothing = f" (label smoothing {label_smoothing:g})" if label_smoothing else ""
    if train_loss:
        losses.plot(*zip(*train_loss), "-", label=f"training{smoothing}")
    if dev_loss:
        losses.plot(*zip(*dev_loss), "o-", markersize=4, label="dev")
    losses.set(title="Loss", xlabel="step", ylabel="loss per target token (nats)")
    losses.legend(frameon=False)
    if dev_bleu:
        bleu.plot(*zip(*dev_bleu), "o-", markersize=4, color="tab:green")
        bleu.set(title="Dev BLEU", xlabel="step", ylabel="sacreBLEU", ylim=(0, None))
    return figure


def plot_table_norms(tables: dict):
    """Returns a figure with one line per layer, or per layer and head if heads have own tables.

    Rows of subplots are the kinds of attention with tables; columns are a^K and a^V.
    """
    kinds = [kind for kind in KINDS if any(table is not None for table in tables[kind.id][0])]
    figure, axes = make_figure(len(kinds), 2)
    for row, kind in zip(axes, kinds):
        for axis, name, layers in zip(row, ("a^K", "a^V"), zip(*tables[kind.id])):
            axis.set(
                title=f"{kind.title}: ${name}$",
                xlabel="distance (key − query position)",
                ylabel="norm of the table row",
            )
            if layers[0] is None:
                axis.text(0.5, 0.5, "no such table", ha="center", transform=axis.transAxes)
            else:
                _plot_layers(axis, layers)
    return figure


def _plot_layers(axis, layers):
    from matplotlib import colormaps

    colors = colormaps["viridis"](np.linspace(0.0, 0.85, len(layers)))
    for number, (table, color) in enumerate(zip(layers, colors), start=1):
        norms = row_norms(table)
        style = {"color": color, "linewidth": 1, "alpha": 1.0 if len(norms) == 1 else 0.5}
        for head, line in enumerate(norms):
            label = None if head else f"layer {number}"
            axis.plot(table_distances(table), line, ".-", label=label, **style)
    axis.set_ylim(bottom=0)
    axis.legend(frameon=False, fontsize="small")


def has_matplotlib() -> bool:
    """Returns whether matplotlib is installed."""
    return importlib.util.find_spec("matplotlib") is not None


def make_figure(rows: int, columns: int):
    """Returns a figure and its axes, an array `[rows, columns]`."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5 * columns, 3.6 * rows), dpi=150, layout="constrained")
    axes = figure.subplots(rows, columns, squeeze=False)
    for axis in axes.flat:
        axis.spines[["top", "right"]].set_visible(False)
        axis.grid(alpha=0.25)
    return figure, axes


def save_figure(figure, path: Path) -> Path:
    """Writes a figure to a PNG file and returns its path."""
    with atomic_files.whole_file(path) as temporary:
        figure.savefig(temporary)
    return path
