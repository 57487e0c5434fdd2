"""What a model directory recorded of its training, over steps."""

from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import tensorflow as tf

from trainer.model_dir import ModelDirectory
from trainer.training.evaluations import Evaluations

Points = list[tuple[int, float]]


class LearningCurves(NamedTuple):
    """Pairs of a step and a value; empty where nothing was recorded.

    Attributes:
        train_loss: per target token, from TensorBoard's files.
        dev_loss: per target token, from evaluations.json.
        dev_bleu: from evaluations.json.
        label_smoothing: of the training loss; the dev loss has none.
    """

    train_loss: Points
    dev_loss: Points
    dev_bleu: Points
    label_smoothing: float


def learning_curves(directory: ModelDirectory) -> LearningCurves:
    """Reads the curves of a run.

    Raises:
        ValueError: where evaluations.json can't be read.
    """
    entries = Evaluations(directory.evaluations_file, until=float("inf"), writes=False).entries
    dev_bleu = [(entry.step, entry.bleu) for entry in entries if entry.bleu is not None]
    dev_loss = [(entry.step, entry.loss) for entry in entries]
    return LearningCurves(
        _scalars(directory.logs / "train", "loss"),
        dev_loss,
        dev_bleu,
        directory.read_run().get("label_smoothing") or 0.0,
    )


def without_forgotten(points: Iterable[tuple[int, float]]) -> Points:
    """Points in the order in which they were recorded, less those that a run forgot by going on from an earlier step.

    Example:

    >>> without_forgotten([(100, 5.0), (200, 4.0), (300, 3.0), (200, 4.5)])
    [(100, 5.0), (200, 4.5)]
    """
    kept = []
    for step, value in points:
        while kept and kept[-1][0] >= step:
            kept.pop()
        kept.append((step, value))
    return kept


def _scalars(logs: Path, tag: str) -> Points:
    if not logs.is_dir():
        return []
    # Takes seconds to import.
    from tensorboard.backend.event_processing.event_accumulator import TENSORS, EventAccumulator

    # 0: all of them.
    read = EventAccumulator(
        str(logs), size_guidance={TENSORS: 0}, purge_orphaned_data=False
    ).Reload()
    if tag not in read.Tags()[TENSORS]:
        return []
    events = sorted(read.Tensors(tag), key=lambda event: event.wall_time)
    return without_forgotten(
        (event.step, float(tf.make_ndarray(event.tensor_proto))) for event in events
    )
