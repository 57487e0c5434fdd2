"""The tables of an experiment: Markdown to read, CSV to compute with. Rows that are not trained yet have a dash.

`results` is everywhere a list of rows, and of each a list with a `Result` for each seed.
"""

import csv
import io
import itertools
import statistics
from collections.abc import Sequence

from examples.paper_tables.scoring import Result, bucket_labels

CSV_COLUMNS = (
    "row",
    "seed",
    "split",
    "tokens",
    "sentences",
    "bleu",
    "signature",
    "steps",
    "seconds",
    "command",
)


def markdown(results: list[list[Result]]) -> str:
    """A line for every row: the paper's numbers, BLEU of each split with every seed and their mean, and how long it trained."""
    first = results[0][0].trial
    splits, paper = first.sentences.splits[1:], list(first.row.paper)
    seeds = [f"seed {result.trial.seed}" for result in results[0]]
    header = ["", *(f"paper: {column}" for column in paper)]
    for split in splits:
        header += [
            f"{split}, {column}" for column in (*seeds, *(["mean"] if len(seeds) > 1 else []))
        ]
    lines = [[*header, "steps", "minutes"]]
    for of_row in results:
        trial = of_row[0].trial
        cells = [trial.row.label, *(_number(trial.row.paper[column]) for column in paper)]
        for split in splits:
            cells += _with_mean([result.bleu(split) for result in of_row])
        lines.append(
            [
                *cells,
                str(trial.settings["train_steps"]),
                ", ".join(_minutes(result) for result in of_row),
            ]
        )
    note = (
        "The paper's numbers are of WMT 2014: BLEU of tokenised text, as tensor2tensor counted it then. "
        if paper
        else ""
    )
    return f"{_markdown_table(lines)}\n{note}{_signature(results)}\n"


def markdown_by_length(results: list[list[Result]], longest: int) -> str:
    """A line for every row and seed: BLEU of the test sentences of each bucket of lengths."""
    labels = bucket_labels(longest)
    lines, counts = [["", "seed", *(f"{label} tokens" for label in labels)]], None
    for result in itertools.chain(*results):
        buckets = result.buckets or [(0, None)] * len(labels)
        lines.append(
            [
                result.trial.row.label,
                str(result.trial.seed),
                *(_number(bleu) for _, bleu in buckets),
            ]
        )
        counts = [str(count) for count, _ in result.buckets] or counts
    lines += [["sentences", "", *counts]] if counts else []
    return f"{_markdown_table(lines)}\nTrained on sentences of at most {longest} tokens a side. All test sets together.\n"


def csv_text(results: list[list[Result]], longest: int | None = None) -> str:
    """A line for every split of every trial that is done; with `longest`, one for every bucket of lengths too."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for result in itertools.chain(*results):
        trial = result.trial
        common = {
            "row": trial.row.label,
            "seed": trial.seed,
            "steps": trial.settings["train_steps"],
            "seconds": round(trial.seconds),
        }
        common["command"] = " ".join(["python", *trial.training_command()[1:]])
        for split, score in result.scores.items():
            writer.writerow(
                common | {"split": split, "bleu": score.value, "signature": score.signature}
            )
        for label, (count, bleu) in zip(bucket_labels(longest or 0), result.buckets):
            writer.writerow(
                common
                | {
                    "split": "+".join(trial.sentences.tests),
                    "tokens": label,
                    "sentences": count,
                    "bleu": bleu,
                }
            )
    return text.getvalue()


def mean(values: Sequence[float | None]) -> float | None:
    """The mean, where all values are there.

    Example:

    >>> mean([25.0, 26.0]), mean([25.0, None])
    (25.5, None)
    """
    return None if None in values else statistics.fmean(values)


def _with_mean(values):
    return [_number(value) for value in (*values, *([mean(values)] if len(values) > 1 else []))]


def _number(value):
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.1f}"


def _minutes(result):
    return f"{result.trial.seconds / 60:.1f}" if result.scores else "–"


def _signature(results):
    for result in itertools.chain(*results):
        for score in result.scores.values():
            return f"Ours: `{score.signature}`."
    return "Nothing is trained yet."


def _markdown_table(lines):
    header, *rest = (f"| {' | '.join(line)} |\n" for line in lines)
    return header + "|" + " --- |" * len(lines[0]) + "\n" + "".join(rest)
