"""Progress bar and translation rate."""

import sys
from collections.abc import Callable
from typing import BinaryIO

from tqdm import tqdm

from trainer.inference.streams import STANDARD, count_lines


def progress_bar(source: BinaryIO, output: str) -> tqdm:
    """Returns a progress bar on stderr that counts translated sentences.

    It is shown only if stderr is a terminal, and neither input nor output is one.

    Args:
        source: the input stream.
        output: file of the translations, or - for the standard output.
    """
    is_interactive = source.isatty() or (output == STANDARD and sys.stdout.isatty())
    is_shown = sys.stderr.isatty() and not is_interactive
    total = count_lines(source) if is_shown else None
    return tqdm(total=total, unit=" sentences", disable=not is_shown, dynamic_ncols=True)


def with_progress(call: Callable[[list], list], bar: tqdm) -> Callable[[list], list]:
    """Returns `call` with a bar that each call advances by the number of its results."""

    def call_and_count(sentences):
        results = call(sentences)
        bar.update(len(results))
        return results

    return call_and_count


def format_rate(count: int, seconds: float) -> str:
    """Returns a status line with the number of sentences, the time and the rate."""
    rate = count / max(seconds, 1e-9)
    shown = f"{rate:,.0f}" if rate >= 10 else f"{rate:.1f}"
    return (
        f"{count:,} sentences in {seconds:,.1f} s: {shown} sentences per second, excluding model "
        "loading"
    )
