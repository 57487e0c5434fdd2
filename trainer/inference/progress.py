"""Progress of a translation on stderr: a bar on terminals, warnings, and the rate at the end."""

import time
from collections.abc import Callable
from typing import TextIO

from tqdm import tqdm


class Progress:
    """Counts translated sentences and shows a bar if `file` is a terminal.

    Args:
        file: output file.
        total: number of sentences, or None if unknown.
        done: number of sentences that earlier runs have translated.
        bar: False hides the bar on terminals too.
    """

    def __init__(self, file: TextIO, total: int | None = None, done: int = 0, bar: bool = True):
        self._file = file
        self._count = 0
        self._start = time.monotonic()
        self._bar = tqdm(
            total=total,
            initial=done,
            unit=" sentences",
            file=file,
            disable=not (bar and file.isatty()),
            dynamic_ncols=True,
        )

    def counting(self, translate: Callable[[list], list]) -> Callable[[list], list]:
        """Returns `translate` as a function that also counts the sentences of its batches."""

        def translate_and_count(sentences):
            answers = translate(sentences)
            self._count += len(answers)
            self._bar.update(len(answers))
            return answers

        return translate_and_count

    def say(self, text: str):
        """Writes a line above the bar."""
        tqdm.write(text, file=self._file)

    def close(self):
        """Ends the bar and stops the clock."""
        self._seconds = time.monotonic() - self._start
        self._bar.close()

    def print_rate(self):
        """Prints the rate until `close`."""
        print(rate(self._count, self._seconds), file=self._file, flush=True)


def rate(count: int, seconds: float) -> str:
    """Returns the status line of a rate.

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
