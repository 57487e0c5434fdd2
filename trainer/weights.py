"""Weights of a model directory's checkpoints: found by name, read, averaged."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2t_relpos.models import Transformer, TransformerConfig
from trainer.model_dir import ModelDirectory
from trainer.training.best_checkpoints import BestCheckpoints
from trainer.training.checkpoints import Checkpoints, restore_transformer


def find_checkpoint(directory: ModelDirectory, which: str | int) -> Path:
    """Where a checkpoint of a run lies.

    Args:
        directory: of the run.
        which: the step of one, "latest" for the last, or "best" for that with the best BLEU on the
            dev set.

    Raises:
        ValueError: if there is none such.
    """
    checkpoints, best = Checkpoints(directory.checkpoints), BestCheckpoints(directory.best)
    if which == "best":
        path = best.best()
        if path is None:
            raise ValueError(
                f"Expected a checkpoint chosen by dev BLEU in {directory.best}. Received: none. "
                "Train with --keep_best=1, or choose "
                "another one."
            )
        return path
    steps = checkpoints.steps()
    if which == "latest":
        if not steps:
            raise ValueError(
                f"Expected a checkpoint in {directory.checkpoints}. Received: none. Train the "
                "model first."
            )
        return checkpoints.path(steps[-1])
    if not str(which).isdecimal():
        raise ValueError(
            f"Expected the step of a checkpoint, 'latest' or 'best'. Received: {which!r}."
        )
    for kept in (checkpoints, best):
        if int(which) in kept.steps():
            return kept.path(int(which))
    found = sorted({*steps, *best.steps()})
    raise ValueError(
        f"Expected a checkpoint of step {which} in {directory.path}. Received: those of "
        f"{_listed(found)}. Choose one of these."
    )


def last_checkpoints(directory: ModelDirectory, count: int) -> list[Path]:
    """Where the last checkpoints of a run lie, the earliest first.

    Raises:
        ValueError: if there are fewer.
    """
    checkpoints = Checkpoints(directory.checkpoints)
    steps = checkpoints.steps()
    if len(steps) < count:
        raise ValueError(
            f"Expected at least {count} checkpoints in {directory.checkpoints}. Received: "
            f"{len(steps)}, those of {_listed(steps)}. "
            "Ask for fewer, or train with a larger --keep_checkpoints."
        )
    return [checkpoints.path(step) for step in steps[-count:]]


def load_transformer(directory: ModelDirectory, path: Path) -> Transformer:
    """The Transformer of a model directory with the weights of a checkpoint.

    Raises:
        ValueError: where the checkpoint is missing, damaged, or of another architecture.
    """
    transformer = Transformer(TransformerConfig.from_dict(directory.read_config()["architecture"]))
    ids = np.ones((1, 1), "int32")
    transformer({"inputs": ids, "targets": ids})
    restore_transformer(transformer, path)
    return transformer


def average(directory: ModelDirectory, paths: Sequence[Path]) -> Transformer:
    """The Transformer whose weights are the mean of checkpoints', summed in float64.

    What is no weight, such as states of random generators, is the last one's.

    Args:
        directory: of the run.
        paths: of its checkpoints.

    Raises:
        ValueError: where one is missing, damaged, or of another architecture.

    Reference: tensor2tensor `utils.avg_checkpoints`.
    """
    transformer = load_transformer(directory, paths[0])
    weights = [
        variable
        for variable in transformer.variables
        if np.issubdtype(np.dtype(variable.dtype), np.floating)
    ]
    sums = [np.zeros(weight.shape) for weight in weights]
    for path in paths:
        restore_transformer(transformer, path)
        for total, weight in zip(sums, weights):
            total += weight.numpy()
    for total, weight in zip(sums, weights):
        weight.assign(total / len(paths))
    return transformer


def _listed(steps):
    return f"step {', '.join(map(str, steps))}" if steps else "no step"
