"""Output files that an interrupted run leaves unfinished and a later run completes.

Until FILE is complete, its content is in FILE.partial, and the first file has a log,
FILE.partial.log. The first line of the log holds the options of the run. Every other line is a
`Note`. A later run truncates the files to the sizes of the last note and continues there. A run can
be killed at any moment: only complete lines of the log count.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# A note waits for the disk, which takes milliseconds.
SECONDS_BETWEEN_NOTES = 1.0


class Note(NamedTuple):
    """The number of translated input lines, their digest, and the size of each output file."""

    lines: int
    digest: str
    sizes: list[int]


class DigestedLines:
    """Iterates over the lines of a binary stream without their ends and computes their digest."""

    def __init__(self, source: Iterable[bytes]):
        self._source = iter(source)
        self._sha = hashlib.sha256()

    def __iter__(self):
        return self

    def __next__(self) -> bytes:
        line = next(self._source)
        self._sha.update(line)
        return line.rstrip(b"\r\n")

    def digest(self) -> str:
        """Returns the SHA-256 of the lines read so far, with their ends, in hexadecimal."""
        return self._sha.hexdigest()


class UnfinishedFiles:
    """Made by `unfinished_files`.

    Attributes:
        files: binary output files, in the order of the paths.
        lines_done: number of input lines that earlier runs have translated.
        can_resume: whether a later run can continue with the files.
    """

    def __init__(self, log, paths, settings, last: Note | None):
        self._log = log
        self._last_time = -SECONDS_BETWEEN_NOTES
        self.lines_done = last.lines if last else 0
        self.can_resume = last is not None
        sizes = last.sizes if last else [0] * len(paths)
        self.files = [_open_at(path, size) for path, size in zip(paths, sizes)]
        if last is None:
            log.truncate(0)
            self._append(settings)

    def note(self, lines: int, digest: str):
        """Records that the translations of `lines` input lines are written.

        Does nothing within `SECONDS_BETWEEN_NOTES` of the previous note.
        """
        if time.monotonic() - self._last_time < SECONDS_BETWEEN_NOTES:
            return
        for file in self.files:
            _flush(file)
        self._append(Note(lines, digest, [file.tell() for file in self.files])._asdict())
        self._last_time = time.monotonic()
        self.can_resume = True

    def _append(self, record):
        self._log.write(json.dumps(record).encode() + b"\n")
        _flush(self._log)


@contextlib.contextmanager
def unfinished_files(
    paths: Sequence[str | os.PathLike], settings: dict, lines: DigestedLines, resume: bool = True
) -> Iterator[UnfinishedFiles]:
    """Opens output files, which replace the files of their names when the block ends without error.

    Args:
        paths: paths of the files. The log is next to the first.
        settings: options that the output depends on, as JSON values.
        lines: the input; lines that earlier runs have translated are skipped.
        resume: whether to continue with the files of an earlier run.

    Raises:
        ValueError: if the earlier run had other settings or another input, or if another process
            writes these files.
        OSError: if the files can't be written.
    """
    paths = [os.path.realpath(path) for path in paths]
    partial = [f"{path}.partial" for path in paths]
    log_path = f"{partial[0]}.log"
    # The same in any folder, so that a folder can be moved between runs.
    names = [os.path.relpath(path, os.path.dirname(paths[0])) for path in paths]
    settings = settings | {"files": names}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(log_path, "a+b"))
        _lock(log, paths[0])
        last = _last_note(log, partial, settings) if resume else None
        if last:
            _skip(lines, last, partial[0])
        output = UnfinishedFiles(log, partial, settings, last)
        for file in output.files:
            stack.enter_context(file)
        try:
            yield output
        except BaseException:
            if not output.can_resume:
                for path in (*partial, log_path):
                    with contextlib.suppress(OSError):
                        os.remove(path)
            raise
        for file, temporary, path in zip(output.files, partial, paths):
            _flush(file)
            os.replace(temporary, path)
        os.remove(log_path)


def _open_at(path, size):
    file = open(path, "r+b" if size else "wb")
    file.truncate(size)
    file.seek(size)
    return file


def _flush(file):
    file.flush()
    os.fsync(file.fileno())


def _lock(log, path):
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(
            f"Expected an --output that no other process writes. Received: {path}. Choose another "
            "one."
        ) from error


def _last_note(log, partial, settings):
    """Returns the last note if the files are at least as long as it says, or None."""
    log.seek(0)
    content = log.read()
    complete = content[: content.rfind(b"\n") + 1]
    first, *notes = complete.splitlines() or [b""]
    if not notes:
        return None
    last = Note(**json.loads(notes[-1]))
    sizes = [os.path.getsize(path) if os.path.isfile(path) else -1 for path in partial]
    if len(sizes) != len(last.sizes) or any(map(int.__lt__, sizes, last.sizes)):
        return None
    _refuse_other_settings(json.loads(first), settings, partial[0])
    log.truncate(len(complete))
    return last


def _refuse_other_settings(begun, settings, partial):
    for name in begun.keys() | settings.keys():
        if begun.get(name) != settings.get(name):
            raise ValueError(
                f"Expected the options that {partial} was begun with, {name}={begun.get(name)}. "
                f"Received: {name}={settings.get(name)}. "
                "Give these again to continue, or --noresume to begin again."
            )


def _skip(lines, last, partial):
    count = sum(1 for _ in zip(range(last.lines), lines))
    if count < last.lines or lines.digest() != last.digest:
        differs = f"one of {count} lines" if count < last.lines else "another one"
        raise ValueError(
            f"Expected the input whose first {last.lines} lines {partial} answers. Received: "
            f"{differs}. Give that input to continue, or --noresume to begin again."
        )
