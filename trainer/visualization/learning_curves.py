"""Reads the learning curves that a training run has recorded."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from trainer.model_dir import ModelDirectory
from trainer.training.evaluations import Evaluations

Points = list[tuple[int, float]]


class LearningCurves(NamedTuple):
    """Pairs of step and value; empty where nothing was recorded. Losses are per target token."""

    train_loss: Points
    dev_loss: Points
    dev_bleu: Points
    label_smoothing: float


def read_learning_curves(directory: ModelDirectory) -> LearningCurves:
    """Reads the learning curves of a run.

    Raises:
        ValueError: if evaluations.json can't be read.
    """
    entries = Evaluations(directory.evaluations_file, until=float("inf"), writes=False).entries
    return LearningCurves(
        train_loss=drop_overwritten(_read_scalars(directory.logs / "train", "loss")),
        dev_loss=[(entry.step, entry.loss) for entry in entries],
        dev_bleu=[(entry.step, entry.bleu) for entry in entries if entry.bleu is not None],
        label_smoothing=directory.read_run().get("label_smoothing") or 0.0,
    )


def drop_overwritten(points: Iterable[tuple[int, float]]) -> Points:
    """Drops the points that a run recorded again after it resumed from an earlier step.

    Example:

    >>> from trainer.visualization.learning_curves import drop_overwritten
    >>> drop_overwritten([(100, 5.0), (200, 4.0), (300, 3.0), (200, 4.5)])
    [(100, 5.0), (200, 4.5)]
    """
    kept = []
    for step, value in points:
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, value))
    return kept


def _read_scalars(logs: Path, tag: str) -> Points:
    """Returns a scalar of all TensorBoard files in a directory, in the order of recording."""
    scalars = []
    for file in logs.glob("*tfevents*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.tag == tag:
                    scalar = float(tf.make_ndarray(value.tensor))
                    scalars.append((event.wall_time, event.step, scalar))
    return [(step, scalar) for _, step, scalar in sorted(scalars)]
