import logging
import re

import numpy as np
import pytest

from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.training.nan_stop import NotFiniteError, StopAtNan
from trainer.training.step_counter import Steps

LINES = ["the dog sees a man", "the cat sees a tree"]


@pytest.fixture
def tokenizer():
    return SentencePieceTokenizer.train(LINES, vocab_size=24)


@pytest.fixture
def stop(tmp_path, tokenizer):
    def batch(number):
        ids = tokenizer.tokenize(LINES).to_tensor()
        return {"inputs": ids, "targets": ids[:, ::-1] + 0 * number}

    steps = Steps(100, 200)
    made = StopAtNan(
        steps, tmp_path / "nan", batch, tokenizer, schedule=lambda update: update / 1000
    )
    made.steps = steps
    steps.step, steps.before = 117, 116
    return made


FINE = {"loss": 2.5, "gradient_norm": 0.5, "accuracy": 0.5}


def test_finite_numbers_pass(stop, tmp_path):
    stop.on_train_batch_end(0, FINE)
    stop.on_train_batch_end(0, {"loss": 2.5})
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    "logs", [{"loss": float("nan")}, {"loss": float("inf")}, {"gradient_norm": float("inf")}]
)
def test_not_finite_value_raises_and_saves_the_batch(stop, tmp_path, tokenizer, logs):
    ((name, value),) = logs.items()
    path = tmp_path / "nan" / "step-000117.npz"
    message = (
        f"Expected a finite {name.replace('_', ' ')}. Received: {value} at step 117, with "
        f"learning rate 0.116. Saved the batch: {path}, with the arrays inputs, targets, "
        "source_text and target_text. Print it with: python -c "
    )
    with pytest.raises(NotFiniteError, match=re.escape(message)):
        stop.on_train_batch_end(0, FINE | logs)
    with np.load(path) as saved:
        np.testing.assert_array_equal(saved["inputs"], tokenizer.tokenize(LINES).to_tensor())
        np.testing.assert_array_equal(saved["targets"], saved["inputs"][:, ::-1])
        assert saved["source_text"].tolist() == LINES
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_command_in_the_message_prints_the_batch(stop, capsys):
    with pytest.raises(NotFiniteError) as raised:
        stop.on_train_batch_end(0, {"loss": float("nan")})
    names = {}
    exec(re.search('python -c "(.*)"', str(raised.value))[1], names)
    names["batch"].close()
    assert LINES[0] in capsys.readouterr().out


def test_float16_accepts_gradients_that_are_not_finite(stop):
    stop.on_train_batch_end(0, FINE | {"gradient_norm": float("inf"), "loss_scale": 32768.0})
    with pytest.raises(NotFiniteError, match="Expected a finite loss"):
        stop.on_train_batch_end(0, FINE | {"loss": float("nan"), "loss_scale": 32768.0})


def test_all_batches_of_an_execution_are_saved(stop, tmp_path):
    stop.steps.before = 114
    with pytest.raises(
        NotFiniteError,
        match="at one of the steps 115 to 117, .* Saved the batch: .*-000115.npz to .*-000117.npz",
    ):
        stop.on_train_batch_end(0, {"loss": float("nan")})
    assert len(list((tmp_path / "nan").iterdir())) == 3


def test_batch_that_can_not_be_saved_is_reported(stop, tmp_path):
    (tmp_path / "nan").write_text("a file")
    with pytest.raises(NotFiniteError, match="Its batch could not be saved in .*nan .File exists."):
        stop.on_train_batch_end(0, {"loss": float("nan")})


def test_very_large_loss_warns_once(stop, caplog):
    with caplog.at_level(logging.WARNING, logger="absl"):
        stop.on_train_batch_end(0, FINE | {"loss": 15.5})
        assert caplog.text == ""
        for _ in range(2):
            stop.on_train_batch_end(0, FINE | {"loss": 7.7e10})
    assert [record.getMessage() for record in caplog.records] == [
        "Training diverges: the loss is 7.7e+10 at step 117, but uniform probabilities have a "
        "loss of 3.18. Lower --learning_rate or raise --warmup_steps."
    ]
