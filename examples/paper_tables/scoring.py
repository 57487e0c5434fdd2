"""sacreBLEU of a trial's translations: by split, and by source length."""

import bisect
import dataclasses
from collections.abc import Sequence

from examples.paper_tables.trial import Trial
from trainer import metrics
from trainer.model_dir import ModelDirectory


@dataclasses.dataclass(frozen=True)
class Result:
    """A trial and its scores.

    Args:
        trial: the trial.
        scores: cased sacreBLEU by split; empty until the trial is done.
        buckets: number of sentences and BLEU by source length, over all test sets together; empty
            unless requested. BLEU is None for an empty bucket.
    """

    trial: Trial
    scores: dict[str, metrics.Score]
    buckets: list[tuple[int, float | None]]

    def bleu(self, split: str) -> float | None:
        """Returns the BLEU of a split, or None if the trial is not done."""
        return self.scores[split].value if self.scores else None


def score_trial(trial: Trial, max_train_length: int | None = None) -> Result:
    """Scores the translations of a trial, which may be unfinished.

    With `max_train_length`, the length of the longest training sentence in tokens, the result has
    scores by length.
    """
    if not trial.is_done:
        return Result(trial, {}, [])
    scores = {
        split: metrics.sacrebleu(
            _read_translations(trial, split), list(trial.dataset.open_corpus(split).targets())
        )
        for split in trial.dataset.eval_splits
    }
    buckets = [] if max_train_length is None else _score_by_length(trial, max_train_length)
    return Result(trial, scores, buckets)


def bucket_labels(max_train_length: int) -> list[str]:
    """Returns the range of source lengths of each bucket, in tokens.

    Example:

    >>> from examples.paper_tables.scoring import bucket_labels
    >>> bucket_labels(16)
    ['1–8', '9–16', '17–20', '21–24', '25–']
    """
    edges = _bucket_edges(max_train_length)
    return [f"{low + 1}–{high}" for low, high in zip([0, *edges], [*edges, ""])]


def _bucket_edges(max_train_length):
    """Returns the upper bounds of all buckets but the last: two are beyond the training range."""
    longest = max_train_length
    return [longest // 2, longest, longest + longest // 4, longest + longest // 2]


def _score_by_length(trial: Trial, max_train_length: int):
    tokenizer = ModelDirectory.open(trial.model_dir).load_tokenizer()
    edges = _bucket_edges(max_train_length)
    buckets: list[list[tuple[str, str]]] = [[] for _ in range(len(edges) + 1)]
    for split in trial.dataset.tests:
        corpus = trial.dataset.open_corpus(split)
        lengths: Sequence[int] = tokenizer.tokenize(list(corpus.sources())).row_lengths().numpy()
        lines = zip(_read_translations(trial, split), corpus.targets())
        for length, pair in zip(lengths, lines, strict=True):
            buckets[bisect.bisect_left(edges, length)].append(pair)
    return [
        (len(pairs), metrics.sacrebleu(*zip(*pairs)).value if pairs else None) for pairs in buckets
    ]


def _read_translations(trial, split):
    # Not splitlines(): a translation may contain other Unicode line separators.
    return trial.translations(split).read_text(encoding="utf-8").split("\n")[:-1]
