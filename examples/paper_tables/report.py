"""Result tables in Markdown and CSV.

`results` holds, for every variant, a list with one `Result` per seed. Missing scores are shown as
a dash.
"""

import csv
import io
import itertools
import statistics
from collections.abc import Sequence

from examples.paper_tables.scoring import Result, bucket_labels

CSV_COLUMNS = (
    *("variant", "seed", "split", "tokens", "sentences"),
    *("bleu", "signature", "steps", "seconds", "command"),
)


def format_table(results: list[list[Result]]) -> str:
    """Returns a Markdown table with one line per variant.

    Its columns are the paper's results, our BLEU by split and seed, their mean, the number of
    training steps and the training time.
    """
    trial = results[0][0].trial
    columns = [f"seed {result.trial.seed}" for result in results[0]]
    if len(columns) > 1:
        columns.append("mean")
    header = ["", *(f"paper: {column}" for column in trial.variant.paper)]
    header += [f"{split}, {column}" for split in trial.dataset.eval_splits for column in columns]
    lines = [[*header, "steps", "minutes"], *(_format_variant(seeds) for seeds in results)]
    note = "The paper reports tokenized BLEU on WMT 2014. " if trial.variant.paper else ""
    return f"{_markdown_table(lines)}\n{note}{_format_signature(results)}\n"


def format_table_by_length(results: list[list[Result]], max_train_length: int) -> str:
    """Returns a Markdown table with one line per variant and seed: BLEU by source length."""
    labels = bucket_labels(max_train_length)
    lines, counts = [["", "seed", *(f"{label} tokens" for label in labels)]], None
    for result in itertools.chain(*results):
        trial, buckets = result.trial, result.buckets or [(0, None)] * len(labels)
        scores = [_format_number(bleu) for _, bleu in buckets]
        lines.append([trial.variant.label, str(trial.seed), *scores])
        counts = [str(count) for count, _ in result.buckets] or counts
    lines += [["sentences", "", *counts]] if counts else []
    note = f"Trained on sentences of at most {max_train_length} tokens. All test sets together."
    return f"{_markdown_table(lines)}\n{note}\n"


def format_csv(results: list[list[Result]], max_train_length: int | None = None) -> str:
    """Returns a CSV file with one line per trial and split, and per length bucket if requested."""
    text = io.StringIO()
    writer = csv.DictWriter(text, CSV_COLUMNS, lineterminator="\n")
    writer.writeheader()
    for result in itertools.chain(*results):
        trial = result.trial
        common = {
            "variant": trial.variant.label,
            "seed": trial.seed,
            "steps": trial.settings["train_steps"],
            "seconds": round(trial.seconds),
            "command": " ".join(["python", *trial.training_command()[1:]]),
        }
        for split, score in result.scores.items():
            scores = {"split": split, "bleu": score.value, "signature": score.signature}
            writer.writerow(common | scores)
        tests = "+".join(trial.dataset.tests)
        for label, (count, bleu) in zip(bucket_labels(max_train_length or 0), result.buckets):
            scores = {"split": tests, "tokens": label, "sentences": count, "bleu": bleu}
            writer.writerow(common | scores)
    return text.getvalue()


def mean(values: Sequence[float | None]) -> float | None:
    """Returns the mean, or None if a value is missing.

    Example:

    >>> from examples.paper_tables.report import mean
    >>> mean([25.0, 26.0]), mean([25.0, None])
    (25.5, None)
    """
    return None if None in values else statistics.fmean(values)


def _format_variant(seeds):
    trial = seeds[0].trial
    cells = [trial.variant.label, *map(_format_number, trial.variant.paper.values())]
    for split in trial.dataset.eval_splits:
        values = [result.bleu(split) for result in seeds]
        cells += map(_format_number, [*values, mean(values)] if len(values) > 1 else values)
    minutes = [result.trial.seconds / 60 if result.scores else None for result in seeds]
    return [*cells, str(trial.settings["train_steps"]), ", ".join(map(_format_number, minutes))]


def _format_number(value):
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.1f}"


def _format_signature(results):
    for result in itertools.chain(*results):
        for score in result.scores.values():
            return f"Ours: `{score.signature}`."
    return "No model is trained yet."


def _markdown_table(lines):
    header, *rest = (f"| {' | '.join(line)} |\n" for line in lines)
    return header + "|" + " --- |" * len(lines[0]) + "\n" + "".join(rest)
