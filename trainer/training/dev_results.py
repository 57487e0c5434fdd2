"""Results on the dev set, in `evaluations.json`, and whether they still improve."""

import dataclasses
import json
from pathlib import Path

from trainer import atomic_files


@dataclasses.dataclass(frozen=True)
class Evaluation:
    """What a run had learned at a step.

    `loss` and `accuracy` are per target token; `bleu` is None where it was not asked for.
    """

    step: int
    loss: float
    accuracy: float
    bleu: float | None = None


class Evaluations:
    """The evaluations of a run, in the order of their steps.

    A file next to the checkpoints, not in them: one whose evaluation is still to come is complete
    already. Resume at a step, those after it are forgotten, since they come again.

    Args:
        file: where they are kept; read if it exists.
        until: the step that the run continues from.
        writes: whether to keep them there; of several processes one does.

    Raises:
        ValueError: where the file can't be read.
    """

    def __init__(self, file: Path, until: int, writes: bool = True):
        self.file = file
        self._writes = writes
        self.entries = [entry for entry in _read(file) if entry.step <= until]

    def __contains__(self, step: int):
        return any(entry.step == step for entry in self.entries)

    def add(self, evaluation: Evaluation):
        """Notes an evaluation in the file.

        Raises:
            OSError: where it can't be written.
        """
        self.entries.append(evaluation)
        if not self._writes:
            return
        lines = ",\n".join(json.dumps(dataclasses.asdict(entry)) for entry in self.entries)
        atomic_files.write_text(self.file, f"[\n{lines}\n]\n")

    def best(self) -> Evaluation | None:
        """The one with the highest BLEU, of equal ones the earliest; None if there is no BLEU."""
        return max(self._with_bleu(), key=lambda entry: entry.bleu, default=None)

    def without_improvement(self) -> int:
        """How many with BLEU came after the best."""
        best = self.best()
        return sum(entry.step > best.step for entry in self._with_bleu()) if best else 0

    def _with_bleu(self):
        return [entry for entry in self.entries if entry.bleu is not None]


def _read(file):
    if not file.is_file():
        return []
    try:
        return [Evaluation(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Expected a list of evaluations. Received: {file}, which holds none ({error}). "
            "Restore the file, or remove it to count "
            "the evaluations again."
        ) from error
