"""The losses and dev BLEU of a training run: read from its model directory, and drawn."""

import contextlib
from pathlib import Path

import tensorflow as tf
from plotly import graph_objects as go
from plotly.subplots import make_subplots

from .model_dir import ModelDirectory
from .training.dev_set import DevResults


def draw_curves(directory: ModelDirectory) -> go.Figure | None:
    """Returns a figure of the losses by step and, if recorded, of dev BLEU; None without records.

    Raises:
        ValueError: if evaluations.json can't be read.
    """
    train_loss = read_train_loss(directory.logs / "train")
    dev = DevResults(directory.evaluations_file, until=float("inf"), writes=False).entries
    dev_bleu = [(entry.step, entry.bleu) for entry in dev if entry.bleu is not None]
    if not train_loss and not dev:
        return None
    # The dev loss is computed without label smoothing.
    label_smoothing = directory.read_run().get("label_smoothing") or 0.0
    smoothing = f" (label smoothing {label_smoothing:g})" if label_smoothing else ""
    titles = ["Loss per target token (nats)", "Dev BLEU"][: 2 if dev_bleu else 1]
    figure = make_subplots(1, len(titles), subplot_titles=titles)
    for name, points, column in (
        (f"training loss{smoothing}", train_loss, 1),
        ("dev loss", [(entry.step, entry.loss) for entry in dev], 1),
        ("dev BLEU", dev_bleu, 2),
    ):
        if points:
            steps, values = zip(*points)
            figure.add_trace(go.Scatter(x=steps, y=values, name=name), row=1, col=column)
    return figure.update_xaxes(title="step").update_layout(height=400)


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
