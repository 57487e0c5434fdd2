"""Output files that a later run can complete after an interruption.

Until FILE is complete, its content is in FILE.partial. A log, FILE.partial.log, is next to the
first file. The first line of the log has the options of the run, and each later line has a
`LogEntry`. A later run truncates the files to the sizes in the last entry and appends to them. A
run may be killed at any moment, because incomplete lines of the log are ignored.
"""

import contextlib
import fcntl
import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

# Writing an entry flushes the files to disk, which takes milliseconds.
SECONDS_BETWEEN_ENTRIES = 1.0


class LogEntry(NamedTuple):
    """The number of translated input lines, their digest, and the size of each output file."""

    lines: int
    digest: str
    sizes: list[int]


class HashedLines:
    """Iterator over the lines of a binary stream, without line ends, that computes a digest."""

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
        """Returns the SHA-256 of the lines read so far, including line ends, in hexadecimal."""
        return self._sha.hexdigest()


class ResumableOutput:
    """Open output files and their log. Create it with `resumable_output`.

    Attributes:
        files: binary output files, in the order of the paths.
        lines_done: number of input lines that earlier runs have translated.
        can_resume: whether a later run can resume from the files.
    """

    def __init__(self, log, paths, settings, last: LogEntry | None):
        self._log = log
        self._last_time = -SECONDS_BETWEEN_ENTRIES
        self.lines_done = last.lines if last else 0
        self.can_resume = last is not None
        sizes = last.sizes if last else [0] * len(paths)
        self.files = [_open_at(path, size) for path, size in zip(paths, sizes)]
        if last is None:
            log.truncate(0)
            self._append(settings)

    def record_progress(self, lines: int, digest: str):
        """Writes a log entry: the translations of the first `lines` input lines are complete.

        Does nothing within `SECONDS_BETWEEN_ENTRIES` of the previous entry.
        """
        if time.monotonic() - self._last_time < SECONDS_BETWEEN_ENTRIES:
            return
        for file in self.files:
            _flush(file)
        entry = LogEntry(lines, digest, [file.tell() for file in self.files])
        self._append(entry._asdict())
        self._last_time = time.monotonic()
        self.can_resume = True

    def _append(self, record):
        self._log.write(json.dumps(record).encode() + b"\n")
        _flush(self._log)


@contextlib.contextmanager
def resumable_output(
    paths: Sequence[str | os.PathLike], settings: dict, lines: HashedLines, *, resume: bool = True
) -> Iterator[ResumableOutput]:
    """Opens output files, which replace `paths` when the block ends without an error.

    Args:
        paths: paths of the output files. The log is next to the first one.
        settings: options that the output depends on, as JSON values.
        lines: the input. Lines that earlier runs have translated are skipped.
        resume: whether to resume from the files of an interrupted run.

    Raises:
        ValueError: if the interrupted run had other settings or another input, or if another
            process is writing these files.
        OSError: if the files can't be written.
    """
    paths = [os.path.realpath(path) for path in paths]
    partial = [f"{path}.partial" for path in paths]
    log_path = f"{partial[0]}.log"
    # Relative paths, so that the folder can be moved between runs.
    names = [os.path.relpath(path, os.path.dirname(paths[0])) for path in paths]
    settings = settings | {"files": names}
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(open(log_path, "a+b"))
        _lock(log, paths[0])
        last = _last_entry(log, partial, settings) if resume else None
        if last:
            _skip_translated(lines, last, partial[0])
        output = ResumableOutput(log, partial, settings, last)
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
            f"Expected an --output that no other process is writing. Received: {path}. Choose "
            "another one."
        ) from error


def _last_entry(log, partial, settings):
    """Returns the last log entry, or None if there is none or the files are shorter than its sizes.

    Removes an incomplete line from the log.
    """
    log.seek(0)
    content = log.read()
    complete = content[: content.rfind(b"\n") + 1]
    first, *entries = complete.splitlines() or [b""]
    if not entries:
        return None
    last = LogEntry(**json.loads(entries[-1]))
    sizes = [os.path.getsize(path) if os.path.isfile(path) else -1 for path in partial]
    if len(sizes) != len(last.sizes) or any(map(int.__lt__, sizes, last.sizes)):
        return None
    _check_settings(json.loads(first), settings, partial[0])
    log.truncate(len(complete))
    return last


def _check_settings(recorded, settings, partial):
    for name in recorded.keys() | settings.keys():
        if recorded.get(name) != settings.get(name):
            raise ValueError(
                f"Expected the options of the interrupted run that wrote {partial}: "
                f"{name}={recorded.get(name)}. Received: {name}={settings.get(name)}. Use the "
                "same options to resume, or --noresume to start over."
            )


def _skip_translated(lines, last, partial):
    """Skips the lines that an earlier run has translated, and checks their digest."""
    count = sum(1 for _ in zip(range(last.lines), lines))
    if count < last.lines or lines.digest() != last.digest:
        received = f"an input of {count} lines" if count < last.lines else "different lines"
        raise ValueError(
            f"Expected an input that starts with the {last.lines} lines whose translations are in "
            f"{partial}. Received: {received}. Use the same input to resume, or --noresume to "
            "start over."
        )
