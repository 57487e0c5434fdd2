"""Tests of undocumented Keras APIs, and of the errors if Keras changes them."""

import keras
import numpy as np
import pytest

from trainer.training import keras_compat

CHANGED = rf"different in Keras {keras.__version__}. Install a version of Keras that setup.cfg"


class WithDropout(keras.Model):
    def __init__(self):
        super().__init__()
        self.dropout = keras.layers.Dropout(0.5)

    def call(self, x):
        return self.dropout(x)


def changed_seeds():
    return pytest.raises(ImportError, match="keras.random.SeedGenerator .*" + CHANGED)


@pytest.fixture
def model():
    made = WithDropout()
    made(np.zeros((1, 3)))
    return made


def test_seed_states_returns_the_state_of_a_dropout_and_keeps_it(model):
    before = model.dropout.seed_generator.state.numpy()
    assert keras_compat.seed_states(model) == [model.dropout.seed_generator.state]
    np.testing.assert_array_equal(model.dropout.seed_generator.state, before)


def test_seed_state_of_another_shape_raises(model, monkeypatch):
    monkeypatch.setattr(model.dropout.seed_generator.state, "_shape", (3,))
    with changed_seeds():
        keras_compat.seed_states(model)


def test_renamed_seed_state_raises(model, monkeypatch):
    model.dropout.seed_generator.moved = model.dropout.seed_generator.state
    monkeypatch.delattr(model.dropout.seed_generator, "state")
    with changed_seeds():
        keras_compat.seed_states(model)


def test_hidden_seed_generator_raises(model, monkeypatch):
    monkeypatch.setattr(keras_compat, "parts", lambda model, kind: [])
    with changed_seeds():
        keras_compat.seed_states(model)


def test_dropout_without_a_seed_generator_raises():
    class OwnDropout(keras.layers.Layer):
        rate = 0.5

    class Model(keras.Model):
        def __init__(self):
            super().__init__()
            self.dropout = OwnDropout()

    with changed_seeds():
        keras_compat.seed_states(Model())


def test_draws_that_ignore_the_scope_raise(model, monkeypatch):
    """If draws ignored the scope, all replicas would share a dropout mask."""
    seed = keras.ops.convert_to_tensor([3, 7], "uint32")
    monkeypatch.setattr(keras.random.SeedGenerator, "next", lambda self, ordered=True: seed)
    with changed_seeds():
        keras_compat.seed_states(model)


def test_adam_slots(monkeypatch):
    variable, optimizer = keras.Variable(np.ones(3)), keras.optimizers.Adam()
    optimizer.build([variable])
    momentum, velocity = keras_compat.adam_slots(optimizer, variable)
    assert "momentum" in momentum.name and "velocity" in velocity.name
    monkeypatch.delattr(optimizer, "_velocities")
    with pytest.raises(ImportError, match="slots of keras.optimizers.Adam .*" + CHANGED):
        keras_compat.adam_slots(optimizer, variable)


def test_renamed_optimizer_slot_raises(monkeypatch):
    layer, optimizer = keras.layers.Dense(2), keras.optimizers.Adam()
    layer.build((None, 3))
    optimizer.build(layer.trainable_variables)
    assert list(keras_compat.optimizer_keys(optimizer, layer))[2] == "kernel/momentum"
    monkeypatch.setattr(optimizer._momentums[0], "_name", "momentum_of_kernel")
    with pytest.raises(ImportError, match="a slot of keras.optimizers.Optimizer .*" + CHANGED):
        keras_compat.optimizer_keys(optimizer, layer)


def test_gradient_sum_is_skipped():
    optimizer = keras.optimizers.SGD()
    keras_compat.skip_gradient_sum(optimizer)
    pairs = [(1, 2)]
    assert optimizer._all_reduce_sum_gradients(pairs) is pairs

    class Changed:
        def _all_reduce_sum_gradients(self, pairs):
            return pairs

    with pytest.raises(ImportError, match="_all_reduce_sum_gradients .*" + CHANGED):
        keras_compat.skip_gradient_sum(Changed())


def test_symbolic_build_is_skipped(monkeypatch):
    class Skipping(keras_compat.WithoutSymbolicBuild, keras.Model):
        pass

    assert Skipping()._maybe_symbolic_build() is None
    owner = next(c for c in keras.Model.__mro__ if "_maybe_symbolic_build" in vars(c))
    monkeypatch.delattr(owner, "_maybe_symbolic_build")
    with pytest.raises(ImportError, match="_maybe_symbolic_build of keras.Model .*" + CHANGED):

        class AfterChange(keras_compat.WithoutSymbolicBuild, keras.Model):
            pass
