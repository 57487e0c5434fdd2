import keras
import numpy as np
import pytest
from small_transformers import small_config

from t2t_relpos.models import Transformer
from trainer.training.batch_parts import RandomStreams
from trainer.training.checkpoints import model_keys, optimizer_keys


def make(position="relative"):
    model = Transformer(small_config(num_encoder_layers=2, dropout=0.5, position=position))
    ids = np.ones((1, 1), "int32")
    model({"inputs": ids, "targets": ids})
    optimizer = keras.optimizers.Adam()
    optimizer.build(model.trainable_variables)
    return model, optimizer


@pytest.mark.parametrize("position", ["relative", "sinusoidal", "learned"])
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
