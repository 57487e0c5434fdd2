"""`generate` computes what the model computes, also with replaced layers and weights."""

import keras
import numpy as np
import pytest
from definition import greedy_outputs
from keras import ops

from t2t_relpos.layers import TokenEmbedding
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig
from t2t_relpos.models.folded import can_fold

pytestmark = pytest.mark.usefixtures("frozen_objects")
SOURCE = np.array([[5, 7, 9, 3, 1], [3, 8, 1, 0, 0], [2, 11, 6, 1, 0]], "int32")
LENGTH = 5


def make_transformer(cls=Transformer):
    keras.utils.set_random_seed(20180401)
    sizes = {"num_encoder_layers": 1, "num_decoder_layers": 2, "hidden_dim": 8, "num_heads": 2}
    config = TransformerConfig(vocab_size=13, intermediate_dim=16, max_relative_position=3, **sizes)
    return with_large_weights(cls(config))


def make_language_model(cls=CausalLM):
    keras.utils.set_random_seed(20180401)
    return with_large_weights(cls(13, 2, 8, 16, 2, 3))


def with_large_weights(model):
    """Returns the model with weights that make outputs depend on every sublayer."""
    rng = np.random.default_rng(20180401)
    for variable in model.weights:
        if "float" not in variable.dtype or variable.name in ("gamma", "beta"):
            continue
        values = rng.normal(size=variable.shape)
        if "embedding" in variable.path:  # equal norms, so that no id is always the most likely
            values /= np.linalg.norm(values, axis=-1, keepdims=True)
        variable.assign(values.astype("float32"))
    return model


def generated_by_calls(model):
    """Returns the ids that greedy search finds with calls of the model."""
    if isinstance(model, CausalLM):
        return greedy_outputs(model, SOURCE[:, :2], LENGTH, end_id=None)
    logits = lambda ids: model({"inputs": SOURCE, "targets": ids})
    return greedy_outputs(logits, SOURCE[:, :0], LENGTH, end_id=None)


def generated(model):
    source = SOURCE if isinstance(model, Transformer) else SOURCE[:, :2]
    return model.generate(source, "greedy", LENGTH, jit_compile=False, stop_token_ids=None)


def change_numbers(model):
    """Changes every number that the layers hold and that a call reads."""
    for layer in model._flatten_layers():
        if hasattr(layer, "epsilon"):
            # Different numbers, so that none replaces another.
            layer.epsilon = 0.1 + 0.3 * len(layer.path) % 1
        if isinstance(layer, TokenEmbedding):
            layer.hidden_dim *= 3
    model.reset_compiled_searches()


def subclass_of(layer, method="call", change=lambda outputs: -outputs):
    """Makes a layer an instance of a subclass that changes the results of a method."""
    original = getattr(type(layer), method)

    def changed(self, *args, **kwargs):
        outputs = original(self, *args, **kwargs)
        first = outputs[0] if isinstance(outputs, tuple) else outputs
        return (change(first), *outputs[1:]) if isinstance(outputs, tuple) else change(first)

    layer.__class__ = type(f"Changed{type(layer).__name__}", (type(layer),), {method: changed})


def enable_lora(model):
    dense = blocks_of(model)[0].self_attention.query_dense
    dense.enable_lora(2)
    for variable in (dense.lora_kernel_a, dense.lora_kernel_b):
        variable.assign(np.random.default_rng(1).normal(size=variable.shape).astype("float32"))


def quantize(model):
    attention = blocks_of(model)[0].self_attention
    attention.query_dense.quantize("int4"), attention.value_dense.quantize("int4")


def blocks_of(model):
    return model.decoder_layers if isinstance(model, Transformer) else model.blocks


def replace_feed_forward(model):
    if keras.backend.backend() == "torch":
        pytest.skip("PyTorch accepts no function in place of a layer")
    blocks_of(model)[0].feed_forward = lambda x, training=None: ops.flip(x, -1)


def replace_activation(model):
    blocks_of(model)[1].feed_forward.inner.activation = keras.activations.gelu


CHANGES = {
    "subclass of the feed-forward network": lambda m: subclass_of(blocks_of(m)[1].feed_forward),
    "subclass of the attention": lambda m: subclass_of(
        blocks_of(m)[0].self_attention, "_compute_attention"
    ),
    "subclass of a residual": lambda m: subclass_of(blocks_of(m)[0].feed_forward_residual, "after"),
    "subclass of a block": lambda m: subclass_of(blocks_of(m)[1]),
    "subclass of a norm": lambda m: subclass_of(blocks_of(m)[0].self_attention_residual.norm),
    "attribute of an instance": replace_feed_forward,
    "LoRA": enable_lora,
    "quantized": quantize,
    "activation": replace_activation,
    "numbers": change_numbers,
}
# Those of other layers than a language model has, and one of all layers.
OF_TRANSFORMERS = {
    "subclass of an encoder block": lambda m: subclass_of(m.encoder_layers[0]),
    "subclass of an embedding": lambda m: subclass_of(
        m.target_embedding, change=lambda x: ops.flip(x, -1)
    ),
    "subclass of the encoder's norm": lambda m: subclass_of(m.encoder_norm),
    "subclass of the encoder's attention with another call": lambda m: subclass_of(
        m.encoder_layers[0].self_attention
    ),
    "subclass of the cross-attention": lambda m: subclass_of(
        m.decoder_layers[1].cross_attention, "_compute_attention"
    ),
    "biases": lambda m: subclass_of(m, "_logits"),
    "numbers": change_numbers,
}


@pytest.mark.parametrize("make", [make_transformer, make_language_model])
def test_without_changes_generate_computes_the_model(make, eager_searches):
    model = make()
    assert can_fold(model)
    # `fit` sets attributes of the model, some of which are functions.
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    metrics = [keras.metrics.SparseTopKCategoricalAccuracy()]
    model.compile("sgd", loss, metrics=metrics, run_eagerly=keras.backend.backend() != "jax")
    inputs = {"inputs": SOURCE, "targets": SOURCE} if isinstance(model, Transformer) else SOURCE
    model.fit(inputs, SOURCE, verbose=0)
    model.evaluate(inputs, SOURCE, verbose=0)
    model.predict(inputs, verbose=0)
    assert can_fold(model)
    np.testing.assert_array_equal(generated(model), generated_by_calls(model))


def assert_computes_the_changed_model(model, change):
    unchanged = generated(model)
    change(model)
    # Folded weights have the numbers of the layers.
    assert can_fold(model) == (change is change_numbers)
    found = generated(model)
    np.testing.assert_array_equal(found, generated_by_calls(model))
    assert not np.array_equal(found, unchanged)


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_generate_computes_the_changed_language_model(change, eager_searches):
    assert_computes_the_changed_model(make_language_model(), change)


@pytest.mark.parametrize("name", ["subclass of a block", "activation", "LoRA"])
def test_a_change_replaces_a_compiled_search(name):
    """It changes the type of a layer, a function of it, or the variables."""
    assert_computes_the_changed_model(make_language_model(), CHANGES[name])


@pytest.mark.parametrize("change", OF_TRANSFORMERS.values(), ids=OF_TRANSFORMERS)
def test_generate_computes_the_changed_transformer(change, eager_searches):
    assert_computes_the_changed_model(make_transformer(), change)


@pytest.mark.parametrize(
    "change, message",
    [
        (subclass_of, "overrides `call` to override `step` too, .* ChangedTransformer, which"),
        (
            lambda m: subclass_of(m, "logits_and_attention"),
            "overrides `logits_and_attention` to override `step`",
        ),
        (
            lambda m: subclass_of(m.decoder_layers[1].cross_attention),
            "`_compute_attention` instead of `call`.* ChangedRelativeMultiHeadAttention, which",
        ),
    ],
    ids=["call", "logits_and_attention", "attention"],
)
def test_generate_rejects_a_call_that_steps_do_not_run(change, message, eager_searches):
    model = make_transformer()
    change(model)
    with pytest.raises(NotImplementedError, match=message):
        generated(model)
    # A `step` of the subclass computes what the subclass wants.
    subclass_of(model, "step")
    assert generated(model).shape == (3, LENGTH)


@pytest.mark.parametrize("change", [subclass_of, lambda m: subclass_of(m.blocks[0].self_attention)])
def test_generate_rejects_a_call_of_a_language_model_that_steps_do_not_run(change):
    model = make_language_model()
    change(model)
    with pytest.raises(NotImplementedError, match="Changed.*, which overrides "):
        generated(model)


def test_reset_compiled_searches_applies_changed_attributes():
    class Scaled(CausalLM):
        scale = 1.0

        def step(self, ids, state):
            logits, state = super().step(ids, state)
            return self.scale * logits, state

    model, reset = make_language_model(Scaled), make_language_model(Scaled)
    reset.scale = -1.0
    source = SOURCE[:, :2]
    generate = lambda model: model.generate(source, "greedy", LENGTH, jit_compile=False)
    first, expected = generate(model), generate(reset)
    model.scale = -1.0
    model.reset_compiled_searches()
    np.testing.assert_array_equal(generate(model), expected)
    assert not np.array_equal(first, expected)
