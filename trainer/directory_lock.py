"""A lock that keeps a second process from training in the same directory."""

import contextlib
import fcntl
import os
import shutil
import socket
from pathlib import Path

from absl import logging

LOCK_NAME = ".lock"


class DirectoryLock:
    """A locked file `.lock` in a directory. The lock is released when the process ends.

    Args:
        directory: an existing directory.

    Raises:
        ValueError: if another process has locked it.
        OSError: if the directory can't be written.
    """

    def __init__(self, directory: Path):
        self._directory = directory
        self._file = directory / LOCK_NAME
        self._descriptor = os.open(self._file, os.O_RDWR | os.O_CREAT, 0o644)
        try:
            self._lock()
            os.ftruncate(self._descriptor, 0)
            owner = f"process {os.getpid()} on {socket.gethostname()}"
            os.write(self._descriptor, owner.encode())
        except BaseException:
            os.close(self._descriptor)
            raise

    def _lock(self):
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            owner = os.read(self._descriptor, 1000).decode(errors="replace").strip()
            raise ValueError(
                "Expected a model directory that no other process is using. Received: "
                f"{self._directory}, locked by {owner or 'another process'}. Wait until it ends, "
                "or choose another --model_dir."
            ) from error
        except OSError as error:
            # Some network file systems do not support locks.
            logging.warning("%s can't be locked: %s", self._directory, error.strerror)

    def release(self):
        """Releases the lock, and removes the directory if it has no other file.

        Does not raise: the directory may have been deleted, and an error would hide another one.
        """
        with contextlib.suppress(OSError):
            # Another run may have created the directory again.
            is_ours = os.path.samestat(os.stat(self._file), os.fstat(self._descriptor))
            if is_ours and os.listdir(self._directory) == [LOCK_NAME]:
                shutil.rmtree(self._directory)
        with contextlib.suppress(OSError):
            os.close(self._descriptor)
