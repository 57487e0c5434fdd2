import errno
import json
import logging
import os

import keras
import numpy as np
import pytest
import tensorflow as tf
from comparisons import assert_all_equal
from small_transformers import small_config

from t2t_relpos.models import Transformer
from trainer.training.checkpoints import (
    Checkpoints,
    read_weights,
    restore_transformer,
)
from trainer.training.training_model import TrainingModel

BATCH = {"inputs": np.array([[5, 7, 1]], "int32"), "targets": np.array([[3, 1]], "int32")}


def made_model(hidden_dim=6, optimizer=None):
    # With these sizes, `flip_bits` changes an array in model.npz and not a header of the file.
    sizes = {"hidden_dim": hidden_dim, "max_relative_position": 16}
    model = TrainingModel(Transformer(small_config(dropout=0.5, **sizes)))
    model.compile(optimizer or keras.optimizers.Adam(0.1), run_eagerly=True)
    return model


def train(model, steps):
    model.fit(
        tf.data.Dataset.from_tensors(BATCH).repeat(),
        steps_per_epoch=steps,
        verbose=0,
        shuffle=False,
    )


def values(model):
    return [
        variable.value.numpy()
        for variable in [*model.transformer.variables, *model.optimizer.variables]
    ]


def assert_equal(one, other):
    assert len(one) == len(other)
    assert_all_equal(one, other)


@pytest.fixture(scope="module")
def model():
    keras.utils.set_random_seed(3)
    trained = made_model()
    train(trained, 2)
    return trained


@pytest.fixture(scope="module")
def other():
    return made_model()


def scramble(model):
    for variable in [*model.transformer.variables, *model.optimizer.variables]:
        variable.assign(np.ones(variable.shape, variable.value.dtype.as_numpy_dtype))


def advance(model):
    model.optimizer.iterations.assign_add(1)


def save(checkpoints, model):
    return checkpoints.save(model, int(model.optimizer.iterations))


def test_restore_returns_all_variables(tmp_path, model, other):
    checkpoints = Checkpoints(tmp_path / "checkpoints")
    path = save(checkpoints, model)
    assert path == tmp_path / "checkpoints" / "step-000002"
    assert sorted(entry.name for entry in path.iterdir()) == [
        "model.npz",
        "optimizer.npz",
        "state.json",
    ]
    scramble(other)
    assert Checkpoints(tmp_path / "checkpoints").restore_latest(other) == 2
    assert_equal(values(other), values(model))
    assert [entry.name for entry in (tmp_path / "checkpoints").iterdir()] == ["step-000002"]


def test_resumed_training_has_the_same_dropout(tmp_path, other):
    keras.utils.set_random_seed(5)
    uninterrupted = made_model()
    train(uninterrupted, 2)
    save(Checkpoints(tmp_path), uninterrupted)
    train(uninterrupted, 2)
    Checkpoints(tmp_path).restore_latest(other)
    train(other, 2)
    assert int(other.optimizer.iterations) == 4
    assert_equal(values(other), values(uninterrupted))


def test_restore_without_checkpoints_returns_0(tmp_path, other):
    before = values(other)
    assert Checkpoints(tmp_path / "none").restore_latest(other) == 0
    assert_equal(values(other), before)


def test_only_the_last_checkpoints_are_kept(tmp_path, other):
    checkpoints = Checkpoints(tmp_path, keep=2)
    first = int(other.optimizer.iterations)
    for _ in range(4):
        save(checkpoints, other)
        advance(other)
    assert checkpoints.steps() == [first + 2, first + 3]
    assert len(list(tmp_path.iterdir())) == 2


def test_steps_are_in_numerical_order(tmp_path):
    for name in ("step-1000000", "step-000002", "step-999999", "step-x", ".writing-step-000009-a"):
        (tmp_path / name).mkdir()
    assert Checkpoints(tmp_path).steps() == [2, 999999, 1000000]
    assert Checkpoints(tmp_path).path(1000000).name == "step-1000000"


def truncate(path):
    path.write_bytes(path.read_bytes()[:-100])


def damage_index(path):
    """Makes the offset of the first array negative, for which zipfile raises OSError."""
    content = bytearray(path.read_bytes())
    content[-6] += 1
    path.write_bytes(content)


def mark_as_encrypted(path):
    content = bytearray(path.read_bytes())
    for signature, flags in ((b"PK\x03\x04", 6), (b"PK\x01\x02", 8)):
        content[content.index(signature) + flags] |= 1
    path.write_bytes(content)


def empty(path):
    path.write_bytes(b"")


def flip_bits(path):
    content = bytearray(path.read_bytes())
    # More bytes than a local ZIP header, which has no checksum.
    for i in range(200):
        content[len(content) // 3 + i] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage"),
    [
        ("model.npz", truncate),
        ("model.npz", flip_bits),
        ("model.npz", empty),
        ("model.npz", damage_index),
        ("model.npz", mark_as_encrypted),
        ("optimizer.npz", truncate),
        ("optimizer.npz", flip_bits),
        ("optimizer.npz", os.remove),
        ("state.json", os.remove),
        ("state.json", truncate),
        ("state.json", empty),
        ("state.json", lambda path: path.write_text("{")),
    ],
)
def test_corrupt_checkpoint_is_ignored_with_a_warning(tmp_path, model, other, file, damage, caplog):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, model)
    advance(other)
    other.optimizer.iterations.assign(3)
    save(checkpoints, other)
    damage(checkpoints.path(3) / file)
    with caplog.at_level(logging.WARNING, logger="absl"):
        assert checkpoints.restore_latest(other) == 2
    assert "Ignoring the corrupt checkpoint" in caplog.text and "step-000003" in caplog.text
    assert_equal(values(other), values(model))
    names = sorted(entry.name for entry in tmp_path.iterdir())
    assert names == ["corrupt-step-000003", "step-000002"]


def test_corrupt_checkpoints_do_not_displace_those_of_the_resumed_run(tmp_path, model, other):
    checkpoints = Checkpoints(tmp_path, keep=3)
    for step in (2, 8, 9):
        checkpoints.save(model, step)
    for step in (8, 9):
        truncate(checkpoints.path(step) / "model.npz")
    resumed = Checkpoints(tmp_path, keep=2)
    assert resumed.restore_latest(other) == 2
    resumed.save(model, 4)
    assert resumed.steps() == [2, 4]


def test_checkpoint_without_read_permission_is_not_corrupt(tmp_path, model, other, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, model)

    def forbid(*arguments):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    monkeypatch.setattr(np, "load", forbid)
    with pytest.raises(PermissionError, match="Permission denied"):
        checkpoints.restore_latest(other)
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000002"]


def test_restore_of_corrupt_checkpoints_raises(tmp_path, model, other):
    checkpoints = Checkpoints(tmp_path)
    (save(checkpoints, model) / "model.npz").unlink()
    with pytest.raises(ValueError, match="All 1 checkpoints in .* are corrupt. Remove them"):
        checkpoints.restore_latest(other)


@pytest.mark.parametrize(("version", "age"), [(2, "an older"), (4, "a newer")])
def test_other_format_version_raises(tmp_path, model, other, version, age):
    path = save(Checkpoints(tmp_path), model)
    state = json.loads((path / "state.json").read_text()) | {"format_version": version}
    (path / "state.json").write_text(json.dumps(state))
    message = (
        f"step-000002 has format version {version}, written by {age} version of this program. "
        "This version reads format 3."
    )
    with pytest.raises(ValueError, match=message + " Train in another --model_dir."):
        Checkpoints(tmp_path).restore_latest(other)
    with pytest.raises(ValueError, match=message):
        read_weights(path)


def test_restore_depends_on_keys_and_not_on_their_order(tmp_path, model, other):
    path = save(Checkpoints(tmp_path), model)
    keys = list(json.loads((path / "state.json").read_text())["model"])
    with np.load(path / "model.npz") as arrays:
        reordered = {key: arrays[key] for key in reversed(keys)}
    np.savez(path / "model.npz", **reordered)
    state = json.loads((path / "state.json").read_text())
    state["model"] = dict(reversed(state["model"].items()))
    (path / "state.json").write_text(json.dumps(state))
    scramble(other)
    assert Checkpoints(tmp_path).restore_latest(other) == 2
    assert_equal(values(other), values(model))
    query = "encoder_layers/0/self_attention/query_dense/kernel"
    renamed = {key.replace("query_dense", "other"): x for key, x in reordered.items()}
    np.savez(path / "model.npz", **renamed)
    state["model"] = {k.replace("query_dense", "other"): v for k, v in state["model"].items()}
    (path / "state.json").write_text(json.dumps(state))
    with pytest.raises(ValueError, match=f"First difference: {query}, expected .* received none"):
        Checkpoints(tmp_path).restore_latest(other)


def test_restore_of_another_architecture_raises(tmp_path, model):
    save(Checkpoints(tmp_path), model)
    message = (
        "arrays of this run's model. First difference: source_embedding/embeddings, expected shape "
        r"\[13, 9\], float32, received shape \[13, 6\], float32. .*step-000002 is incompatible."
    )
    with pytest.raises(ValueError, match=message):
        Checkpoints(tmp_path).restore_latest(made_model(hidden_dim=9))


def test_restore_of_another_optimizer_raises(tmp_path, model):
    save(Checkpoints(tmp_path), model)
    with pytest.raises(ValueError, match="Expected the .* arrays of this run's optimizer"):
        Checkpoints(tmp_path).restore_latest(made_model(optimizer=keras.optimizers.SGD(0.1)))


def test_full_disk_keeps_the_previous_checkpoint(tmp_path, model, other, monkeypatch):
    checkpoints = Checkpoints(tmp_path)
    save(checkpoints, model)
    other.optimizer.iterations.assign(3)

    def write_half(path, **arrays):
        path.write_bytes(b"half")
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "savez", write_half)
    with pytest.raises(OSError, match="No space left on device") as raised:
        save(checkpoints, other)
    assert raised.value.filename == str(checkpoints.path(3))
    monkeypatch.undo()
    assert [entry.name for entry in tmp_path.iterdir()] == ["step-000002"]
    assert checkpoints.restore_latest(other) == 2


def test_checkpoint_that_fails_verification_is_removed(tmp_path, other, monkeypatch):
    written = np.savez

    def damaging(path, **arrays):
        written(path, **arrays)
        flip_bits(path)

    monkeypatch.setattr(np, "savez", damaging)
    with pytest.raises(OSError, match="its verification failed: .*/step-0"):
        save(Checkpoints(tmp_path), other)
    assert list(tmp_path.iterdir()) == []


def test_partly_written_checkpoint_is_not_restored(tmp_path, other):
    (tmp_path / ".writing-step-000009-x").mkdir()
    assert Checkpoints(tmp_path).restore_latest(other) == 0
    assert list(tmp_path.iterdir()) == []


def test_restore_returns_the_number_of_batches(tmp_path, model, other):
    """It differs from the number of updates, because float16 may skip updates."""
    assert Checkpoints(tmp_path).save(model, 17).name == "step-000017"
    assert Checkpoints(tmp_path).restore_latest(other) == 17
    assert int(other.optimizer.iterations) == 2


def test_restore_transformer_does_not_change_the_optimizer(tmp_path, model, other):
    path = save(Checkpoints(tmp_path), model)
    assert_equal(
        list(read_weights(path).values()),
        [variable.value.numpy() for variable in model.transformer.variables],
    )
    scramble(other)
    optimizer = [variable.value.numpy() for variable in other.optimizer.variables]
    restore_transformer(other.transformer, path)
    assert_equal(values(other), [*read_weights(path).values(), *optimizer])


def test_read_weights_of_a_missing_or_corrupt_checkpoint_raises(tmp_path, model):
    checkpoints = Checkpoints(tmp_path)
    with pytest.raises(
        ValueError,
        match="Can't read the checkpoint .*step-000004 .*such as an earlier step",
    ):
        read_weights(checkpoints.path(4))
    path = save(checkpoints, model)
    flip_bits(path / "model.npz")
    with pytest.raises(ValueError, match="Can't read the checkpoint .*step-000002 .*CRC"):
        read_weights(path)


def test_restore_transformer_of_another_architecture_raises(tmp_path, model):
    path = save(Checkpoints(tmp_path), model)
    with pytest.raises(
        ValueError,
        match=r"arrays of this model. .*received shape \[13, 6\].*of the same --model_dir",
    ):
        restore_transformer(made_model(hidden_dim=9).transformer, path)
