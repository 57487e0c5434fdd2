"""Tests of training from the weights of another model directory, with a new schedule."""

import shutil

import pytest
from comparisons import assert_all_equal

from trainer import recipes
from trainer.average import write_average
from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints
from trainer.training.training_run import TrainingRun

# Settings of `SmallRun` that a run with `init_from` inherits.
INHERITED = dict.fromkeys(("preset", "vocab_size", "batch_tokens", "checkpoint_every"))


def copy_of(path, folder):
    """Returns a copy of a trained model directory, with other recorded settings."""
    directory = ModelDirectory(shutil.copytree(path, folder / "parent"))
    directory.write_run(
        {"label_smoothing": 0.25, "warmup_steps": 7, "batch_tokens": 50, "learning_rate": 1.0}
    )
    return directory


@pytest.fixture
def parent(finished_run, tmp_path):
    return copy_of(finished_run, tmp_path)


@pytest.fixture
def child(parent):
    return ModelDirectory(parent.path.with_name("child"))


def settings(parent, **others):
    adam = {"adam_beta1": 0.9, "adam_beta2": 0.98, "adam_epsilon": 1e-9}
    return INHERITED | {"init_from": str(parent.path), "train_steps": 1} | adam | others


def weights(directory):
    return directory.load_model().get_weights()


def test_init_from_inherits_weights_and_settings(each_run, small_run, tmp_path):
    parent, child = copy_of(each_run.path, tmp_path), ModelDirectory(tmp_path / "child")
    # The first update has a learning rate of 0, so the weights are still the parent's.
    given = small_run.settings(each_run.kind) | settings(parent, dropout=0.5, warmup_steps=11)
    small_run(child.path, **given | dict.fromkeys(each_run.sizes))
    assert_all_equal(weights(child), weights(parent))
    assert child.vocabularies == [x | {"made_from": "init_from"} for x in parent.vocabularies]
    for one, other in zip(child.load_tokenizers(), parent.load_tokenizers()):
        assert one.fingerprint == other.fingerprint
    architecture = parent.read_config()["architecture"] | {"dropout": 0.5}
    assert child.read_config()["architecture"] == architecture
    recorded = child.read_run()
    names = "label_smoothing", "warmup_steps", "batch_tokens", "init_from"
    assert [recorded[name] for name in names] == [0.25, 11, 50, str(parent.path)]


def test_fine_tuning_resumes_from_its_own_checkpoint(parent, child, small_run):
    small_run(child.path, **settings(parent, train_steps=3))
    before = weights(child)
    small_run(child.path, **settings(parent, train_steps=3))
    assert_all_equal(weights(child), before)
    assert any((ours != theirs).any() for ours, theirs in zip(before, weights(parent), strict=True))


def test_init_from_an_average_starts_a_new_schedule(parent, child, small_run):
    average = ModelDirectory(parent.path.with_name("average"))
    paths = [Checkpoints(parent.checkpoints).path(step) for step in (6, 9)]
    write_average(parent, paths, average.path)
    changes = {"learning_rate": 0.5, "warmup_steps": 11}
    run = TrainingRun(small_run.config(child.path, **settings(average, **changes)))
    run.directory.unlock()
    # The new schedule starts from step 0.
    assert float(run._schedule(11)) == pytest.approx(0.5 * 12**-0.5 * 11**-0.5)
    assert run.step == 0 and run.config.label_smoothing == 0.25
    assert_all_equal(run.model.transformer.get_weights(), weights(average))


@pytest.mark.parametrize(
    "others, message",
    [
        ({"position": "learned"}, "Expected no position with init_from.* Received: 'learned'"),
        ({"use_key_table": False}, "Expected no use_key_table with init_from.*Received: False"),
        ({"train_steps": None}, "Expected train_steps, which .*parent does not record.*Give"),
        ({"init_from": "nowhere"}, "Expected a model directory.*nowhere, which does not exist"),
    ],
)
def test_invalid_settings_raise(parent, child, small_run, others, message):
    with pytest.raises(ValueError, match=message):
        small_run.config(child.path, **settings(parent, **others)).resolve()


def test_init_from_inherits_settings_without_a_default(parent, child, small_run):
    recorded = {"device_tokens": 11, "checkpoint_minutes": 2.5, "keep_checkpoints": 7}
    parent.write_run(parent.read_run() | recorded | {"checkpoint_every": None})
    config = small_run.config(child.path, **settings(parent)).resolve()
    assert {name: getattr(config, name) for name in recorded} == recorded
    assert config.checkpoint_every is None
    config = small_run.config(child.path, **settings(parent, device_tokens=13)).resolve()
    assert config.device_tokens == 13


def test_all_settings_of_recipes_are_inherited():
    names = {name for recipe in recipes.RECIPES.values() for name in recipe}
    assert names == {"vocab_size", *recipes._REQUIRED, *recipes._OPTIONAL}


def test_max_length_above_the_learned_positions_raises(parent, child, small_run):
    config = parent.read_config()["architecture"] | {"position": "learned", "max_length": 64}
    parent.write_config(config, parent.load_tokenizers())
    message = (
        f"Expected max_length of at most 64, the number of learned positions of {parent.path}. "
        "Received: 65. Give --max_length=64."
    )
    assert message in small_run.fails(child.path, **settings(parent, max_length=65))
