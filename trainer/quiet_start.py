"""Imports TensorFlow without its start-up messages."""

import contextlib
import logging
import os
import sys
import tempfile
from collections.abc import Iterator

from absl import logging as absl_logging


def import_tensorflow():
    """Imports TensorFlow, initializes its GPUs, and hides the messages that this prints.

    The messages are printed if the import fails, or with `--verbosity=1` on the command line.
    Warnings that programs log later have the format `LEVEL: message`.
    """
    # absl's default format starts with a time, a thread id and a line of code.
    absl_logging.get_absl_handler().setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
    if "tensorflow" in sys.modules or {"--verbosity=1", "-v=1"} & set(sys.argv):
        return
    # At level 2, oneDNN logs an error when it falls back to another implementation for int64.
    if os.environ.get("TF_CPP_MIN_LOG_LEVEL", "2") == "2":
        os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    with _buffered_stderr():
        import tensorflow as tf

        tf.config.list_physical_devices("GPU")


@contextlib.contextmanager
def _buffered_stderr() -> Iterator[None]:
    """Discards everything written to file descriptor 2, or prints it if the block raises."""
    sys.stderr.flush()
    with tempfile.TemporaryFile() as buffer, os.fdopen(os.dup(2), "wb") as stderr:
        os.dup2(buffer.fileno(), 2)
        try:
            yield
        except BaseException:
            buffer.seek(0)
            stderr.write(buffer.read())
            raise
        finally:
            os.dup2(stderr.fileno(), 2)
