"""Where exported models lie and how they are loaded: NAME/VERSION/ with integer versions, as
TensorFlow Serving reads them.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import tensorflow as tf
import tensorflow_text  # noqa: F401  (registers the tokenizer's operations, which the graph uses)

from trainer import atomic_files
from trainer.serving.translator import Translator

OUTPUTS = ("scores", "translations", "truncated")


def versions(directory: Path) -> list[int]:
    """The versions under saved_models/NAME, ascending; none where the directory does not exist."""
    if not directory.is_dir():
        return []
    return sorted(
        int(entry.name)
        for entry in directory.iterdir()
        if entry.is_dir() and _is_version(entry.name)
    )


def find(path: str | os.PathLike) -> Path:
    """The version directory that `path` stands for: itself, or the latest version in it.

    Args:
        path: saved_models/NAME/VERSION or saved_models/NAME.

    Raises:
        ValueError: if there is no SavedModel.
    """
    path = Path(path)
    if (path / "saved_model.pb").is_file():
        return path
    found = versions(path)
    if found and (path / str(found[-1]) / "saved_model.pb").is_file():
        return path / str(found[-1])
    state = "holds none" if path.is_dir() else "is a file" if path.exists() else "does not exist"
    raise ValueError(
        "Expected the directory of a SavedModel, saved_models/NAME or saved_models/NAME/VERSION. "
        f"Received: {path}, which {state}. Write one with `python -m trainer.export`."
    )


def load(path: str | os.PathLike, alpha: float | None = None) -> Translator:
    """Loads an exported translation model.

    Args:
        path: saved_models/NAME (its latest version) or saved_models/NAME/VERSION.
        alpha: exponent of the length penalty, where it is not to be the exported one.

    Raises:
        ValueError: if there is no SavedModel, it can't be read, or it does not translate.
    """
    directory = find(path)
    try:
        loaded = tf.saved_model.load(str(directory))
    except (OSError, ValueError, tf.errors.OpError) as error:
        raise ValueError(
            f"Expected a SavedModel that TensorFlow can read. Received: {directory} ({error}). "
            "Write it again with `python -m trainer.export`."
        ) from error
    signature = loaded.signatures.get("serving_default")
    outputs = tuple(sorted(signature.structured_outputs)) if signature is not None else ()
    if outputs != OUTPUTS:
        raise ValueError(
            f"Expected a SavedModel whose serving_default returns {', '.join(OUTPUTS)}. Received: "
            f"{directory}, which "
            f"returns {', '.join(outputs) or 'nothing'}. Write one with `python -m trainer.export`."
        )
    if alpha is None:
        return Translator(signature, loaded)
    options = loaded.defaults() | {"alpha": alpha}

    def best(text):
        answer = loaded.translate(text, **options)
        return answer | {name: answer[name][:, 0] for name in ("translations", "scores")}

    return Translator(best, loaded)


@contextlib.contextmanager
def new_version(directory: Path, version: int | None = None) -> Iterator[tuple[Path, Path]]:
    """A place to write the next version of a model, which gets its name only when it is complete.

    TensorFlow Serving loads a directory as soon as its name is an integer; so the model is written
    aside and renamed.

    Args:
        directory: saved_models/NAME, made where missing.
        version: a positive integer; one above the latest where omitted.

    Yields:
        The directory to write into, and the one that it becomes when the block ends without an
        error.

    Raises:
        ValueError: where the version exists, or the directory can't be written.
    """
    if version is not None and version < 1:
        raise ValueError(f"Expected the version to be a positive integer. Received: {version}.")
    if version is None:
        version = max(versions(directory), default=0) + 1
    final = directory / str(version)
    _refuse_existing(final)
    try:
        with atomic_files.whole_directory(final) as aside:
            yield aside, final
            _refuse_existing(final)
    except (OSError, tf.errors.OpError) as error:
        reason = getattr(error, "strerror", None) or getattr(error, "message", None) or error
        raise ValueError(
            f"Expected an export folder that can be written. Received: {directory} "
            f"({reason}). "
            "Choose another with --export_dir."
        ) from error


def _refuse_existing(final):
    if final.exists():
        raise ValueError(
            f"Expected a version that does not exist yet. Received: {final}, which does. "
            "Leave --version out to write the next one."
        )


def _is_version(name):
    return name.isascii() and name.isdigit() and not name.startswith("0")
