"""PNG plots of learning curves and table norms. matplotlib is an optional dependency."""

import contextlib
import importlib.util
from pathlib import Path

import numpy as np
import tensorflow as tf

from t2t_relpos.models.attention_maps import KINDS, NormLine
from trainer import atomic_files
from trainer.model_dir import ModelDirectory
from trainer.training.dev_set import DevResult, DevResults


def write_plots(folder: Path, directory: ModelDirectory, norms: dict) -> list[str]:
    """Writes learning_curves.png and table_norms.png to a folder, created if missing.

    Args:
        norms: row norms of the tables of the model, from `read_table_norms`.

    Returns:
        A status line for each plot: the file, or the reason why the plot was skipped.
    """
    train_loss = read_train_loss(directory.logs / "train")
    evaluations = DevResults(directory.evaluations_file, until=float("inf"), writes=False).entries
    folder.mkdir(parents=True, exist_ok=True)
    lines = []
    if train_loss or evaluations:
        label_smoothing = directory.read_run().get("label_smoothing") or 0.0
        figure = plot_curves(train_loss, evaluations, label_smoothing)
        lines.append(f"Wrote {save_figure(figure, folder / 'learning_curves.png')}")
    else:
        lines.append("Skipped learning_curves.png: the model directory has no training log.")
    if any(norms.values()):
        lines.append(f"Wrote {save_figure(plot_table_norms(norms), folder / 'table_norms.png')}")
    else:
        lines.append("Skipped table_norms.png: the model has no relative-position tables.")
    return lines


def read_train_loss(logs: Path) -> list[tuple[int, float]]:
    """Returns (step, loss) pairs from the TensorBoard files in a directory.

    If a resumed run has recorded steps again, the later points replace the earlier ones.
    """
    scalars = []
    for file in logs.glob("*tfevents*"):
        # The last event is incomplete if the run was killed.
        with contextlib.suppress(tf.errors.DataLossError):
            for event in tf.compat.v1.train.summary_iterator(str(file)):
                for value in event.summary.value:
                    if value.tag == "loss":
                        loss = float(tf.make_ndarray(value.tensor))
                        scalars.append((event.wall_time, event.step, loss))
    points = []
    for _, step, loss in sorted(scalars):
        while points and points[-1][0] >= step:
            points.pop()
        points.append((step, loss))
    return points


def plot_curves(
    train_loss: list[tuple[int, float]], evaluations: list[DevResult], label_smoothing: float
):
    """Returns a figure of the losses by step and, if recorded, of dev BLEU."""
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


def plot_table_norms(norms: dict[str, list[NormLine]]):
    """Returns a figure with a line per layer, or per layer and head if heads share no tables.

    Rows of subplots are the kinds of attention with tables; columns are a^K and a^V.
    """
    from matplotlib import colormaps

    kinds = [kind for kind in KINDS if norms[kind.id]]
    figure, axes = make_figure(len(kinds), 2)
    for kind, row in zip(kinds, axes):
        for axis, name in zip(row, ("a^K", "a^V")):
            axis.set(title=f"{kind.title}: ${name}$", ylabel="norm of the table row")
            axis.set_xlabel("distance (key − query position)")
        lines = norms[kind.id]
        colors = colormaps["viridis"](np.linspace(0.0, 0.85, lines[-1].layer))
        for line in lines:
            axis, label = row[line.column], f"layer {line.layer}"
            is_new = label not in axis.get_legend_handles_labels()[1]
            style = {"color": colors[line.layer - 1], "linewidth": 1}
            axis.plot(line.distances, line.norms, ".-", label=label if is_new else None, **style)
        for axis in row:
            if axis.lines:
                axis.set_ylim(bottom=0)
                axis.legend(frameon=False, fontsize="small")
            else:
                axis.text(0.5, 0.5, "no such table", ha="center", transform=axis.transAxes)
    return figure


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
    with atomic_files.atomic_file(path) as temporary:
        figure.savefig(temporary)
    return path
