"""Functions that find the checkpoints of a model directory and load or average their weights."""

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
        which: a step, "latest", or "best" for the highest dev BLEU.

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
    found = ", ".join(map(str, sorted({*checkpoints.steps(), *best.steps()})))
    raise ValueError(
        f"Expected a checkpoint of step {which} in {directory.path}. Received: "
        f"{f'checkpoints of steps {found}' if found else 'no checkpoints'}."
    )


def last_checkpoints(directory: ModelDirectory, count: int) -> list[Path]:
    """Returns the folders of the last `count` checkpoints of a run, in the order of their steps.

    Raises:
        ValueError: if there are fewer than `count` checkpoints.
    """
    checkpoints = Checkpoints(directory.checkpoints)
    steps = checkpoints.steps()
    if len(steps) < count:
        received = f"{len(steps)}, of steps {', '.join(map(str, steps))}" if steps else "none"
        raise ValueError(
            f"Expected at least {count} checkpoints in {directory.checkpoints}. Received: "
            f"{received}. Use fewer, or train longer or with a larger --keep_checkpoints."
        )
    return [checkpoints.path(step) for step in steps[-count:]]


def load_transformer(directory: ModelDirectory, path: Path) -> Transformer:
    """Returns the Transformer of a model directory with the weights of a checkpoint.

    Raises:
        ValueError: if the checkpoint is missing or corrupt, or has another architecture.
    """
    transformer = Transformer(TransformerConfig.from_dict(directory.read_config()["architecture"]))
    ids = np.ones((1, 1), "int32")
    transformer({"inputs": ids, "targets": ids})
    restore_transformer(transformer, path)
    return transformer


def load_model(directory: ModelDirectory, checkpoint: str | int | None = None):
    """Returns the Transformer of model.keras, or that of a checkpoint, whose folder is printed.

    Raises:
        ValueError: if the file or the checkpoint is missing or corrupt.
    """
    if checkpoint is None:
        return directory.load_model()
    path = find_checkpoint(directory, checkpoint)
    print(f"checkpoint {path}", flush=True)
    return load_transformer(directory, path)


def average(directory: ModelDirectory, paths: Sequence[Path]) -> Transformer:
    """Returns a Transformer with the mean weights of several checkpoints.

    Weights are summed in float64. States of seed generators are those of the last checkpoint.

    Args:
        directory: model directory of the run.
        paths: folders of the checkpoints.

    Raises:
        ValueError: if a checkpoint is missing or corrupt, or has another architecture.

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
