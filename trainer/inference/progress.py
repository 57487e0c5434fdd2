"""What a reader is told meanwhile: a bar if there is a terminal, warnings, and the rate at the
end.
"""

import time
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Counts sentences on a bar, which shows where `file` is a terminal.

    Args:
        file: where to print.
        total: number of sentences, where it is known.
        done: how many of them were translated by earlier runs.
        bar: False hides the bar on terminals too.
    """

    def __init__(self, file: TextIO, total: int | None = None, done: int = 0, bar: bool = True):
        self._file = file
        self._count = 0
        self._start = time.monotonic()
        hidden = not (bar and file.isatty())
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=" sentences",
            file=file,
            disable=hidden,
            dynamic_ncols=True,
        )

    def counting(self, translate: Callable[[list], list]) -> Callable[[list], list]:
        """A function of batches, as one that counts their sentences when they are translated."""

        def translate_and_count(sentences):
            answers = translate(sentences)
            self._count += len(answers)
            self._bar.update(len(answers))
            return answers

        return translate_and_count

    def say(self, text: str):
        """Writes a line, above the bar."""
        tqdm.write(text, file=self._file)

    def close(self):
        """Ends the bar."""
        self._seconds = time.monotonic() - self._start
        self._bar.close()

    def tell_rate(self):
        """Tells how fast it was, from the beginning to `close`."""
        print(rate(self._count, self._seconds), file=self._file, flush=True)


def rate(count: int, seconds: float) -> str:
    """How fast sentences were translated, for a reader.

    Example:
        >>> rate(1000, 3.105)
        '1,000 sentences in 3.1 s: 322 sentences per second, without the time to load the model'
    """
    per_second = count / max(seconds, 1e-9)
    shown = f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
    return (
        f"{count:,} sentences in {seconds:,.1f} s: {shown} sentences per second, without the time "
        "to load the model"
    )
