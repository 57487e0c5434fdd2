"""Atomic writes: a file or directory is written under a temporary name, flushed, then renamed."""

import contextlib
import errno
import glob
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

CHOOSE_OUTPUT = "Choose an --output in a folder that exists and can be written."


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[Path]:
    """Replaces the file `path` atomically when the block ends without an error.

    Yields:
        A temporary path to write to, with the same name, in a subdirectory of `path`'s directory.
    """
    path = Path(path)
    with _temporary_directory(path) as directory:
        temporary = directory / path.name
        yield temporary
        flush(temporary)
        os.replace(temporary, path)
        flush(path.parent)


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Replaces the directory `path` atomically when the block ends without an error.

    Temporary directories that killed processes left there are removed after a day.

    Yields:
        An empty temporary directory next to `path`. Missing parent directories are created.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path.parent, f"{path.stem}-", seconds=86_400)
    with _temporary_directory(path) as temporary:
        temporary.chmod(0o755)  # mkdtemp's 0700 would lock out other users
        yield temporary
        for entry in temporary.rglob("*"):
            flush(entry)
        flush(temporary)
        with _temporary_directory(path) as replaced:
            if path.exists():
                path.rename(replaced / path.name)
            temporary.rename(path)
            flush(path.parent)


@contextlib.contextmanager
def _temporary_directory(path):
    names = {"prefix": f".writing-{path.stem}-", "dir": path.parent}
    try:
        with tempfile.TemporaryDirectory(**names, ignore_cleanup_errors=True) as directory:
            yield Path(directory)
    except OSError as error:
        # Name the file, not the temporary one. Errors of h5py have a message only.
        error.strerror, error.filename = error.strerror or str(error), str(path)
        raise


def check_writable(path: str | os.PathLike):
    """Raises OSError if the file `path` can't be written. The file is not changed."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if not path.exists() or path.is_file():
        with _temporary_directory(path):
            pass


@contextlib.contextmanager
def explaining_write_errors(description: str, path: str | os.PathLike, remedy: str, errors=OSError):
    """Converts a write error inside the `with` block to a ValueError with a remedy.

    Args:
        description: name of the file or directory in the message, such as "an --output_dir".
        path: the path that the block writes.
        remedy: last sentence of the message.
        errors: the type of the errors, or a tuple of types.
    """
    try:
        yield
    except errors as error:
        # Errors of TensorFlow contain the name and the attributes of an operation.
        full = os.strerror(errno.ENOSPC)
        reason = full if full in str(error) else getattr(error, "strerror", None) or error
        raise ValueError(
            f"Expected {description} that can be written. Received: {path} ({reason}). {remedy}"
        ) from error


def write_text(path: str | os.PathLike, text: str):
    """Writes a UTF-8 file atomically, or directly if `path` is a pipe or a device."""
    path = Path(path)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def remove_directory(path: str | os.PathLike):
    """Renames a directory, then removes it, so that no reader sees a partly removed directory."""
    path = Path(path)
    with _temporary_directory(path) as temporary:
        path.rename(temporary / path.name)


def remove_leftovers(directory: str | os.PathLike, name: str = "", seconds: float = 0.0):
    """Removes files that killed processes wrote `seconds` ago, for paths that start with `name`."""
    for entry in Path(directory).glob(f".writing-{glob.escape(name)}*"):
        with contextlib.suppress(FileNotFoundError):
            if not seconds or time.time() - entry.stat().st_mtime > seconds:
                shutil.rmtree(entry, ignore_errors=True)


def flush(path: Path):
    """Flushes a file, or the list of entries of a directory, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
