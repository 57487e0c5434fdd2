"""Tests of evaluations on the dev set: when they run, their results, and translations."""

import json
from types import SimpleNamespace

import keras
import pytest
import tensorflow as tf
from pair_corpus import PairCorpus
from sacrebleu.metrics import BLEU, CHRF
from small_transformers import small_config

from examples.synthetic_corpus import generate
from trainer.model_dir import ModelDirectory
from trainer.serving.translation_module import TranslationModule, TranslationSettings
from trainer.serving.translator import Translation, Translator
from trainer.training import dev_set
from trainer.training.callbacks import Steps, StopSignals
from trainer.training.dev_set import (
    DevEvaluator,
    DevResult,
    DevResults,
    DevScores,
    DevTranslator,
    Sample,
)


def add_evaluations(file, bleus, until=0):
    evaluations = DevResults(file, until)
    for step, bleu in bleus.items():
        evaluations.add(DevResult(step, 2.5, 0.5, bleu))
    return evaluations


def test_file_has_one_line_per_evaluation(tmp_path):
    file = tmp_path / "evaluations.json"
    other = DevResults(file, 0, writes=False)
    other.add(DevResult(2, 1.5, 0.5))
    assert 2 in other and not file.exists()
    add_evaluations(file, {3: 12.5, 6: None})
    assert json.loads(file.read_text()) == [
        {"step": 3, "loss": 2.5, "accuracy": 0.5, "bleu": 12.5, "chrf": None},
        {"step": 6, "loss": 2.5, "accuracy": 0.5, "bleu": None, "chrf": None},
    ]
    assert len(file.read_text().splitlines()) == 4


def test_resumed_run_drops_later_evaluations(tmp_path):
    add_evaluations(tmp_path / "file", {3: 10.0, 6: 20.0, 9: 5.0})
    again = DevResults(tmp_path / "file", until=7)
    assert 6 in again and 9 not in again
    assert again.best() == DevResult(6, 2.5, 0.5, 20.0) and again.without_improvement() == 0
    again.add(DevResult(9, 2.5, 0.5, 15.0))
    assert again.without_improvement() == 1
    assert [entry.step for entry in DevResults(tmp_path / "file", until=100).entries] == [3, 6, 9]


def test_equal_or_missing_bleu_is_no_improvement(tmp_path):
    evaluations = add_evaluations(tmp_path / "file", {3: 0.0, 6: 0.0, 9: None, 12: 0.0})
    assert evaluations.best().step == 3 and evaluations.without_improvement() == 2
    evaluations = add_evaluations(tmp_path / "other", {3: None, 6: None})
    assert evaluations.best() is None and evaluations.without_improvement() == 0


def test_best_entry_by_chrf(tmp_path):
    """Entries of earlier versions have no chrF."""
    file = tmp_path / "file"
    file.write_text('[{"step": 3, "loss": 2.5, "accuracy": 0.5, "bleu": 40.0}]')
    results = DevResults(file, 3, "dev_chrf")
    assert results.best() is None
    for step, bleu, chrf in ((6, 30.0, 50.0), (9, 20.0, 60.0), (12, 35.0, 55.0)):
        results.add(DevResult(step, 2.5, 0.5, bleu, chrf))
    assert results.score(results.best()) == 60.0 and results.without_improvement() == 1
    by_bleu = DevResults(file, 12)
    assert (by_bleu.best().step, by_bleu.without_improvement()) == (3, 3)


@pytest.mark.parametrize("content", ["[", '[{"step": 3}]', "3"])
def test_invalid_file_raises(tmp_path, content):
    (tmp_path / "file").write_text(content)
    message = "Expected a list of evaluations in .*Restore the file, or remove it"
    with pytest.raises(ValueError, match=message):
        DevResults(tmp_path / "file", until=3)


def test_step_without_bleu_is_evaluated_again_if_bleu_is_required(tmp_path):
    file = tmp_path / "file"
    add_evaluations(file, {3: None, 6: None})
    assert 6 in DevResults(file, until=6)
    again = DevResults(file, until=6, with_scores=True)
    assert 3 in again and 6 not in again
    again.add(DevResult(6, 2.5, 0.5, 12.5))
    assert [(entry.step, entry.bleu) for entry in again.entries] == [(3, None), (6, 12.5)]
    assert 6 in DevResults(file, until=6, with_scores=True)


DEV = tf.data.Dataset.range(3)
SAMPLES = [Sample("a dog", "ein Hund", "ein Hut")]


class Model:
    stop_training = stop_evaluating = False

    def __init__(self):
        self.distribute_strategy = tf.distribute.get_strategy()
        self.evaluated = 0
        self.during = lambda: None

    def evaluate(self, batches, steps, verbose, callbacks, return_dict):
        assert (batches, steps, return_dict) == (DEV, 3, True)
        self.evaluated += 1
        self.during()
        callbacks = keras.callbacks.CallbackList(callbacks, model=self)
        callbacks.on_test_begin()
        callbacks.on_test_batch_end(0, {})
        return {"loss": 2.5, "accuracy": 0.5, "target_tokens": 4.0}


class Recorder:
    """A report, and a storage of best checkpoints, that record their calls."""

    def __init__(self):
        self.calls = []

    def evaluated(self, evaluation, samples):
        self.calls.append((evaluation, samples))

    def offer(self, model, step, bleu):
        self.calls.append((step, bleu))


class Run:
    """A run at `step` with evaluations every two steps."""

    def __init__(self, directory, step=0, last=10, metric="dev_bleu", **settings):
        self.signals, self.report, self.model = StopSignals(), Recorder(), Model()
        self.steps = Steps(step, last, self.signals)
        self.evaluations = DevResults(directory / "evaluations.json", step, metric)
        self.evaluate = DevEvaluator(
            self.steps, 2, DEV, self.evaluations, reports=[self.report], **settings
        )

    def at(self, *steps):
        for self.steps.step in steps:
            self.evaluate.evaluate_if_due(self.model)
        return [entry.step for entry in self.evaluations.entries]


def bleus(*values):
    remaining = iter(values)
    return lambda interrupted: None if interrupted() else DevScores(next(remaining), 50.0, SAMPLES)


def test_evaluates_at_multiples_and_after_the_last_step(tmp_path):
    run = Run(tmp_path, last=7)
    assert run.at(0, 2, 3, 4, 7) == [2, 4, 7]
    assert run.report.calls == [(DevResult(step, 2.5, 0.5), []) for step in (2, 4, 7)]


def test_resumed_run_does_not_repeat_evaluations(tmp_path):
    Run(tmp_path).at(2, 4)
    again = Run(tmp_path, step=4)
    again.at(4)
    assert again.model.evaluated == 0
    killed_before_4 = Run(tmp_path, step=2)
    killed_before_4.at(4)
    assert killed_before_4.model.evaluated == 1


@pytest.mark.parametrize(
    ("metric", "offered"),
    [("dev_bleu", [(2, 10.0), (4, 20.0)]), ("dev_chrf", [(2, 50.0), (4, 50.0)])],
)
def test_scores_are_reported_and_offered_to_best_checkpoints(tmp_path, metric, offered):
    best = Recorder()
    run = Run(tmp_path, metric=metric, translate=bleus(10.0, 20.0), best=best)
    run.at(2, 4)
    assert run.report.calls == [
        (DevResult(2, 2.5, 0.5, 10.0, 50.0), SAMPLES),
        (DevResult(4, 2.5, 0.5, 20.0, 50.0), SAMPLES),
    ]
    assert best.calls == offered and run.evaluations.has_converged(1) == (metric == "dev_chrf")


@pytest.mark.parametrize("during", ["nothing", "loss", "translation"])
def test_signal_skips_or_stops_an_evaluation(tmp_path, during):
    def interrupt():
        run.signals.received = 15

    def translate(interrupted):
        interrupt()
        assert interrupted()

    run = Run(tmp_path, translate=translate, best=Recorder())
    if during == "nothing":
        interrupt()
    elif during == "loss":
        run.model.during = interrupt
    assert run.at(2) == [] and run.report.calls == []
    assert run.model.evaluated == (during != "nothing")
    assert run.model.stop_evaluating == (during == "loss")


def test_scores_come_from_the_chief(tmp_path):
    run = Run(tmp_path, from_chief=lambda value: 12.5 if value is None else value)
    run.at(2)
    assert run.evaluations.entries == [DevResult(2, 2.5, 0.5, 12.5, 12.5)]


PAIRS = tuple(generate("dev", size=70))


def test_scores_equal_those_of_greedy_translations_by_the_current_weights(trained_model_dir):
    directory, corpus = ModelDirectory.open(trained_model_dir), PairCorpus(PAIRS[:24])
    model = directory.load_model()
    translate = DevTranslator(model, directory.load_tokenizers(), corpus, longest=60)
    before = model.get_weights()
    model.set_weights([0 * weight for weight in before])
    assert translate().bleu == 0
    model.set_weights(before)
    module = TranslationModule.from_model_dir(trained_model_dir, TranslationSettings(beam_size=1))
    # Without a graph, which takes longer to trace than to run.
    translations = Translator(module.serve.python_function, module)(list(corpus.sources()))
    answers = [translation.text.decode() for translation in translations]
    bleu = BLEU().corpus_score(answers, [list(corpus.targets())]).score
    dev = translate()
    assert dev.bleu == pytest.approx(bleu) and bleu > 0
    chrf = CHRF().corpus_score(answers, [list(corpus.targets())]).score
    assert dev.chrf == pytest.approx(chrf) and chrf > 0
    assert dev.samples == [Sample(*corpus.pairs[i], answers[i]) for i in (0, 8, 16)]


@pytest.fixture
def lowered(monkeypatch):
    """Returns a function that makes a `DevTranslator` which returns sources in lower case."""
    lower = lambda sentences: [Translation(text.lower(), 0.0, False) for text in sentences]
    monkeypatch.setattr(dev_set, "TranslationModule", lambda *_: SimpleNamespace(serve=None))
    monkeypatch.setattr(dev_set, "Translator", lambda *_: lower)
    transformer = SimpleNamespace(config=small_config())
    return lambda corpus, **options: DevTranslator(transformer, None, corpus, 9, **options)


def test_samples_of_a_small_dev_set(lowered):
    pairs = ("A dog.", "Ein Hund."), ("", "")
    samples = lowered(PairCorpus(pairs))().samples
    assert samples == [Sample("A dog.", "Ein Hund.", "a dog."), Sample("", "", "")]


def test_bleu_of_text_without_spaces_needs_a_tokenizer(lowered):
    corpus = PairCorpus((("你好，世界！", "你好，世界！"), ("今天天气很好。", "今天天气很好。")))
    assert lowered(corpus)().bleu == 0
    assert lowered(corpus, bleu_tokenize="zh")().bleu == pytest.approx(100)
    assert lowered(corpus)().chrf == pytest.approx(100)


def test_interrupted_translation_returns_none(lowered):
    calls, corpus = [], PairCorpus(PAIRS)

    def interrupted():
        calls.append(None)
        return len(calls) > 1

    translate = lowered(corpus)
    assert translate(interrupted) is None
    assert len(calls) == 2
    assert [sample.source for sample in translate().samples] == [
        corpus.pairs[i][0] for i in (0, 23, 46)
    ]
