"""Tests of the files of checkpoints, of the best ones, and of the keys of their arrays."""

import json
import logging

import keras
import numpy as np
import pytest
from comparisons import assert_all_equal
from small_transformers import small_config
from tiny_training import fit, training_model

from t2t_relpos.models import Transformer
from trainer.training.batch_parts import RandomStreams
from trainer.training.checkpoints import (
    BestCheckpoints,
    Checkpoints,
    model_keys,
    optimizer_keys,
    read_state,
    read_weights,
)


def make_model(**settings):
    return training_model(optimizer=keras.optimizers.Adam, rate=0.1, dropout=0.5, **settings)


def variables(model):
    return [*model.transformer.variables, *model.optimizer.variables]


@pytest.fixture(scope="module")
def model():
    """Returns a model after two updates."""
    trained = make_model()
    fit(trained, steps=2)
    return trained


@pytest.fixture
def other():
    """Returns a model whose variables are ones."""
    made = make_model()
    for variable in variables(made):
        variable.assign(np.ones(variable.shape, variable.value.dtype.as_numpy_dtype))
    return made


@pytest.fixture
def checkpoints(tmp_path):
    return Checkpoints(tmp_path)


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def test_restore_returns_all_variables_and_the_number_of_batches(tmp_path, model, other):
    """A run counts batches and updates, because float16 may skip updates."""
    path = Checkpoints(tmp_path / "checkpoints").save(model, 17)
    assert path == tmp_path / "checkpoints" / "step-000017"
    assert names(path) == ["model.npz", "optimizer.npz", "state.json"]
    assert Checkpoints(tmp_path / "checkpoints").restore_latest(other) == 17
    assert_all_equal(variables(other), variables(model))
    assert int(other.optimizer.iterations) == 2
    assert names(tmp_path / "checkpoints") == ["step-000017"]


def test_resumed_training_has_the_same_dropout(checkpoints, other):
    uninterrupted = make_model()
    fit(uninterrupted, steps=2)
    checkpoints.save(uninterrupted, 2)
    fit(uninterrupted, steps=2)
    checkpoints.restore_latest(other)
    fit(other, steps=2)
    assert int(other.optimizer.iterations) == 4
    assert_all_equal(variables(other), variables(uninterrupted))


def test_restore_without_checkpoints_returns_0(tmp_path, model):
    before = [variable.numpy() for variable in variables(model)]
    assert Checkpoints(tmp_path / "none").restore_latest(model) == 0
    (tmp_path / ".writing-step-000009-x").mkdir()
    assert Checkpoints(tmp_path).restore_latest(model) == 0
    assert names(tmp_path) == []
    assert_all_equal(variables(model), before)


def test_last_checkpoints_in_numerical_order_are_kept(tmp_path, model):
    checkpoints = Checkpoints(tmp_path, keep=2)
    for step in (3, 999_998, 1_000_000, 999_999):
        checkpoints.save(model, step)
    (tmp_path / "step-x").mkdir()
    assert checkpoints.steps() == [999_999, 1_000_000]
    assert names(tmp_path) == ["step-1000000", "step-999999", "step-x"]


def damage_index(content):
    """Makes the offset of the first array negative, for which zipfile raises OSError."""
    content[-6] += 1


def flip_bits(content):
    # In model.npz, these bytes belong to the first array. Headers have no checksum.
    content[300:500] = bytes(byte ^ 1 for byte in content[300:500])


def truncate(content):
    del content[-100:]


def damage(path, change):
    content = bytearray(path.read_bytes())
    change(content)
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("model.npz", truncate),
        ("model.npz", flip_bits),
        ("model.npz", bytearray.clear),
        ("model.npz", damage_index),
        ("optimizer.npz", flip_bits),
        ("optimizer.npz", None),
        ("state.json", truncate),
    ],
)
def test_corrupt_checkpoint_is_ignored_with_a_warning(
    checkpoints, model, other, file, change, caplog
):
    checkpoints.save(model, 2)
    path = checkpoints.save(other, 3) / file
    if change is None:
        path.unlink()
    else:
        damage(path, change)
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert checkpoints.restore_latest(other) == 2
    assert "Ignoring the corrupt checkpoint" in caplog.text and "step-000003" in caplog.text
    assert_all_equal(variables(other), variables(model))
    assert names(checkpoints.directory) == ["corrupt-step-000003", "step-000002"]


def test_corrupt_checkpoints_do_not_displace_those_of_the_resumed_run(tmp_path, model):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (2, 8, 9):
        checkpoints.save(model, step)
    for step in (8, 9):
        damage(checkpoints.path(step) / "model.npz", truncate)
    resumed = Checkpoints(tmp_path, keep=2)
    assert resumed.restore_latest(model) == 2
    resumed.save(model, 4)
    assert resumed.steps() == [2, 4]


def test_checkpoint_that_can_not_be_read_is_not_corrupt(checkpoints, model, fill_disk):
    damage(checkpoints.save(model, 2) / "model.npz", truncate)
    with pytest.raises(ValueError, match="All 1 checkpoints in .* are corrupt. Remove them"):
        checkpoints.restore_latest(model)
    fill_disk(np, "load")  # another OSError than that of a corrupt index
    with pytest.raises(OSError, match="No space left on device"):
        checkpoints.restore_latest(model)
    assert names(checkpoints.directory) == ["step-000002"]


@pytest.mark.parametrize(("version", "age"), [(2, "an older"), (4, "a newer")])
def test_other_format_version_raises(checkpoints, model, version, age):
    path = checkpoints.save(model, 2)
    state = json.loads((path / "state.json").read_text()) | {"format_version": version}
    (path / "state.json").write_text(json.dumps(state))
    message = (
        f"step-000002 has format version {version}, written by {age} version of this program. "
        "This version reads format 3."
    )
    with pytest.raises(ValueError, match=message + " Train in another --model_dir."):
        checkpoints.restore_latest(model)
    with pytest.raises(ValueError, match=message):
        read_weights(path)


def test_restore_depends_on_keys_and_not_on_their_order(checkpoints, model, other):
    path = checkpoints.save(model, 2)
    state, arrays = json.loads((path / "state.json").read_text()), read_weights(path)

    def rewrite(key_of):
        for_state = {key_of(key): value for key, value in reversed(state["model"].items())}
        np.savez(path / "model.npz", **{key_of(key): arrays[key] for key in reversed(arrays)})
        (path / "state.json").write_text(json.dumps(state | {"model": for_state}))

    rewrite(lambda key: key)
    assert checkpoints.restore_latest(other) == 2
    assert_all_equal(variables(other), variables(model))
    rewrite(lambda key: key.replace("kernel", "other"))
    with pytest.raises(
        ValueError, match="First difference: dense/kernel, expected .* received none"
    ):
        checkpoints.restore_latest(other)


def test_restore_of_another_architecture_or_optimizer_raises(checkpoints, model):
    checkpoints.save(model, 2)
    message = (
        "arrays of this run's model. First difference: output_embedding/embeddings, expected shape "
        r"\[13, 9\], float32, received shape \[13, 8\], float32. .*step-000002 is incompatible."
    )
    with pytest.raises(ValueError, match=message):
        checkpoints.restore_latest(make_model(width=9))
    with pytest.raises(ValueError, match="Expected the .* arrays of this run's optimizer"):
        checkpoints.restore_latest(training_model(dropout=0.5))


def test_full_disk_keeps_the_previous_checkpoint(checkpoints, model, fill_disk):
    checkpoints.save(model, 2)
    fill_disk(np, "savez")
    with pytest.raises(OSError, match="No space left on device") as raised:
        checkpoints.save(model, 3)
    assert raised.value.filename == str(checkpoints.path(3))
    assert names(checkpoints.directory) == ["step-000002"]
    assert checkpoints.restore_latest(model) == 2


def test_checkpoint_that_fails_verification_is_removed(checkpoints, model, monkeypatch):
    written = np.savez

    def damaging(path, **arrays):
        written(path, **arrays)
        damage(path, flip_bits)

    monkeypatch.setattr(np, "savez", damaging)
    with pytest.raises(OSError, match="its verification failed: .*/step-0"):
        checkpoints.save(model, 2)
    assert names(checkpoints.directory) == []


@pytest.fixture
def offered(tmp_path, model):
    """Returns a function that offers checkpoints, given dev BLEU by step."""

    def offer(bleus, keep=2):
        best = BestCheckpoints(tmp_path, keep)
        return best, [best.offer(model, step, bleu) for step, bleu in bleus.items()]

    return offer


def test_best_checkpoints_are_kept_in_order(tmp_path, model, offered):
    best, written = offered({3: 10.5, 6: 30.25, 9: 20.0, 12: 5.0})
    assert written == [True, True, True, False]
    assert list(best.scores().items()) == [(6, 30.25), (9, 20.0)]
    assert best.steps() == [6, 9] and best.best() == tmp_path / "step-000006"
    assert_all_equal(read_weights(best.best()).values(), model.transformer.variables)


def test_earlier_of_equal_checkpoints_is_kept(offered):
    best, written = offered({3: 0.0, 6: 0.0}, keep=1)
    assert written == [True, False] and best.steps() == [3]


def test_same_step_is_replaced_only_if_better(offered):
    """A run that was killed and resumed repeats steps whose checkpoints exist."""
    offered({3: 10.0, 6: 20.0})
    assert offered({6: 20.0})[1] == offered({6: 15.0})[1] == [False]
    best, written = offered({3: 25.0})
    assert written == [True]
    assert list(best.scores().items()) == [(3, 25.0), (6, 20.0)]
    assert offered({9: 30.0}, keep=1)[0].steps() == [9]


def test_checkpoints_name_their_metric(tmp_path, model):
    """Those of earlier versions have dev BLEU and no name."""
    best = BestCheckpoints(tmp_path, 2)
    best.save(model, 3, dev_bleu=20.0)
    assert BestCheckpoints(tmp_path).scores() == {3: 20.0}
    best = BestCheckpoints(tmp_path / "chrf", 1, "dev_chrf")
    assert best.offer(model, 3, 50.0) and not best.offer(model, 6, 40.0)
    assert BestCheckpoints(tmp_path / "chrf").scores() == {3: 50.0}
    assert read_state(best.path(3))["best_metric"] == "dev_chrf"


def test_corrupt_checkpoint_is_not_the_best(offered, caplog):
    best, _ = offered({3: 10.0, 6: 20.0})
    (best.path(6) / "state.json").write_text("{")
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert best.best() == best.path(3)
    assert "Ignoring the corrupt checkpoint" in caplog.text and "step-000006" in caplog.text


def test_temporary_files_of_a_killed_run_are_removed(tmp_path, offered):
    assert BestCheckpoints(tmp_path / "best").best() is None
    (tmp_path / ".writing-step-000003-x").mkdir()
    offered({3: 10.0})
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000003"]


def make(position="relative"):
    model = Transformer(small_config(num_encoder_layers=2, dropout=0.5, position=position))
    ids = np.ones((1, 1), "int32")
    model({"inputs": ids, "targets": ids})
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer


@pytest.mark.parametrize("position", ["relative", "learned"])
def test_every_variable_has_a_key_that_is_equal_in_all_models(position):
    (model, optimizer), (other, other_optimizer) = make(position), make(position)
    assert model.variables[0].path != other.variables[0].path, "automatic names differ"
    keys, slots = model_keys(model), optimizer_keys(optimizer, model)
    assert list(keys) == list(model_keys(other))
    assert list(slots) == list(optimizer_keys(other_optimizer, other))
    assert list(map(id, keys.values())) == list(map(id, model.variables))
    assert list(map(id, slots.values())) == list(map(id, optimizer.variables))
    assert {
        "source_embedding/embeddings",
        "encoder_layers/1/self_attention/query_dense/kernel",
        "decoder_layers/0/cross_attention/query_dense/kernel",
        "embedding_dropout/seed_generator/state",
    } <= set(keys)
    assert ("encoder_layers/1/self_attention/key_embedding/table" in keys) == (
        position == "relative"
    )
    assert list(slots)[:2] == ["iteration", "learning_rate"]
    for name, variable in slots.items():
        key, _, slot = name.rpartition("/")
        if key:
            assert slot in ("momentum", "velocity") and variable.shape == keys[key].shape
    states = [variable for variable in model.variables if variable.name == "seed_generator_state"]
    assert set(map(id, RandomStreams(model)._states)) == set(map(id, states))


def test_hidden_variable_raises():
    class Hidden(keras.layers.Layer):
        def build(self, input_shape):
            self._parts = [self.add_weight(shape=(), name="hidden")]

    layer = Hidden()
    layer.build((None, 3))
    with pytest.raises(ValueError, match="Expected every variable .* Received: .*hidden"):
        model_keys(layer)
