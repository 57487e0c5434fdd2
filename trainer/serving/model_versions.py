"""Directories of exported models, NAME/VERSION/. TensorFlow Serving needs integer versions."""

import contextlib
import errno
import functools
import os
import re
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers ops of the tokenizer)

from .. import atomic_files
from .translator import Translator

# Outputs of `serving_default`. Earlier versions have no `complete`.
OUTPUTS = ("scores", "translations", "truncated")


def versions(directory: Path) -> list[int]:
    """Returns the versions in saved_models/NAME in ascending order."""
    if not directory.is_dir():
        return []
    names = [entry.name for entry in directory.iterdir() if entry.is_dir()]
    return sorted(int(name) for name in names if re.fullmatch("[1-9][0-9]*", name))


def find(path: str | os.PathLike) -> Path:
    """Returns the directory of a SavedModel: saved_models/NAME/VERSION, or the latest version.

    Raises:
        ValueError: if there is no SavedModel.
    """
    path = Path(path)
    if (path / "saved_model.pb").is_file():
        return path
    found = versions(path)
    if found and (path / str(found[-1]) / "saved_model.pb").is_file():
        return path / str(found[-1])
    state = "has none" if path.is_dir() else "is a file" if path.exists() else "does not exist"
    raise ValueError(
        "Expected the directory of a SavedModel, saved_models/NAME or saved_models/NAME/VERSION. "
        f"Received: {path}, which {state}. Write one with `python -m trainer.export`."
    )


def load(
    path: str | os.PathLike,
    alpha: float | None = None,
    *,
    beam_size: int | None = None,
    max_length: int | None = None,
    nbest: int | None = None,
    aligned: bool = False,
) -> Translator:
    """Loads an exported translation model.

    Args:
        path: saved_models/NAME (its latest version) or saved_models/NAME/VERSION.
        alpha, beam_size, max_length: as for the signature `translate`. Default: as exported.
        nbest: number of translations per sentence. Default: 1.
        aligned: whether translations have alignments.

    Raises:
        ValueError: if there is no SavedModel, it can't be read, it is not a translation model, or
            `nbest` is above the beam size. The graph checks the other options when it runs.
    """
    loaded = _load(find(path))
    # Arguments of the signature `translate`.
    options = {"beam_size": beam_size, "alpha": alpha, "max_length": max_length}
    options["num_results"] = nbest
    options = {name: value for name, value in options.items() if value is not None}
    call = loaded.signatures["serving_default"]
    if options:
        options = loaded.defaults() | options
        if nbest is not None and nbest > options["beam_size"]:
            raise ValueError(
                f"Expected --nbest to be at most the beam size, {int(options['beam_size'])}. "
                f"Received: {nbest}. Give a larger --beam_size."
            )
        call = functools.partial(loaded.translate, **options)
    return Translator(call, loaded, loaded.score if aligned else None)


def _load(directory):
    try:
        loaded = tf.saved_model.load(str(directory))
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"Expected a SavedModel that TensorFlow can read. Received: {directory} ({error}). "
            "Write it again with `python -m trainer.export`."
        ) from error
    signature = loaded.signatures.get("serving_default")
    outputs = tuple(sorted(signature.structured_outputs)) if signature is not None else ()
    if not {*OUTPUTS} <= {*outputs}:
        raise ValueError(
            f"Expected a SavedModel whose serving_default returns {', '.join(OUTPUTS)}. Received: "
            f"{directory}, which returns {', '.join(outputs) or 'nothing'}. Write one with `python "
            "-m trainer.export`, from a model for translation."
        )
    return loaded


@contextlib.contextmanager
def new_version(directory: Path, version: int | None = None) -> Iterator[tuple[Path, Path]]:
    """Creates the directory of a version of saved_models/NAME, by default of the next one.

    TensorFlow Serving loads every directory whose name is an integer. The model is therefore
    written to a directory with a temporary name, which is then renamed.

    Yields:
        The directory to write to, and its path after it is renamed.

    Raises:
        ValueError: if the version exists.
        OSError: if the directory can't be written.
    """
    if version is not None and version < 1:
        raise ValueError(f"Expected the version to be a positive integer. Received: {version}.")
    if version is None:
        version = max(versions(directory), default=0) + 1
    final = directory / str(version)
    _check_new(final)
    try:
        with atomic_files.atomic_directory(final) as temporary:
            yield temporary, final
            _check_new(final)
    except tf.errors.OpError as error:
        # Its message has the name and the attributes of an operation.
        full = os.strerror(errno.ENOSPC)
        if full in str(error):
            raise OSError(errno.ENOSPC, full, str(final)) from error
        raise


def _check_new(final):
    if final.exists():
        raise ValueError(
            f"Expected a version that does not exist yet. Received: {final}, which exists. "
            "Leave --version out to write the next one."
        )
