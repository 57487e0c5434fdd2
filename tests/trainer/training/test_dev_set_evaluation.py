import keras
import pytest
import tensorflow as tf

from trainer.training.callbacks import Steps, StopSignals
from trainer.training.dev_set import DevEvaluator, DevResult, DevResults, DevScores, Sample

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


def test_bleu_is_reported_and_offered_to_best_checkpoints(tmp_path):
    best = Recorder()
    run = Run(tmp_path, translate=bleus(10.0, 20.0), best=best)
    run.at(2, 4)
    assert run.report.calls == [
        (DevResult(2, 2.5, 0.5, 10.0, 50.0), SAMPLES),
        (DevResult(4, 2.5, 0.5, 20.0, 50.0), SAMPLES),
    ]
    assert best.calls == [(2, 10.0), (4, 20.0)]


def test_chrf_may_choose_the_best_checkpoint(tmp_path):
    best = Recorder()
    run = Run(tmp_path, metric="dev_chrf", translate=bleus(10.0, 20.0), best=best)
    run.at(2, 4)
    assert best.calls == [(2, 50.0), (4, 50.0)] and run.evaluations.has_converged(1)


def test_has_converged_without_better_bleu(tmp_path):
    run = Run(tmp_path, last=100, translate=bleus(10.0, 20.0, 20.0, 15.0))
    run.at(2, 4, 6)
    assert not run.evaluations.has_converged(2)
    # Patience includes evaluations of earlier runs.
    again = Run(tmp_path, step=6, last=100, translate=bleus(15.0))
    again.at(8)
    assert again.evaluations.has_converged(2)


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
