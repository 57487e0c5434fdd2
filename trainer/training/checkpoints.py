"""Checkpoints of a run, `checkpoints/step-000123/`, with all state needed to resume exactly.

state.json      format version, step, shapes and dtypes of all arrays by key
model.npz       variables of the Transformer: weights and states of seed generators
optimizer.npz   variables of the optimizer, including the number of updates

The keys of arrays are `variable_keys.model_keys` and `keras_compat.optimizer_keys`.
"""

import contextlib
import errno
import json
import os
import re
import zipfile
from pathlib import Path

import numpy as np
from absl import logging

from trainer import atomic_files
from trainer.training.keras_compat import optimizer_keys
from trainer.training.training_model import TrainingModel
from trainer.training.variable_keys import model_keys

FORMAT_VERSION = 3
# Exceptions that reading a corrupt checkpoint can raise.
CORRUPT = (FileNotFoundError, EOFError, KeyError, RuntimeError, TypeError, ValueError)
CORRUPT += (zipfile.BadZipFile,)


class CheckpointError(ValueError):
    """A checkpoint or another file of a run can't be written."""


class FormatError(ValueError):
    """A checkpoint has another format version."""


class Checkpoints:
    """The checkpoints of a run.

    Args:
        directory: folder of the checkpoints; created if missing.
        keep: number of checkpoints to keep, at least 1.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 5):
        self.directory = Path(directory)
        self.keep = keep

    def steps(self) -> list[int]:
        """Returns the steps of all checkpoints in ascending order."""
        if not self.directory.is_dir():
            return []
        names = (re.fullmatch(r"step-(\d{6,})", entry.name) for entry in self.directory.iterdir())
        return sorted(int(name[1]) for name in names if name)

    def path(self, step: int) -> Path:
        """Returns the folder of a step's checkpoint."""
        return self.directory / f"step-{step:06d}"

    def save(self, model: TrainingModel, step: int, **entries) -> Path:
        """Writes a checkpoint atomically, verifies it, and removes old checkpoints.

        Args:
            model: the model in training.
            step: number of batches the model was trained on.
            **entries: further entries of state.json.

        Raises:
            OSError: if the checkpoint can't be written. Existing checkpoints are kept.
        """
        groups = {
            name: {key: variable.value.numpy() for key, variable in group.items()}
            for name, group in _groups(model).items()
        }
        state = {"format_version": FORMAT_VERSION, "step": step} | entries
        state |= {name: _signatures(arrays) for name, arrays in groups.items()}
        with atomic_files.atomic_directory(self.path(step)) as folder:
            for name, arrays in groups.items():
                np.savez(folder / f"{name}.npz", **arrays)
            (folder / "state.json").write_text(json.dumps(state), encoding="utf-8")
            try:
                _read(folder, groups)
            except CORRUPT as error:
                raise OSError(f"its verification failed: {error}") from error
        for old in self._surplus():
            atomic_files.remove_directory(self.path(old))
        return self.path(step)

    def _surplus(self):
        return self.steps()[: -self.keep]

    def restore_latest(self, model: TrainingModel) -> int:
        """Restores the last readable checkpoint.

        Each later, corrupt checkpoint is renamed to `corrupt-step-000123`, with a warning.

        Args:
            model: a compiled model of the same architecture, with the same class of optimizer.

        Returns:
            The number of batches the model was trained on; 0 without a checkpoint.

        Raises:
            ValueError: if a checkpoint has another architecture, optimizer or format version, or if
                all checkpoints are corrupt.
            OSError: if a checkpoint can't be read, for example without permission.
        """
        if self.directory.is_dir():
            atomic_files.remove_leftovers(self.directory)
        steps, corrupt = self.steps(), []
        for step in reversed(steps):
            try:
                groups = _read(self.path(step), ["model", "optimizer"])
            except FormatError as error:
                raise ValueError(f"{error} Train in another --model_dir.") from error
            except CORRUPT as error:
                logging.warning("Ignoring the corrupt checkpoint %s: %s", self.path(step), error)
                corrupt.append(self.path(step))
                continue
            remedy = f"{self.path(step)} is incompatible. Train in another --model_dir."
            for name, variables in _groups(model).items():
                _assign(variables, groups[name], f"this run's {name}", remedy)
            for path in corrupt:
                # Under its name, it would displace a checkpoint of the resumed run.
                with contextlib.suppress(OSError):
                    path.rename(path.with_name(f"corrupt-{path.name}"))
            return step
        if steps:
            raise ValueError(
                f"All {len(steps)} checkpoints in {self.directory} are corrupt. Remove them and "
                "model.keras to train from the beginning, or train in another --model_dir."
            )
        return 0


def read_weights(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the variables of a checkpoint's Transformer by key.

    Args:
        path: folder of the checkpoint, see `Checkpoints.path`.

    Returns:
        float32 weights, and uint32 states of seed generators, which only resumed runs use.

    Raises:
        ValueError: if the checkpoint is missing, corrupt, or has another format version.
    """
    try:
        return _read(Path(path), ["model"])["model"]
    except FormatError:
        raise
    except CORRUPT as error:
        raise ValueError(
            f"Can't read the checkpoint {path} ({error}). Use another one, such as an earlier step."
        ) from error


def restore_transformer(transformer, path: str | os.PathLike):
    """Assigns the weights of a checkpoint to a Transformer.

    Raises:
        ValueError: if the checkpoint is missing or corrupt, or has another architecture.
    """
    remedy = f"{path} is incompatible. Use a checkpoint of the same --model_dir."
    _assign(model_keys(transformer), read_weights(path), "this model", remedy)


def _assign(variables, arrays, owner, remedy):
    expected, received = _signatures(variables), _signatures(arrays)
    if expected != received:
        difference = _first_difference(expected, received)
        raise ValueError(f"Expected the {len(expected)} arrays of {owner}. {difference} {remedy}")
    for key, variable in variables.items():
        variable.assign(arrays[key])


def _groups(model):
    return {
        "model": model_keys(model.transformer),
        "optimizer": optimizer_keys(model.optimizer, model.transformer),
    }


def read_state(folder: Path) -> dict:
    """Returns the content of state.json.

    Raises:
        FormatError: if it has another format version.
        One of `CORRUPT`: if it can't be read.
    """
    state = json.loads((folder / "state.json").read_text(encoding="utf-8"))
    version = state["format_version"]
    if version != FORMAT_VERSION:
        age = "a newer" if version > FORMAT_VERSION else "an older"
        raise FormatError(
            f"The checkpoint {folder} has format version {version}, written by {age} version of "
            f"this program. This version reads format {FORMAT_VERSION}."
        )
    return state


def _read(folder, names):
    """Returns arrays by group and key. The checksums of the ZIP format detect corruption."""
    state = read_state(folder)
    groups = {}
    for name in names:
        # If the file is corrupt, np.load does not close it.
        try:
            with open(folder / f"{name}.npz", "rb") as file, np.load(file) as arrays:
                groups[name] = {key: arrays[key] for key in state[name]}
        except OSError as error:
            if error.errno == errno.EINVAL:  # zipfile looks for its index at a negative offset.
                raise ValueError(f"{name}.npz has no valid index") from error
            raise
        if _signatures(groups[name]) != state[name]:
            raise ValueError(f"{name}.npz does not match state.json")
    return groups


def _signatures(arrays):
    """Returns [shape, dtype] of arrays or variables by key."""
    return {key: [list(x.shape), str(np.dtype(x.dtype))] for key, x in arrays.items()}


def _first_difference(expected, received):
    def describe(signature):
        return "none" if signature is None else f"shape {signature[0]}, {signature[1]}"

    pairs = {key: (expected.get(key), received.get(key)) for key in [*expected, *received]}
    key, (one, other) = next(item for item in pairs.items() if item[1][0] != item[1][1])
    return f"First difference: {key}, expected {describe(one)}, received {describe(other)}."
