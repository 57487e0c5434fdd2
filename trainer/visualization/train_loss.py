"""Reads the training loss that a run has recorded for TensorBoard."""

from collections.abc import Iterable
from pathlib import Path

import tensorflow as tf


def read_train_loss(logs: Path) -> list[tuple[int, float]]:
    """Returns steps and losses from the TensorBoard files in a directory; empty without files."""
    scalars = []
    for file in logs.glob("*tfevents*"):
        for event in tf.compat.v1.train.summary_iterator(str(file)):
            for value in event.summary.value:
                if value.tag == "loss":
                    loss = float(tf.make_ndarray(value.tensor))
                    scalars.append((event.wall_time, event.step, loss))
    return drop_overwritten((step, loss) for _, step, loss in sorted(scalars))


def drop_overwritten(points: Iterable[tuple[int, float]]) -> list[tuple[int, float]]:
    """Drops the points that a run recorded again after it resumed from an earlier step.

    Example:

    >>> from trainer.visualization.train_loss import drop_overwritten
    >>> drop_overwritten([(100, 5.0), (200, 4.0), (300, 3.0), (200, 4.5)])
    [(100, 5.0), (200, 4.5)]
    """
    kept = []
    for step, value in points:
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, value))
    return kept
