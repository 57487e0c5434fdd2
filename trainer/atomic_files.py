"""Writing of files and directories: atomically, through links, and to streams.

A file or directory is written under a temporary name, flushed, then renamed. Symbolic links are
followed: the link stays, and the file that it refers to is replaced. A stream is a pipe, a device
or a descriptor of a process, such as `/dev/stdout`. It is never replaced: bytes are written to it.
"""

import contextlib
import ctypes
import errno
import glob
import io
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_SECONDS_PER_DAY = 86_400
_STANDARD_STREAMS = {"/dev/stdin": 0, "/dev/stdout": 1, "/dev/stderr": 2}
# Constants of renameat2, from Linux's fcntl.h and fs.h.
_AT_FDCWD, _RENAME_EXCHANGE = -100, 2
# How names of temporary directories start.
_TEMPORARY = ".writing-"


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike) -> Iterator[Path]:
    """Replaces the file `path` atomically when the block ends without an error.

    A link is followed, and a replaced file keeps its mode and owner. If `path` is a stream, the
    content is written to it when the block ends, unless its reader has exited.

    Yields:
        A temporary path to write to, with the same name, in a temporary directory.
    """
    with naming(path):
        if is_stream(path):
            with tempfile.TemporaryDirectory(prefix=_TEMPORARY) as directory:
                temporary = Path(directory) / Path(path).name
                yield temporary
                with (
                    contextlib.suppress(BrokenPipeError),
                    open(temporary, "rb") as file,
                    _open_stream(path) as stream,
                ):
                    shutil.copyfileobj(file, stream)
        else:
            target = _follow_links(path)
            with _temporary_directory(target) as directory:
                temporary = directory / target.name
                yield temporary
                flush(temporary)
                _replace_file(temporary, target)


@contextlib.contextmanager
def output_file(path: str | os.PathLike) -> Iterator[BinaryIO]:
    """Opens a file to write bytes to. It replaces `path` when the block ends without an error.

    A stream receives the data whenever the file is flushed.
    """
    # Errors that the block raises may be those of other files: only writes are named.
    if is_stream(path):
        with naming(path):
            stream = _open_stream(path)
        with stream:
            yield stream
        return
    with contextlib.ExitStack() as stack:
        with naming(path):
            target = _follow_links(path)
            temporary = stack.enter_context(_temporary_directory(target)) / target.name
            opened = io.BufferedWriter(_NamedFile(temporary, path))
        with opened:
            yield opened
        with naming(path):
            flush(temporary)
            _replace_file(temporary, target)


class _NamedFile(io.FileIO):
    """A file whose errors of writing name `path`."""

    def __init__(self, file, path):
        super().__init__(file, "wb")
        self._path = path

    def write(self, data):
        with naming(self._path):
            return super().write(data)


def write_text(path: str | os.PathLike, text: str):
    """Writes a UTF-8 file atomically, or writes the text to a stream."""
    with atomic_file(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


@contextlib.contextmanager
def atomic_directory(path: str | os.PathLike) -> Iterator[Path]:
    """Replaces the directory `path` atomically when the block ends without an error.

    A link is followed. If the file system can't exchange two directories, an existing directory
    is missing for a moment.

    Yields:
        An empty temporary directory next to the final one. Missing parents are created.
    """
    with naming(path):
        target = _follow_links(path)
        target.parent.mkdir(parents=True, exist_ok=True)
        with _temporary_directory(target) as temporary:
            temporary.chmod(0o755)  # mkdtemp's 0700 would lock out other users
            yield temporary
            for entry in temporary.rglob("*"):
                flush(entry)
            flush(temporary)
            _replace_directory(temporary, target)
            flush(target.parent)


def _replace_directory(temporary, target):
    if not target.exists():
        temporary.rename(target)
        return
    if not target.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
    _copy_mode(target, temporary)
    if not _exchange(temporary, target):
        with _temporary_directory(target) as old:
            target.rename(old / target.name)
            temporary.rename(target)


def _exchange(one, other):
    """Exchanges two directories atomically. Returns False if the system can't."""
    renameat2 = getattr(ctypes.CDLL(None), "renameat2", None)
    if renameat2 is None:
        return False
    names = os.fsencode(one), os.fsencode(other)
    return renameat2(_AT_FDCWD, names[0], _AT_FDCWD, names[1], _RENAME_EXCHANGE) == 0


def is_stream(path: str | os.PathLike) -> bool:
    """Returns whether a path is a pipe, a device or a descriptor of this process."""
    return _descriptor(path) is not None or (
        os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path)
    )


def _descriptor(path):
    """Returns the descriptor that `path` names, such as 1 for /dev/stdout, or None."""
    path = os.path.abspath(path)
    found = re.fullmatch(r"/(?:dev|proc/self)/fd/(\d+)", path)
    return int(found[1]) if found else _STANDARD_STREAMS.get(path)


def _open_stream(path):
    """Opens a stream. A descriptor is written at its position, and its file is not truncated."""
    descriptor = _descriptor(path)
    if descriptor is None:
        return io.BufferedWriter(_NamedFile(path, path))
    for printed in (sys.stdout, sys.stderr):
        printed.flush()
    return io.BufferedWriter(_NamedFile(os.dup(descriptor), path))


def _follow_links(path):
    """Returns the path of the file or directory that `path` refers to. It may not exist yet."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def _replace_file(temporary, target):
    _copy_mode(target, temporary)
    try:
        os.replace(temporary, target)
    except OSError as error:
        if error.errno != errno.EBUSY:
            raise
        # A mount point, such as a file that Docker mounts, can be written but not replaced.
        shutil.copyfile(temporary, target)
    flush(target.parent)


def _copy_mode(source, target):
    """Copies mode and owner of a file or directory, if it exists."""
    with contextlib.suppress(FileNotFoundError):
        status = source.stat()
        with contextlib.suppress(PermissionError):
            os.chown(target, status.st_uid, status.st_gid)
        target.chmod(stat.S_IMODE(status.st_mode))


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
    prefix = path.stem[:40]  # the longest name of a file has 255 bytes
    remove_leftovers(path.parent, f"{prefix}-", seconds=_SECONDS_PER_DAY)
    names = {"prefix": f"{_TEMPORARY}{prefix}-", "dir": path.parent}
    with tempfile.TemporaryDirectory(**names, ignore_cleanup_errors=True) as directory:
        yield Path(directory)


def check_writable(path: str | os.PathLike):
    """Raises OSError if a file can't be written. The file is not changed, and no pipe is opened."""
    with naming(path):
        if os.path.isdir(path):
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR))
        if os.path.exists(path) and not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        if not is_stream(path):
            with _temporary_directory(_follow_links(path)):
                pass


def remove_directory(path: str | os.PathLike):
    """Renames a directory, then removes it, so that no reader sees a partly removed directory."""
    path = Path(path)
    with naming(path), _temporary_directory(path) as temporary:
        path.rename(temporary / path.name)


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


def flush(path: Path):
    """Flushes a file, or the list of entries of a directory, to disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
