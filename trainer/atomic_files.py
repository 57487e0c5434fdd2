"""Writing of files and directories: under a temporary name, flushed, then renamed.

Symbolic links are followed. The standard output, pipes and devices are opened and written.
"""

import contextlib
import errno
import os
import shutil
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

STANDARD = "-"
STANDARD_OUTPUT = "the standard output"
_STANDARD_OUTPUTS = STANDARD, "/dev/stdout"
# How names of temporary directories start.
_TEMPORARY = ".writing-"


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[Path]:
    """Replaces the file `path` when the block ends without an error.

    Yields:
        A temporary path to write to, with the same name.
    """
    target = Path(os.path.realpath(path))
    with naming(path), _temporary_directory(target) as directory:
        yield (temporary := directory / target.name)
        _flush(temporary)
        try:
            os.replace(temporary, target)
        except OSError as error:
            if error.errno != errno.EBUSY:
                raise
            # A mount point, such as a file that Docker mounts, can't be replaced.
            shutil.copyfile(temporary, target)
        _flush(target.parent)


@contextlib.contextmanager
def output_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a file to write bytes to. It replaces `path` when the block ends without an error.

    Pipes, devices, and the standard output, `-` or /dev/stdout, receive the data whenever the file
    is flushed.
    """
    with naming(path):
        if os.fspath(path) in _STANDARD_OUTPUTS:
            sys.stdout.flush()
            # Opened by its path, a log to which the output is appended would be truncated.
            yield sys.stdout.buffer
        elif is_stream(path):
            with open(path, "wb") as stream:
                yield stream
        else:
            with atomic_file(path) as temporary, open(temporary, "wb") as file:
                yield file


def write_text(path: str | os.PathLike, text: str):
    """Writes UTF-8 text, as `output_file`."""
    with output_file(path) as file:
        file.write(text.encode())


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Writes the directory `path` when the block ends without an error. Creates missing parents.

    An existing directory is replaced, and missing for a moment.

    Yields:
        An empty temporary directory on the same file system.
    """
    target = Path(os.path.realpath(path))
    with naming(path):
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_directory(target) as directory:
            temporary = directory / "new"
            temporary.mkdir()
            yield temporary
            for entry in (*temporary.rglob("*"), temporary):
                _flush(entry)
            if target.is_dir():
                target.rename(directory / "old")
            temporary.rename(target)
            _flush(target.parent)


def remove_directory(path: str | os.PathLike):
    """Renames a directory, then removes it, so that no reader sees a partly removed directory."""
    with naming(path), _temporary_directory(path) as temporary:
        Path(path).rename(temporary / "old")


def is_stream(path: str | os.PathLike) -> bool:
    """Returns whether a path is the standard output, a pipe or a device."""
    is_other = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return is_other or os.fspath(path) in _STANDARD_OUTPUTS


def check_writable(path: str | os.PathLike):
    """Raises OSError if a file can't be written. The file is not changed, and no pipe is opened."""
    if is_stream(path):
        return
    with naming(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        with _temporary_directory(path):
            pass


@contextlib.contextmanager
def naming(path):
    """Names `path` in OSErrors that name a temporary file or no file."""
    try:
        yield
    except OSError as error:
        # Errors of h5py have a message only.
        error.strerror = error.strerror or str(error)
        if error.filename is None or _TEMPORARY in os.fsdecode(error.filename):
            error.filename = STANDARD_OUTPUT if path == STANDARD else os.fspath(path)
        raise


@contextlib.contextmanager
def _temporary_directory(path):
    """Yields a new directory next to `path`, whose name starts as that of `path`."""
    path = Path(os.path.realpath(path))
    prefix = f"{_TEMPORARY}{path.stem[:40]}-"  # the longest name of a file has 255 bytes
    options = {"prefix": prefix, "dir": path.parent, "ignore_cleanup_errors": True}
    with tempfile.TemporaryDirectory(**options) as directory:
        yield Path(directory)


def remove_leftovers(directory: str | os.PathLike):
    """Removes the temporary directories in `directory`, also those of running processes."""
    for entry in Path(directory).glob(f"{_TEMPORARY}*"):
        shutil.rmtree(entry, ignore_errors=True)


def _flush(path):
    """Flushes a file, or the list of entries of a directory, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
