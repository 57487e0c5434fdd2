"""What a trial's translations are worth: sacreBLEU of whole splits, and of test sentences of like length."""

import dataclasses
from collections.abc import Sequence

from examples.paper_tables.trial import Trial
from trainer import metrics
from trainer.model_dir import ModelDirectory


@dataclasses.dataclass(frozen=True)
class Result:
    """A trial and its scores.

    Args:
        trial: which one.
        scores: sacreBLEU, cased, of each split that is translated; empty while the trial is not done.
        buckets: of all test sets together, number of sentences and BLEU by length of the source, where they are asked for.
    """

    trial: Trial
    scores: dict[str, metrics.Score]
    buckets: list[tuple[int, float | None]]

    def bleu(self, split: str) -> float | None:
        """BLEU of a split; None while there is none."""
        return self.scores[split].value if self.scores else None


def result(trial: Trial, longest: int | None = None) -> Result:
    """Scores a trial.

    Args:
        trial: which may not be done yet.
        longest: tokens of the longest sentence that was trained on, for scores by length.
    """
    if not trial.is_done:
        return Result(trial, {}, [])
    sentences = trial.sentences
    scores = {
        split: metrics.sacrebleu(
            _translations(trial, split), list(sentences.corpus(split).targets())
        )
        for split in sentences.splits[1:]
    }
    return Result(trial, scores, [] if longest is None else _by_length(trial, longest))


def bucket_edges(longest: int) -> list[int]:
    """The longest source of each bucket but the last, which has no limit: half of the longest that was trained on, that, and beyond.

    Example:

    >>> bucket_edges(16)
    [8, 16, 20, 24]
    """
    return [longest // 2, longest, longest + longest // 4, longest + longest // 2]


def bucket_labels(longest: int) -> list[str]:
    """What the buckets are called, by their numbers of tokens.

    Example:

    >>> bucket_labels(16)
    ['1–8', '9–16', '17–20', '21–24', '25–']
    """
    edges = bucket_edges(longest)
    return [f"{low + 1}–{high}" for low, high in zip([0, *edges], [*edges, ""])]


def bucket_numbers(lengths: Sequence[int], longest: int) -> list[int]:
    """The bucket of each sentence.

    Example:

    >>> bucket_numbers([1, 8, 9, 16, 17, 90], 16)
    [0, 0, 1, 1, 2, 4]
    """
    return [sum(length > edge for edge in bucket_edges(longest)) for length in lengths]


def _by_length(trial, longest):
    numbers, hypotheses, references = [], [], []
    tokenizer = ModelDirectory.open(trial.model_dir).load_tokenizer()
    for split in trial.sentences.tests:
        corpus = trial.sentences.corpus(split)
        lengths = tokenizer.tokenize(list(corpus.sources())).row_lengths().numpy()
        numbers += bucket_numbers(lengths, longest)
        hypotheses += _translations(trial, split)
        references += corpus.targets()
    return [
        _of_bucket(bucket, numbers, hypotheses, references)
        for bucket in range(len(bucket_edges(longest)) + 1)
    ]


def _of_bucket(bucket, numbers, *sides):
    chosen = [place for place, number in enumerate(numbers) if number == bucket]
    if not chosen:
        return 0, None
    return len(chosen), metrics.sacrebleu(
        *([lines[place] for place in chosen] for lines in sides)
    ).value


def _translations(trial, split):
    # One translation a line; characters that str.splitlines ends a line at may be part of it.
    return trial.translations(split).read_text(encoding="utf-8").split("\n")[:-1]
