"""Results on the dev set, which are stored in `evaluations.json`."""

import json
from pathlib import Path
from typing import NamedTuple

from trainer import atomic_files

# Names in reports of the metrics that `--best_metric` selects.
METRIC_NAMES = {"dev_bleu": "dev BLEU", "dev_chrf": "dev chrF2"}


class DevResult(NamedTuple):
    """The results of a step on the dev set.

    These are loss and accuracy per target token, and BLEU and chrF2 of translations or None.
    """

    step: int
    loss: float
    accuracy: float
    bleu: float | None = None
    chrf: float | None = None


class DevResults:
    """The results of a run on the dev set, in the order of their steps.

    Args:
        file: file of the results. It is read if it exists.
        until: the step that the run resumes from. Later entries are dropped, because the run
            repeats them.
        metric: the metric of the best entry, a key of `METRIC_NAMES`.
        writes: whether to write the file. If there are several processes, only one writes it.
        with_scores: whether an entry of the step `until` without the metric is dropped too.

    Raises:
        ValueError: if the file can't be read.
    """

    def __init__(
        self,
        file: Path,
        until: int,
        metric: str = "dev_bleu",
        *,
        writes: bool = True,
        with_scores: bool = False,
    ):
        self.file = file
        self._field = metric.removeprefix("dev_")
        self._writes = writes
        self.entries = [entry for entry in _read(file) if entry.step <= until]
        if with_scores:
            kept = (e for e in self.entries if e.step < until or self.score(e) is not None)
            self.entries = list(kept)

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

    def score(self, result: DevResult) -> float | None:
        """Returns the metric of a result, or None if it was not computed."""
        return getattr(result, self._field)

    def best(self) -> DevResult | None:
        """Returns the first entry with the highest metric, or None if no entry has it."""
        return max(self._scored(), key=self.score, default=None)

    def without_improvement(self) -> int:
        """Returns the number of entries with the metric after the best one."""
        best = self.best()
        return sum(entry.step > best.step for entry in self._scored()) if best else 0

    def _scored(self):
        return [entry for entry in self.entries if self.score(entry) is not None]


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
