"""Atomic writes of files and directories: written to a temporary name, flushed, then
renamed.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path


@contextlib.contextmanager
def whole_file(path: str | os.PathLike) -> Iterator[Path]:
    """A place to write a file, which takes the name `path`, replacing what was there, when the
    block ends without an error.

    Yields:
        The path to write to: in the same directory, with the same suffix.
    """
    path = Path(path)
    directory = Path(tempfile.mkdtemp(prefix=f".writing-{path.stem}-", dir=path.parent))
    try:
        aside = directory / path.name
        yield aside
        flush(aside)
        os.replace(aside, path)
        flush(path.parent)
    finally:
        shutil.rmtree(directory, ignore_errors=True)


@contextlib.contextmanager
def whole_directory(path: str | os.PathLike) -> Iterator[Path]:
    """A place to write a directory, which takes the name `path` when the block ends without an
    error.

    A directory that has the name already is removed once the new one is complete.

    Yields:
        An empty directory next to `path`.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = Path(tempfile.mkdtemp(prefix=f".writing-{path.name}-", dir=path.parent))
    try:
        aside.chmod(0o755)  # mkdtemp's 0700 would lock out other users
        yield aside
        for entry in aside.rglob("*"):
            flush(entry)
        flush(aside)
        if path.exists():
            remove_directory(path)
        aside.rename(path)
        flush(path.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def check_writable(path: str | os.PathLike):
    """Raises OSError if a file of this name can't be written; changes nothing."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if path.exists() and not os.access(path, os.W_OK):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
    if not path.exists() or path.is_file():
        shutil.rmtree(tempfile.mkdtemp(prefix=".writing-", dir=path.parent))


def write_text(path: str | os.PathLike, text: str):
    """Writes a UTF-8 file, whole or not at all; into a pipe or device, directly."""
    path = Path(path)
    if path.exists() and not path.is_file():
        path.write_text(text, encoding="utf-8")
        return
    with whole_file(path) as aside:
        aside.write_text(text, encoding="utf-8")


def remove_directory(path: str | os.PathLike):
    """Removes a directory, which loses its name before its content, so that no half of it is ever
    taken for the whole.
    """
    path = Path(path)
    aside = Path(tempfile.mkdtemp(prefix=f".writing-{path.name}-", dir=path.parent))
    path.rename(aside / path.name)
    shutil.rmtree(aside)


def remove_leftovers(directory: str | os.PathLike):
    """Removes what a killed process was writing aside in `directory`."""
    for entry in Path(directory).glob(".writing-*"):
        shutil.rmtree(entry, ignore_errors=True)


def flush(path: Path):
    """Waits until a file or a directory's entries are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
