"""Files that are written over several runs. Each run may be killed at any moment. They get
their names when complete.

Next to FILE lie meanwhile FILE.partial, with what is translated, and FILE.partial.log. The log's
first line tells with what options; each other one how many lines of input are answered, their
digest, and the lengths of the files then. Data in files beyond the last whole line of the log is
written again.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

# Waiting for the disk costs milliseconds: less often than windows of few lines would have it.
SECONDS_BETWEEN_NOTES = 1.0


class Note(NamedTuple):
    """How far the files are: lines of input, the digest of these, and the length of each file in
    bytes.
    """

    lines: int
    digest: str
    sizes: list[int]


class DigestedLines:
    """Lines of a binary stream without their ends, and the digest of all that were read.

    Example:
        >>> lines = DigestedLines([b"ein\\n", b"Hund"])
        >>> list(lines), lines.digest() == hashlib.sha256(b"ein\\nHund").hexdigest()
        ([b'ein', b'Hund'], True)
    """

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
        """SHA-256 of the lines read so far, with their ends, in hexadecimal."""
        return self._sha.hexdigest()


class UnfinishedFiles:
    """Made by `unfinished_files`.

    Attributes:
        files: where to write, binary, in the order of the paths.
        lines_done: lines of input whose answers are in the files from runs before.
        worth_keeping: whether a later run could continue with the files.
    """

    def __init__(self, log, paths, settings, done: Note | None):
        self._log = log
        self.lines_done = done.lines if done else 0
        self.worth_keeping = done is not None
        self.files = [
            _open_at(path, size)
            for path, size in zip(paths, done.sizes if done else [0] * len(paths))
        ]
        self._noted = -SECONDS_BETWEEN_NOTES
        if done is None:
            log.truncate(0)
            self._append(settings)

    def note(self, lines: int, digest: str):
        """Says that the answers of so many lines of input, of this digest, are written; seldom
        enough not to cost time.
        """
        if time.monotonic() - self._noted < SECONDS_BETWEEN_NOTES:
            return
        for file in self.files:
            file.flush()
            os.fsync(file.fileno())
        self._append(Note(lines, digest, [file.tell() for file in self.files])._asdict())
        self._noted = time.monotonic()
        self.worth_keeping = True

    def _append(self, record):
        self._log.write(json.dumps(record).encode() + b"\n")
        self._log.flush()
        os.fsync(self._log.fileno())


@contextlib.contextmanager
def unfinished_files(
    paths: Sequence[str | os.PathLike], settings: dict, lines: DigestedLines, resume: bool = True
) -> Iterator[UnfinishedFiles]:
    """Output files that continue where an earlier run with the
    same arguments stopped.

    Files of these names stay what they are until the new ones are complete.

    Args:
        paths: of the files; the log lies next to the first.
        settings: what the answers depend on, as JSON has it.
        lines: the input; lines that earlier runs translated are skipped.
        resume: whether to continue; otherwise what is there is written again.

    Yields:
        An `UnfinishedFiles`. When the block ends without an error, the files take their names.

    Raises:
        ValueError: if the earlier run had other settings or another input, or if another process
            writes these files.
        OSError: where they can't be written.
    """
    paths = [Path(os.path.realpath(path)) for path in paths]
    partial = [Path(f"{path}.partial") for path in paths]
    log_path = Path(f"{partial[0]}.log")
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(log_path, "a+b"))
        _lock(log, paths[0])
        done = _last_note(log, partial, settings) if resume else None
        if done:
            _skip(lines, done, partial[0])
        output = UnfinishedFiles(log, partial, settings, done)
        for file in output.files:
            stack.enter_context(file)
        try:
            yield output
        except BaseException:
            if not output.worth_keeping:
                for path in (*partial, log_path):
                    path.unlink(missing_ok=True)
            raise
        for file, aside, path in zip(output.files, partial, paths):
            file.flush()
            os.fsync(file.fileno())
            os.replace(aside, path)
        log_path.unlink(missing_ok=True)


def _open_at(path, size):
    file = open(path, "r+b" if size else "wb")
    file.truncate(size)
    file.seek(size)
    return file


def _lock(log, path):
    try:
        fcntl.flock(log, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(
            f"Expected an --output that no other process writes. Received: {path}. Choose another "
            "one."
        ) from error


def _last_note(log, partial, settings):
    """What the log says last, where it says anything and the files are as long as it says."""
    log.seek(0)
    content = log.read()
    whole = content[: content.rfind(b"\n") + 1]
    first, *others = whole.splitlines() or [b""]
    if not others:
        return None
    note = Note(**json.loads(others[-1]))
    if len(note.sizes) != len(partial) or not all(path.is_file() for path in partial):
        return None
    if any(path.stat().st_size < size for path, size in zip(partial, note.sizes)):
        return None
    _refuse_other_settings(json.loads(first), settings, partial[0])
    log.truncate(len(whole))
    return note


def _refuse_other_settings(begun, settings, partial):
    for name in begun.keys() | settings.keys():
        if begun.get(name) != settings.get(name):
            raise ValueError(
                f"Expected the options that {partial} was begun with, {name}={begun.get(name)}. "
                f"Received: {name}={settings.get(name)}. "
                "Give these again to continue, or --noresume to begin again."
            )


def _skip(lines, done, partial):
    count = sum(1 for _ in zip(range(done.lines), lines))
    if count < done.lines or lines.digest() != done.digest:
        differs = f"one of {count} lines" if count < done.lines else "another one"
        raise ValueError(
            f"Expected the input whose first {done.lines} lines {partial} answers. Received: "
            f"{differs}. "
            "Give that input to continue, or --noresume to begin again."
        )
