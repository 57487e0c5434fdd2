"""Progress bar and translation rate."""

import sys
from collections.abc import Callable
from typing import BinaryIO

from tqdm import tqdm

from trainer.inference.streams import STANDARD, count_lines


def progress_bar(source: BinaryIO, done: int, output: str) -> tqdm:
    """Returns a progress bar that counts translated sentences on stderr.

    The bar is shown only if stderr is a terminal that is not used for input or output.

    Args:
        source: the input stream, positioned after the first `done` lines.
        done: number of lines that earlier runs have translated.
        output: file of the translations, or - for the standard output.
    """
    is_shared = source.isatty() or (output == STANDARD and sys.stdout.isatty())
    is_shown = sys.stderr.isatty() and not is_shared
    remaining = count_lines(source) if is_shown else None
    total = None if remaining is None else done + remaining
    return tqdm(
        total=total, initial=done, unit=" sentences", disable=not is_shown, dynamic_ncols=True
    )


def counting(call: Callable[[list], list], bar: tqdm) -> Callable[[list], list]:
    """Returns a function that calls `call` with a batch and then advances the bar."""

    def call_and_count(sentences):
        answers = call(sentences)
        bar.update(len(answers))
        return answers

    return call_and_count


def rate(count: int, seconds: float) -> str:
    """Returns a status line with the number of sentences, the time and the rate."""
    per_second = count / max(seconds, 1e-9)
    shown = f"{per_second:,.0f}" if per_second >= 10 else f"{per_second:.1f}"
    return (
        f"{count:,} sentences in {seconds:,.1f} s: {shown} sentences per second, excluding model "
        "loading"
    )
