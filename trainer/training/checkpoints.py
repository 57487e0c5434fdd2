"""Everything that a run needs to go on as if it had never stopped, in `checkpoints/step-000123/`.

state.json      format version, step, the shapes of all arrays, and for one of the best its BLEU
model.npz       the Transformer's variables: weights and the states of its random generators
optimizer.npz   the optimizer's, the number of updates among them
"""

import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
from absl import logging

from trainer import atomic_files
from trainer.training.training_model import TrainingModel

FORMAT_VERSION = 1
# What reading a checkpoint that is not whole may raise.
DAMAGED = (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile)


class CheckpointError(ValueError):
    """What a run has learned can't be written."""


class Checkpoints:
    """The checkpoints of a run.

    Args:
        directory: where they lie; made where missing.
        keep: how many of the last are kept.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 5):
        if keep < 1:
            raise ValueError(f"Expected to keep at least 1 checkpoint. Received: {keep}.")
        self.directory = Path(directory)
        self.keep = keep

    def steps(self) -> list[int]:
        """The steps that there are checkpoints of, ascending."""
        if not self.directory.is_dir():
            return []
        names = (re.fullmatch(r"step-(\d{6,})", entry.name) for entry in self.directory.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def path(self, step: int) -> Path:
        """Where the checkpoint of a step lies."""
        return self.directory / f"step-{step:06d}"

    def save(self, model: TrainingModel, step: int, **facts) -> Path:
        """Writes a checkpoint, reads it back, gives it its name, then removes those that are too many.

        Args:
            model: what is trained.
            step: the number of batches that it has seen.
            **facts: what else state.json is to say.

        Raises:
            CheckpointError: where it can't be written; the checkpoints that were there stay.
        """
        groups = {
            name: [variable.value.numpy() for variable in group]
            for name, group in _groups(model).items()
        }
        state = {"format_version": FORMAT_VERSION, "step": step} | facts
        state |= {name: [_signature(array) for array in arrays] for name, arrays in groups.items()}
        try:
            with atomic_files.whole_directory(self.path(step)) as aside:
                for name, arrays in groups.items():
                    np.savez(
                        aside / f"{name}.npz", **{_key(i): array for i, array in enumerate(arrays)}
                    )
                (aside / "state.json").write_text(json.dumps(state), encoding="utf-8")
                _read(aside)
            for old in self._too_many():
                atomic_files.remove_directory(self.path(old))
        except DAMAGED as error:
            raise self.unwritable(self.path(step), error) from error
        return self.path(step)

    def _too_many(self):
        """Steps whose checkpoints are to be removed."""
        return self.steps()[: -self.keep]

    def unwritable(self, path: Path, error: Exception) -> CheckpointError:
        """The error to raise where a file of the run can't be written."""
        return CheckpointError(
            f"Expected to write {path}. Received: {getattr(error, 'strerror', None) or error}. Make room for it or give "
            f"permission to write, then run the same command again: it goes on from {self._where_it_goes_on()}."
        )

    def _where_it_goes_on(self):
        saved = self.steps()
        return self.path(saved[-1]) if saved else "the beginning"

    def restore_latest(self, model: TrainingModel) -> int:
        """Restores the last checkpoint that is whole, warning of later ones that are not.

        Args:
            model: a compiled model of the same architecture and with the same kind of optimizer.

        Returns:
            The number of batches that it has seen; 0 where there is no checkpoint.

        Raises:
            ValueError: where a checkpoint is of another architecture, optimizer or format, or none of them is whole.
        """
        if self.directory.is_dir():
            atomic_files.remove_leftovers(self.directory)
        steps = self.steps()
        for step in reversed(steps):
            try:
                state, groups = _read(self.path(step))
            except DAMAGED as error:
                logging.warning("Leaving out the damaged checkpoint %s: %s", self.path(step), error)
                continue
            for name, variables in _groups(model).items():
                _assign(
                    variables,
                    groups[name],
                    f"this run's {name}",
                    self.path(step),
                    "Train in another --model_dir.",
                )
            return step
        if steps:
            raise ValueError(
                f"Expected at least one whole checkpoint in {self.directory}. Received: {len(steps)} damaged ones. "
                "Remove them to train from the beginning, or train in another --model_dir."
            )
        return 0


def read_weights(path: str | os.PathLike) -> list[np.ndarray]:
    """The values of a checkpoint's `Transformer.variables`, in their order.

    Args:
        path: of the checkpoint, as of `Checkpoints.path`.

    Returns:
        Weights, which are of type float32, and among them uint32 states of random generators, which mean nothing but to a run
        that goes on.

    Raises:
        ValueError: where the checkpoint is missing or damaged.
    """
    try:
        return _read(Path(path), ["model"])[1]["model"]
    except DAMAGED as error:
        raise ValueError(
            f"Expected a whole checkpoint. Received: {path} ({error}). Give another one, such as an earlier step."
        ) from error


def restore_transformer(transformer, path: str | os.PathLike):
    """Gives a Transformer the values of a checkpoint.

    Raises:
        ValueError: where the checkpoint is missing, damaged, or of another architecture.
    """
    _assign(
        transformer.variables,
        read_weights(path),
        "this model",
        path,
        "Give one of the same --model_dir.",
    )


def _assign(variables, arrays, owner, path, remedy):
    expected, received = (
        [_signature(variable) for variable in variables],
        [_signature(array) for array in arrays],
    )
    if expected != received:
        raise ValueError(
            f"Expected the {len(expected)} arrays of {owner}. Received: {path}, which holds {len(received)}"
            f"{_first_difference(expected, received)}. {remedy}"
        )
    for variable, array in zip(variables, arrays):
        variable.assign(array)


def _groups(model):
    return {"model": model.transformer.variables, "optimizer": model.optimizer.variables}


def read_state(directory: Path) -> dict:
    """What a checkpoint's state.json holds; raises one of `DAMAGED` where it can't be read."""
    state = json.loads((directory / "state.json").read_text(encoding="utf-8"))
    if state["format_version"] > FORMAT_VERSION:
        raise ValueError(
            f"it has the format version {state['format_version']}, newer than this program's"
        )
    return state


def _read(directory, names=("model", "optimizer")):
    """The state and the arrays of a checkpoint; the ZIP format's checksums find damaged bytes."""
    state = read_state(directory)
    groups = {}
    for name in names:
        with (
            open(directory / f"{name}.npz", "rb") as file,
            np.load(file, allow_pickle=False) as arrays,
        ):
            groups[name] = [arrays[_key(i)] for i in range(len(state[name]))]
        if [_signature(array) for array in groups[name]] != state[name]:
            raise ValueError(f"{name}.npz does not hold what state.json says")
    return state, groups


def _signature(array):
    return [list(array.shape), str(np.dtype(getattr(array.dtype, "as_numpy_dtype", array.dtype)))]


def _key(index):
    return f"variable_{index:05d}"


def _first_difference(expected, received):
    for i, (one, other) in enumerate(zip(expected, received)):
        if one != other:
            return f", number {i} of shape {other[0]} and type {other[1]} instead of {one[0]} and {one[1]}"
    return ""
