"""Tests of training from the weights of another model directory, with a new schedule."""

import json

import keras
import pytest
from comparisons import assert_all_equal
from keras import ops

from t2t_relpos.models import Transformer, TransformerConfig
from trainer import recipes, train
from trainer.average import write_average
from trainer.config import RunConfig
from trainer.data.sentencepiece_tokenizer import SentencePieceTokenizer
from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints
from trainer.training.training_run import TrainingRun

LINES = ["the dog sees a man", "the cat sees a tree", "a bird sees the dog"]


@pytest.fixture
def parent(tmp_path):
    directory = ModelDirectory.create(tmp_path / "parent")
    tokenizer = SentencePieceTokenizer.train(LINES, vocab_size=24)
    tokenizer.save(directory.vocabulary_file())
    config = TransformerConfig.from_preset(
        "tiny",
        vocab_size=24,
        num_encoder_layers=1,
        num_decoder_layers=1,
        hidden_dim=12,
        intermediate_dim=17,
        num_heads=3,
    )
    directory.save_model(Transformer(config))
    directory.write_run(
        {"label_smoothing": 0.25, "warmup_steps": 7, "batch_tokens": 50, "learning_rate": 1.0}
    )
    directory.write_config(config.to_dict())
    return directory


def settings(parent, **others):
    text = parent.path.parent / "text"
    text.write_text("\n".join(LINES) + "\n")
    return {
        "init_from": str(parent.path),
        "model_dir": str(parent.path.parent / "child"),
        "train_source": str(text),
        "train_target": str(text),
        "train_steps": 1,
        "adam_beta1": 0.9,
        "adam_beta2": 0.98,
        "adam_epsilon": 1e-9,
    } | others


def weights(directory):
    return [ops.convert_to_numpy(w) for w in directory.load_model().get_weights()]


@pytest.mark.slow
def test_init_from_inherits_weights_and_settings(parent):
    # The first update has a learning rate of 0, so the weights are still the parent's.
    train.train(RunConfig(**settings(parent, dropout=0.5, warmup_steps=11)))
    child = ModelDirectory.open(parent.path.parent / "child")
    assert_all_equal(weights(child), weights(parent))
    assert child.load_tokenizer().fingerprint == parent.load_tokenizer().fingerprint
    assert child.read_config()["architecture"] == parent.read_config()["architecture"] | {
        "dropout": 0.5
    }
    recorded = json.loads(child.run_file.read_text())
    assert (recorded["label_smoothing"], recorded["warmup_steps"], recorded["batch_tokens"]) == (
        0.25,
        11,
        50,
    )


@pytest.mark.slow
def test_fine_tuning_resumes_from_its_own_checkpoint(parent):
    train.train(RunConfig(**settings(parent, train_steps=3)))
    child = ModelDirectory.open(parent.path.parent / "child")
    before = weights(child)
    train.train(RunConfig(**settings(parent, train_steps=3)))
    assert_all_equal(weights(child), before)
    assert any((ours != theirs).any() for ours, theirs in zip(before, weights(parent), strict=True))


@pytest.mark.slow
def test_init_from_an_average_starts_a_new_schedule(parent):
    train.train(RunConfig(**settings(parent, train_steps=3, checkpoint_every=1)))
    child = ModelDirectory.open(parent.path.parent / "child")
    average = ModelDirectory(parent.path.parent / "average")
    write_average(
        child, [Checkpoints(child.checkpoints).path(step) for step in (2, 3)], average.path
    )
    changes = {
        "learning_rate": 0.5,
        "warmup_steps": 11,
        "model_dir": str(parent.path.parent / "grandchild"),
    }
    run = TrainingRun(RunConfig(**settings(parent, init_from=str(average.path), **changes)))
    run.directory.unlock()
    # The new schedule starts from step 0.
    rates = keras.saving.deserialize_keras_object(run.model.optimizer.get_config()["learning_rate"])
    assert rates.get_config() == {"model_width": 12, "warmup_steps": 11, "multiplier": 0.5}
    assert run.step == 0 and run.config.label_smoothing == 0.25
    assert_all_equal(run.model.transformer.get_weights(), weights(average))


@pytest.mark.parametrize(
    "others, message",
    [
        ({"preset": "tiny"}, "Expected either preset or init_from. Received: both"),
        ({"max_relative_position": 3}, "Expected no max_relative_position with init_from"),
        ({"position": "learned"}, "Expected no position with init_from.*Received: learned"),
        ({"use_key_table": False}, "Expected no use_key_table with init_from.*Received: False"),
        (
            {"train_steps": None},
            "Expected train_steps, which .*parent does not record.*Give --train_steps",
        ),
        ({"init_from": "nowhere"}, "Expected a model directory.*nowhere, which does not exist"),
    ],
)
def test_invalid_settings_raise(parent, others, message):
    with pytest.raises(ValueError, match=message):
        RunConfig(**settings(parent, **others)).resolve()


def test_other_vocab_size_raises(parent):
    with pytest.raises(SystemExit, match="Expected the vocab_size of .*parent, 24. Received: 99"):
        train.train(RunConfig(**settings(parent, vocab_size=99)))


def test_init_from_inherits_settings_without_a_default(parent):
    recorded = {"device_tokens": 11, "checkpoint_minutes": 2.5, "keep_checkpoints": 7}
    parent.write_run(parent.read_run() | recorded | {"checkpoint_every": None})
    config = RunConfig(**settings(parent)).resolve()
    assert {name: getattr(config, name) for name in recorded} == recorded
    assert config.checkpoint_every is None
    assert RunConfig(**settings(parent, device_tokens=13)).resolve().device_tokens == 13


def test_all_settings_of_recipes_are_inherited():
    names = {name for recipe in recipes.RECIPES.values() for name in recipe}
    assert names == {"vocab_size", *recipes._REQUIRED, *recipes._OPTIONAL}


def test_max_length_above_the_learned_positions_raises(parent):
    config = parent.read_config()["architecture"] | {"position": "learned", "max_length": 64}
    parent.write_config(config)
    message = (
        "Expected max_length of at most 64, the number of learned positions of .*parent. Received: "
        "65. Give --max_length=64."
    )
    with pytest.raises(SystemExit, match=message):
        train.train(RunConfig(**settings(parent, max_length=65)))


def test_directory_with_the_vocabulary_of_another_parent_raises(parent):
    child = ModelDirectory.create(parent.path.parent / "child")
    SentencePieceTokenizer.train(reversed(LINES), vocab_size=23).save(child.vocabulary_file())
    child.write_config(parent.read_config()["architecture"] | {"vocab_size": 23})
    message = "Expected a model directory created with the vocabulary of this run. .* sha256 is"
    with pytest.raises(SystemExit, match=message):
        train.train(RunConfig(**settings(parent)))
