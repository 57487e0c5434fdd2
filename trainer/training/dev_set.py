"""Evaluation of a model on the dev set during training, its results, and BLEU and chrF."""

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

import keras
import tensorflow as tf

from .. import atomic_files, metrics
from ..data.corpus import Corpus
from ..metrics import DEFAULT_TOKENIZER
from ..serving.translation_module import TranslationModule, TranslationSettings
from ..serving.translator import Translator, translate_texts
from .batch_parts import shard
from .callbacks import Steps
from .checkpoints import BestCheckpoints, rank

# Names in reports of the metrics that `--best_metric` selects.
METRIC_NAMES = {"dev_bleu": "dev BLEU", "dev_chrf": "dev chrF2", "dev_loss": "dev loss"}
_SAMPLES = 3
_BATCH_SIZE = 64


class DevResult(NamedTuple):
    """Loss and accuracy per target token on the dev set, and BLEU and chrF2, or None."""

    step: int
    loss: float
    accuracy: float
    bleu: float | None = None
    chrf: float | None = None


def format_score(metric: str, score: float) -> str:
    """Returns the value of a metric with its usual number of digits."""
    return f"{score:.4f}" if metric == "dev_loss" else f"{score:.2f}"


class DevResults:
    """The results of a run on the dev set, in the order of their steps.

    Args:
        file: file of the results. It is read if it exists.
        until: the step that the run resumes from. Later entries are dropped, because the run
            repeats them.
        metric: the metric of the best entry, a key of `METRIC_NAMES`.
        writes: whether this process writes the file.
        with_scores: whether an entry of the step `until` without the metric is dropped too.
    """

    def __init__(
        self,
        file: Path,
        until: int,
        metric: str = "dev_bleu",
        *,
        writes: bool = True,
        with_scores: bool = False,
    ):
        self.file = file
        self._metric = metric
        self._writes = writes
        self.entries = [entry for entry in _read(file) if entry.step <= until]
        if with_scores:
            kept = (e for e in self.entries if e.step < until or self.score(e) is not None)
            self.entries = list(kept)

    def __contains__(self, step: int):
        return any(entry.step == step for entry in self.entries)

    def add(self, result: DevResult):
        """Adds a result and writes the file."""
        self.entries.append(result)
        if self._writes:
            lines = ",\n".join(json.dumps(entry._asdict()) for entry in self.entries)
            atomic_files.write_text(self.file, f"[\n{lines}\n]\n")

    def score(self, result: DevResult) -> float | None:
        """Returns the metric of a result, or None if it was not computed."""
        return getattr(result, self._metric.removeprefix("dev_"))

    def best(self) -> DevResult | None:
        """Returns the first entry with the best metric, or None if no entry has it."""
        return max(
            self._scored(), key=lambda entry: rank(self._metric, self.score(entry)), default=None
        )

    def without_improvement(self) -> int:
        """Returns the number of entries with the metric after the best one."""
        best = self.best()
        return sum(entry.step > best.step for entry in self._scored()) if best else 0

    def has_converged(self, patience: int | None) -> bool:
        """Returns whether the last `patience` evaluations, if given, gave no better score."""
        return patience is not None and self.without_improvement() >= patience

    def _scored(self):
        return [entry for entry in self.entries if self.score(entry) is not None]


def _read(file):
    if not file.is_file():
        return []
    try:
        return [DevResult(**entry) for entry in json.loads(file.read_text(encoding="utf-8"))]
    except (ValueError, TypeError) as error:
        raise ValueError(
            f"Expected a list of evaluations in {file}. Received: invalid content ({error}). "
            "Restore the file, or remove it to start a new list."
        ) from error


class Sample(NamedTuple):
    source: str
    reference: str
    translation: str


class DevScores(NamedTuple):
    """sacreBLEU's BLEU and chrF2 of cased and detokenized text, and sample translations."""

    bleu: float
    chrf: float
    samples: list[Sample]


class _Interrupted(Exception):
    pass


class DevTranslator:
    """A function that translates the dev set with greedy search.

    The graph is traced once. Every call uses the current weights of the model. `longest` is the
    number of ids of the longest source sentence, with EOS.
    """

    def __init__(
        self,
        transformer: keras.Model,
        tokenizers,
        corpus: Corpus,
        longest: int,
        bleu_tokenize: str = DEFAULT_TOKENIZER,
    ):
        longest = min(longest, transformer.config.num_positions or longest)
        settings = TranslationSettings(beam_size=1, max_input_length=max(longest, 2))
        module = TranslationModule(transformer, tokenizers, settings)
        self._translate = Translator(module.serve, module)
        self._pairs = list(corpus)
        self._bleu_tokenize = bleu_tokenize

    def __call__(self, interrupted: Callable[[], bool] = lambda: False) -> DevScores | None:
        """Returns scores and samples, or None if `interrupted()` returns True before a batch."""

        def translate(sentences):
            if interrupted():
                raise _Interrupted
            return self._translate(sentences)

        sources, references = zip(*self._pairs)
        try:
            hypotheses, _ = translate_texts(translate, sources, _BATCH_SIZE)
        except _Interrupted:
            return None
        bleu = metrics.sacrebleu(hypotheses, references, self._bleu_tokenize).value
        chrf = metrics.score("chrf", hypotheses, references).value
        rows = range(0, len(hypotheses), max(1, len(hypotheses) // _SAMPLES))[:_SAMPLES]
        return DevScores(bleu, chrf, [Sample(*self._pairs[i], hypotheses[i]) for i in rows])


@dataclasses.dataclass(frozen=True)
class DevEvaluator:
    """Evaluates a model on the dev set, and saves and reports the results.

    Args:
        steps: the step counter.
        every: number of steps between evaluations.
        batches: batches of the dev set over all devices, of known cardinality.
        evaluations: storage of the results.
        reports: objects whose method `evaluated(result, samples)` is called.
        translate: a `DevTranslator`, or None. Only the chief has one.
        best: storage of the best checkpoints, or None.
        from_chief: function that broadcasts a value from the chief to all workers.
    """

    steps: Steps
    every: int
    batches: tf.data.Dataset
    evaluations: DevResults
    _: dataclasses.KW_ONLY
    reports: Sequence = ()
    translate: DevTranslator | None = None
    best: BestCheckpoints | None = None
    from_chief: Callable[[float | None], float | None] = lambda value: value

    def evaluate_if_due(self, model: keras.Model):
        """Evaluates the model if the step is due and has no result. A signal interrupts it."""
        step = self.steps.step
        is_due = step and (step % self.every == 0 or step >= self.steps.last)
        if not is_due or step in self.evaluations or self.steps.interrupted:
            return
        logs = model.evaluate(
            shard(self.batches, model.distribute_strategy),
            steps=int(self.batches.cardinality()),
            verbose=0,
            callbacks=[self.steps],
            return_dict=True,
        )
        dev = self.translate and self.translate(lambda: self.steps.interrupted)
        if self.steps.interrupted:
            return
        scores = map(self.from_chief, (dev.bleu, dev.chrf) if dev else (None, None))
        result = DevResult(self.steps.step, logs["loss"], logs["accuracy"], *scores)
        # Write the checkpoint first: a run killed before `add` evaluates again after it resumes.
        if self.best is not None:
            self.best.offer(model, result.step, self.evaluations.score(result))
        self.evaluations.add(result)
        for report in self.reports:
            report.evaluated(result, dev.samples if dev else [])
