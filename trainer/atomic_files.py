"""Writing of files and directories: under a temporary name, flushed, then renamed.

Symbolic links are followed. Streams are opened and written: pipes, devices, and descriptors such as
`/dev/stdout`.
"""

import contextlib
import errno
import glob
import os
import re
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SECONDS_PER_DAY = 86_400
_STANDARD_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
# How names of temporary directories start.
_TEMPORARY = ".writing-"


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[Path]:
    """Replaces the file `path` when the block ends without an error.

    A stream receives the content when the block ends, unless its reader has exited.

    Yields:
        A temporary path to write to, with the same name.
    """
    target = Path(os.path.realpath(path))
    parent = tempfile.gettempdir() if is_stream(path) else target.parent
    with naming(path), _temporary_directory(Path(parent, target.name)) as directory:
        yield (temporary := directory / target.name)
        _flush(temporary)
        if is_stream(path):
            with contextlib.suppress(BrokenPipeError), _open_stream(path) as stream:
                stream.write(temporary.read_bytes())
            return
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

    A stream receives the data whenever the file is flushed.
    """
    with naming(path):
        if is_stream(path):
            with _open_stream(path) as stream:
                yield stream
        else:
            with atomic_file(path) as temporary, open(temporary, "wb") as file:
                yield file


def write_text(path: str | os.PathLike, text: str):
    """Writes a UTF-8 file atomically, or writes the text to a stream."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


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
    """Returns whether a path is a pipe, a device or a descriptor of this process."""
    is_other = os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    return is_other or _descriptor(path) is not None


def _descriptor(path):
    """Returns the descriptor that `path` names, such as 1 for /dev/stdout, or None."""
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", os.fspath(path))
    return int(found[1]) if found else _STANDARD_STREAMS.get(os.fspath(path))


def _open_stream(path):
    descriptor = _descriptor(path)
    if descriptor is None:
        return open(path, "wb")
    sys.stdout.flush()
    sys.stderr.flush()
    # Opened by its path, a log to which the output is appended would be truncated, and a pipe whose
    # reader has exited would block.
    return open(os.dup(descriptor), "wb")


def check_writable(path: str | os.PathLike):
    """Raises OSError if a file can't be written. The file is not changed, and no pipe is opened."""
    with naming(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not is_stream(path):
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
            error.filename = os.fspath(path)
        raise


@contextlib.contextmanager
def _temporary_directory(path):
    """Yields a new directory next to `path`. Removes those of killed processes after a day."""
    path = Path(os.path.realpath(path))
    prefix = path.stem[:40]  # the longest name of a file has 255 bytes
    remove_leftovers(path.parent, f"{prefix}-", seconds=_SECONDS_PER_DAY)
    names = {"prefix": f"{_TEMPORARY}{prefix}-", "dir": path.parent}
    with tempfile.TemporaryDirectory(**names, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def remove_leftovers(directory: str | os.PathLike, name: str = "", seconds: float = 0.0):
    """Removes temporary directories that killed processes left in `directory`.

    Args:
        directory: a directory.
        name: only those of files whose names start with it. Default: all.
        seconds: only those that have not changed for longer. Default: 0, all, also those of running
            processes.
    """
    for entry in Path(directory).glob(f"{_TEMPORARY}{glob.escape(name)}*"):
        with contextlib.suppress(FileNotFoundError):
            # Appending to a file does not change the time of its directory.
            changed = max(path.stat().st_mtime for path in (entry, *entry.rglob("*")))
            if not seconds or time.time() - changed > seconds:
                shutil.rmtree(entry, ignore_errors=True)


def _flush(path):
    """Flushes a file, or the list of entries of a directory, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
