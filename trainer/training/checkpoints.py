"""Checkpoints of a run, the last and the best ones, with all state needed to resume exactly.

`checkpoints/step-000123/` has the last checkpoints, `best/step-000123/` those with the best scores
on the dev set:

state.json      format version, step, shapes and dtypes of all arrays by key
model.npz       variables of the Transformer: weights and states of seed generators
optimizer.npz   variables of the optimizer, including the number of updates

The keys of arrays are attribute paths, `encoder_layers/0/...`. Keras's automatic names depend on
the objects that a process created before: the second model has variables `transformer_1/...`.
"""

import contextlib
import errno
import json
import math
import os
import re
import zipfile
from collections import deque
from pathlib import Path

import keras
import numpy as np
from absl import logging

from t2t_relpos.models import TransformerConfig

from .. import atomic_files
from ..model_dir import ModelDirectory
from ..streams import write_line
from .training_model import TrainingModel, make_model

FORMAT_VERSION = 3
# Exceptions that reading a corrupt checkpoint can raise.
CORRUPT = (FileNotFoundError, EOFError, KeyError, RuntimeError, TypeError, ValueError)
CORRUPT += (zipfile.BadZipFile,)
_PART_TYPES = (keras.layers.Layer, keras.random.SeedGenerator, keras.Variable)


class FormatError(ValueError):
    """A checkpoint has another format version."""


class Checkpoints:
    """The checkpoints of a run in a folder, which `save` creates. The last `keep` are kept."""

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
        return self.directory / f"step-{step:06d}"

    def save(self, model: TrainingModel, step: int, **entries) -> Path:
        """Writes a checkpoint atomically, verifies it, and removes old checkpoints.

        `step` is the number of batches that the model was trained on. `entries` are added to
        state.json.

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
        """Restores the last readable checkpoint of a compiled model. Returns its step, or 0.

        Each later, corrupt checkpoint is renamed to `corrupt-step-000123`, with a warning.

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


def rank(metric: str, score: float) -> float:
    """Returns a number that is higher for better scores. A lower loss is better."""
    return -score if metric == "dev_loss" else score


class BestCheckpoints(Checkpoints):
    """The checkpoints of a run with the best scores on the dev set.

    Each checkpoint stores its score and the metric, "dev_bleu", "dev_chrf" or "dev_loss", in its
    state.json. `metric` is that of new checkpoints.
    """

    def __init__(self, directory: str | os.PathLike, keep: int = 5, metric: str = "dev_bleu"):
        super().__init__(directory, keep)
        self._metric = metric

    def scores(self) -> dict[int, float]:
        """Returns scores by step, best first. Of equal scores, the earlier step comes first.

        Corrupt checkpoints are ignored with a warning.
        """
        scores, ranks = {}, {}
        for step in self.steps():
            try:
                state = read_state(self.path(step))
                metric = state.get("best_metric", "dev_bleu")
                scores[step] = float(state[metric])
                ranks[step] = rank(metric, scores[step])
            except CORRUPT as error:
                logging.warning("Ignoring the corrupt checkpoint %s: %s", self.path(step), error)
        return {step: scores[step] for step in sorted(scores, key=lambda step: -ranks[step])}

    def best(self) -> Path | None:
        return next((self.path(step) for step in self.scores()), None)

    def offer(self, model: TrainingModel, step: int, score: float) -> bool:
        """Writes a checkpoint if it is among the best. Returns whether it did.

        An existing checkpoint of the same step, from a run that was killed and resumed, is kept if
        its score is at least as good.
        """
        if self.directory.is_dir():
            atomic_files.remove_leftovers(self.directory)
        new = rank(self._metric, score)
        ranks = {step: rank(self._metric, value) for step, value in self.scores().items()}
        if ranks.get(step, -math.inf) >= new:
            return False
        better = [other for other, value in ranks.items() if other != step and value >= new]
        if len(better) >= self.keep:
            return False
        self.save(model, step, best_metric=self._metric, **{self._metric: score})
        return True

    def _surplus(self):
        kept = list(self.scores())[: self.keep]
        return [step for step in self.steps() if step not in kept]


def read_weights(path: str | os.PathLike) -> dict[str, np.ndarray]:
    """Returns the variables of the Transformer of a checkpoint's folder by key.

    They are float32 weights, and uint32 states of seed generators, which only resumed runs use.

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
    """Returns the content of state.json. Raises FormatError, or one of `CORRUPT`."""
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


def model_keys(model: keras.layers.Layer) -> dict[str, keras.Variable]:
    """Returns the variables of a built model by attribute path, in the order of `model.variables`.

    Raises:
        ValueError: if a variable of the model is not an attribute of the model or its layers.

    Example:
        >>> import keras
        >>> from trainer.training.checkpoints import model_keys
        >>> layer = keras.layers.Dense(2)
        >>> layer.build((None, 3))
        >>> list(model_keys(layer))
        ['kernel', 'bias']
    """
    paths = {id(v): "/".join(path) for path, v in _walk(model) if isinstance(v, keras.Variable)}
    missing = [variable.path for variable in model.variables if id(variable) not in paths]
    if missing:
        raise ValueError(
            "Expected every variable to be an attribute of the model or of one of its layers, "
            f"so that checkpoints can name it. Received: {', '.join(missing)}."
        )
    return {paths[id(variable)]: variable for variable in model.variables}


def optimizer_keys(
    optimizer: keras.optimizers.Optimizer, model: keras.layers.Layer
) -> dict[str, keras.Variable]:
    """Returns the variables of a built optimizer by key.

    The key of a slot is the key of its variable plus the name of the slot. The key of another
    variable is its name.
    """
    # Keras names a slot after its variable, with "_" for "/".
    prefixes = {f"{v.path.replace('/', '_')}_": key for key, v in model_keys(model).items()}
    keys = {}
    for variable in optimizer.variables:
        name = variable.name
        prefix = max((p for p in prefixes if name.startswith(p)), key=len, default=None)
        key = name if prefix is None else f"{prefixes[prefix]}/{name.removeprefix(prefix)}"
        keys[key] = variable
    return keys


def _walk(model):
    """Yields (path, part) of layers, seed generators and variables in breadth-first order."""
    queue, seen = deque([((), model)]), {id(model)}
    while queue:
        path, owner = queue.popleft()
        yield path, owner
        if isinstance(owner, keras.Variable):
            continue
        for inner, value in _attributes(owner):
            if isinstance(value, _PART_TYPES) and id(value) not in seen:
                seen.add(id(value))
                queue.append(((*path, *inner), value))


def _attributes(owner):
    """Yields (path, value) of public attributes, entries of public containers, and variables."""
    for name, value in vars(owner).items():
        if isinstance(value, keras.Variable):
            # Dense stores its kernel in `_kernel` and has a property `kernel`.
            yield (name.lstrip("_"),), value
        elif name.startswith("_"):
            continue
        elif isinstance(value, (list, tuple)):
            yield from (((name, str(index)), entry) for index, entry in enumerate(value))
        elif isinstance(value, dict):
            yield from (((name, str(key)), entry) for key, entry in value.items())
        else:
            yield (name,), value


def find_checkpoint(directory: ModelDirectory, which: str | int) -> Path:
    """Returns the folder of a checkpoint: of a step, "latest", or "best" by its metric.

    Raises:
        ValueError: if there is no such checkpoint.
    """
    latest, best = Checkpoints(directory.checkpoints), BestCheckpoints(directory.best)
    paths = {step: kept.path(step) for kept in (best, latest) for step in kept.steps()}
    if which == "best":
        path = best.best()
    elif which == "latest":
        path = next((latest.path(step) for step in reversed(latest.steps())), None)
    else:
        path = paths.get(int(which)) if str(which).isdecimal() else None
    if path is None:
        raise ValueError(
            f"Expected a checkpoint of {directory.path}: a step, 'latest', or with --keep_best "
            f"'best'. Received: {which!r}, with checkpoints of the steps "
            f"{', '.join(map(str, sorted(paths))) or 'none'}."
        )
    return path


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


def make_transformer(directory: ModelDirectory, weights: dict[str, np.ndarray]) -> keras.Model:
    """Returns the model of a model directory with weights from `read_weights`.

    Raises:
        ValueError: if they are those of another architecture.
    """
    architecture = TransformerConfig.from_dict(directory.read_config()["architecture"])
    model = make_model(architecture, directory.kind)
    remedy = f"Use a checkpoint of {directory.path}."
    _assign(model_keys(model), weights, "this model", remedy)
    return model


def load_model(directory: ModelDirectory, checkpoint: str | int | None = None):
    """Returns the model of model.keras, or that of a checkpoint, whose folder is printed.

    Raises:
        ValueError: if the file or the checkpoint is missing or corrupt.
    """
    if checkpoint is None:
        return directory.load_model()
    path = find_checkpoint(directory, checkpoint)
    write_line(f"checkpoint {path}")
    return make_transformer(directory, read_weights(path))
