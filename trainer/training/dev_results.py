"""Results on the dev set, which are stored in `evaluations.json`."""

import json
from pathlib import Path
from typing import NamedTuple

from trainer import atomic_files


class DevResult(NamedTuple):
    """The results of a step on the dev set: loss and accuracy per target token, and BLEU."""

    step: int
    loss: float
    accuracy: float
    bleu: float | None = None


class DevResults:
    """The results of a run on the dev set, in the order of their steps.

    Args:
        file: file of the results. It is read if it exists.
        until: the step that the run resumes from. Later entries are dropped, because the run
            repeats them.
        writes: whether to write the file. If there are several processes, only one writes it.
        with_bleu: whether an entry of the step `until` without BLEU is dropped too.

    Raises:
        ValueError: if the file can't be read.
    """

    def __init__(self, file: Path, until: int, *, writes: bool = True, with_bleu: bool = False):
        self.file = file
        self._writes = writes
        self.entries = [entry for entry in _read(file) if entry.step <= until]
        if with_bleu:
            self.entries = [e for e in self.entries if e.step < until or e.bleu is not None]

    def __contains__(self, step: int):
        return any(entry.step == step for entry in self.entries)

    def add(self, result: DevResult):
        """Adds a result and writes the file.

        Raises:
            OSError: if the file can't be written.
        """
        self.entries.append(result)
        if self._writes:
            lines = ",\n".join(json.dumps(entry._asdict()) for entry in self.entries)
            atomic_files.write_text(self.file, f"[\n{lines}\n]\n")

    def best(self) -> DevResult | None:
        """Returns the first entry with the highest BLEU, or None if no entry has BLEU."""
        return max(self._with_bleu(), key=lambda entry: entry.bleu, default=None)

    def without_improvement(self) -> int:
        """Returns the number of entries with BLEU after the best one."""
        best = self.best()
        return sum(entry.step > best.step for entry in self._with_bleu()) if best else 0

    def _with_bleu(self):
        return [entry for entry in self.entries if entry.bleu is not None]


def _read(file):
    if not file.is_file():
        return []
    try:
        return [DevResult(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Expected a list of evaluations in {file}. Received: invalid content ({error}). "
            "Restore the file, or remove it to start a new list."
        ) from error
