"""Finds the checkpoints of a model directory and loads or averages their weights."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np

from t2t_relpos.models import Transformer, TransformerConfig
from trainer.model_dir import ModelDirectory
from trainer.training.best_checkpoints import BestCheckpoints
from trainer.training.checkpoints import Checkpoints, restore_transformer


def find_checkpoint(directory: ModelDirectory, which: str | int) -> Path:
    """Returns the folder of a checkpoint.

    Args:
        directory: model directory of the run.
        which: a step, "latest", or "best" for the best BLEU on the dev set.

    Raises:
        ValueError: if there is no such checkpoint.
    """
    checkpoints, best = Checkpoints(directory.checkpoints), BestCheckpoints(directory.best)
    if which == "best":
        path = best.best()
        if path is None:
            raise ValueError(
                f"Expected a checkpoint chosen by dev BLEU in {directory.best}. Received: none. "
                "Train with --keep_best=1, or choose another one."
            )
        return path
    if which == "latest":
        return last_checkpoints(directory, 1)[0]
    if not str(which).isdecimal():
        raise ValueError(
            f"Expected the step of a checkpoint, 'latest' or 'best'. Received: {which!r}."
        )
    for kept in (checkpoints, best):
        if int(which) in kept.steps():
            return kept.path(int(which))
    found = sorted({*checkpoints.steps(), *best.steps()})
    raise ValueError(
        f"Expected a checkpoint of step {which} in {directory.path}. Received: those of "
        f"{_listed(found)}. Choose one of these."
    )


def last_checkpoints(directory: ModelDirectory, count: int) -> list[Path]:
    """Returns the folders of the last checkpoints of a run, the earliest first.

    Raises:
        ValueError: if there are fewer.
    """
    checkpoints = Checkpoints(directory.checkpoints)
    steps = checkpoints.steps()
    if not steps:
        raise ValueError(
            f"Expected a checkpoint in {directory.checkpoints}. Received: none. Train the model "
            "first."
        )
    if len(steps) < count:
        raise ValueError(
            f"Expected at least {count} checkpoints in {directory.checkpoints}. Received: "
            f"{len(steps)}, those of {_listed(steps)}. Ask for fewer, or train with a larger "
            "--keep_checkpoints."
        )
    return [checkpoints.path(step) for step in steps[-count:]]


def load_transformer(directory: ModelDirectory, path: Path) -> Transformer:
    """Returns the Transformer of a model directory with the weights of a checkpoint.

    Raises:
        ValueError: if the checkpoint is missing, corrupt, or of another architecture.
    """
    transformer = Transformer(TransformerConfig.from_dict(directory.read_config()["architecture"]))
    ids = np.ones((1, 1), "int32")
    transformer({"inputs": ids, "targets": ids})
    restore_transformer(transformer, path)
    return transformer


def average(directory: ModelDirectory, paths: Sequence[Path]) -> Transformer:
    """Returns the Transformer with the mean of the weights of checkpoints, summed in float64.

    States of random generators are those of the last checkpoint.

    Args:
        directory: model directory of the run.
        paths: folders of its checkpoints.

    Raises:
        ValueError: if one is missing, corrupt, or of another architecture.

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
