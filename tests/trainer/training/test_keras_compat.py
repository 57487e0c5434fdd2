"""Tests of undocumented Keras APIs, and of the errors if Keras changes them."""

import keras
import numpy as np
import pytest
from tiny_training import TinyTransformer

from trainer.training import keras_compat


def changed(api):
    """Expects the error for an API that Keras has changed."""
    message = f"different in Keras {keras.__version__}. Install a version of Keras that setup.cfg"
    return pytest.raises(ImportError, match=f"{api} .*{message}")


@pytest.fixture
def model():
    return TinyTransformer(dropout=0.5)


def test_seed_states_returns_the_state_of_a_dropout_and_keeps_it(model):
    before = model.dropout.seed_generator.state.numpy()
    assert keras_compat.seed_states(model) == [model.dropout.seed_generator.state]
    np.testing.assert_array_equal(model.dropout.seed_generator.state, before)


def with_another_shape(model, monkeypatch):
    monkeypatch.setattr(model.dropout.seed_generator.state, "_shape", (3,))


def with_another_name(model, monkeypatch):
    model.dropout.seed_generator.moved = model.dropout.seed_generator.state
    monkeypatch.delattr(model.dropout.seed_generator, "state")


def hidden(model, monkeypatch):
    monkeypatch.setattr(keras_compat, "parts", lambda model, kind: [])


def ignoring_the_scope(model, monkeypatch):
    """If draws ignored the scope, all replicas would share a dropout mask."""
    seed = keras.ops.convert_to_tensor([3, 7], "uint32")
    monkeypatch.setattr(keras.random.SeedGenerator, "next", lambda self, ordered=True: seed)


@pytest.mark.parametrize(
    "change", [with_another_shape, with_another_name, hidden, ignoring_the_scope]
)
def test_changed_seed_state_raises(model, monkeypatch, change):
    change(model, monkeypatch)
    with changed("keras.random.SeedGenerator"):
        keras_compat.seed_states(model)


def test_dropout_without_a_seed_generator_raises():
    model = TinyTransformer()
    assert keras_compat.seed_states(model) == []
    model.dropout.rate = 0.5
    with changed("keras.random.SeedGenerator"):
        keras_compat.seed_states(model)


def test_adam_slots(monkeypatch):
    variable, optimizer = keras.Variable(np.ones(3)), keras.optimizers.Adam()
    optimizer.build([variable])
    momentum, velocity = keras_compat.adam_slots(optimizer, variable)
    assert "momentum" in momentum.name and "velocity" in velocity.name
    monkeypatch.delattr(optimizer, "_velocities")
    with changed("slots of keras.optimizers.Adam"):
        keras_compat.adam_slots(optimizer, variable)


def test_renamed_optimizer_slot_raises(monkeypatch):
    layer, optimizer = keras.layers.Dense(2), keras.optimizers.Adam()
    layer.build((None, 3))
    optimizer.build(layer.trainable_variables)
    assert list(keras_compat.optimizer_keys(optimizer, layer))[2] == "kernel/momentum"
    monkeypatch.setattr(optimizer._momentums[0], "_name", "momentum_of_kernel")
    with changed("a slot of keras.optimizers.Optimizer"):
        keras_compat.optimizer_keys(optimizer, layer)


def test_gradient_sum_is_skipped():
    optimizer = keras.optimizers.SGD()
    keras_compat.skip_gradient_sum(optimizer)
    pairs = [(1, 2)]
    assert optimizer._all_reduce_sum_gradients(pairs) is pairs

    class Changed:
        def _all_reduce_sum_gradients(self, pairs):
            return pairs

    with changed("_all_reduce_sum_gradients"):
        keras_compat.skip_gradient_sum(Changed())


def test_symbolic_build_is_skipped(monkeypatch):
    class Skipping(keras_compat.WithoutSymbolicBuild, keras.Model):
        pass

    assert Skipping()._maybe_symbolic_build() is None
    owner = next(c for c in keras.Model.__mro__ if "_maybe_symbolic_build" in vars(c))
    monkeypatch.delattr(owner, "_maybe_symbolic_build")
    with changed("_maybe_symbolic_build of keras.Model"):

        class AfterChange(keras_compat.WithoutSymbolicBuild, keras.Model):
            pass
