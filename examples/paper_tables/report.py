"""Result tables in Markdown.

`results` holds, for every variant, a list with one `Result` per seed. Missing scores are shown as
a dash.
"""

import itertools
import statistics

from examples.paper_tables.scoring import Result, bucket_labels


def format_table(results: list[list[Result]]) -> str:
    """Returns a Markdown table with one line per variant.

    Its columns are the paper's results, our BLEU by split and seed, their mean, and the number of
    training steps.
    """
    trial = results[0][0].trial
    columns = [f"seed {result.trial.seed}" for result in results[0]]
    if len(columns) > 1:
        columns.append("mean")
    header = ["", *(f"paper: {column}" for column in trial.variant.paper)]
    header += [f"{split}, {column}" for split in trial.dataset.eval_splits for column in columns]
    lines = [[*header, "steps"], *(_format_variant(seeds) for seeds in results)]
    note = "The paper reports tokenized BLEU on WMT 2014. " if trial.variant.paper else ""
    scores = [score for result in itertools.chain(*results) for score in result.scores.values()]
    ours = f"Ours: `{scores[0].signature}`." if scores else "No model is trained yet."
    return f"{_markdown_table(lines)}\n{note}{ours}\n"


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


def _format_variant(seeds):
    trial = seeds[0].trial
    cells = [trial.variant.label, *map(_format_number, trial.variant.paper.values())]
    for split in trial.dataset.eval_splits:
        values = [result.bleu(split) for result in seeds]
        if len(values) > 1:
            values.append(None if None in values else statistics.fmean(values))
        cells += map(_format_number, values)
    return [*cells, str(trial.settings["train_steps"])]


def _format_number(value):
    if value is None:
        return "–"
    return value if isinstance(value, str) else f"{value:.1f}"


def _markdown_table(lines):
    header, *rest = (f"| {' | '.join(line)} |\n" for line in lines)
    return header + "|" + " --- |" * len(lines[0]) + "\n" + "".join(rest)
