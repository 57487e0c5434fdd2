import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from definition import greedy_outputs
from gradients import output_and_gradients, with_values
from keras import ops
from small_transformers import (
    BATCH,
    SOURCE,
    TARGETS,
    random_transformer,
    shared_transformer,
    small_config,
)

from t2t_relpos.models import Transformer


def make_transformer(**settings):
    return shared_transformer(0.2, **{"num_decoder_layers": 2} | settings)


def logits_of(model, source=SOURCE, targets=TARGETS):
    return ops.convert_to_numpy(model({"inputs": source, "targets": targets}))


def test_projected_states_have_the_gradients_of_logits(rng, precision):
    keras.config.set_dtype_policy(precision.dtype)
    model = random_transformer(0.2, share_heads=False, position="relative+sinusoidal")
    cotangent = (rng.normal(size=(3, 7, 13)) * (TARGETS != 0)[..., None]).astype("float32")

    def gradients(logits):
        values = [ops.convert_to_numpy(v) for v in model.trainable_variables]
        run = lambda tensors: with_values(model.trainable_variables, tensors, lambda: logits(BATCH))
        return output_and_gradients(run, values, cotangent)[1]

    projected = gradients(lambda batch: model.output_embedding(model.states(batch), reverse=True))
    assert_all_close(projected, gradients(model), atol=100 * precision.atol)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_states_at_padding_are_zero_without_xla(jit_compile, tf):
    model = shared_transformer(0.2)
    run = tf.function(model.states, jit_compile=jit_compile, autograph=False)
    states = run({name: tf.constant(ids) for name, ids in BATCH.items()}).numpy()
    padding = TARGETS == 0
    assert (np.abs(states).max(-1) > 0)[~padding].all()
    assert (states[padding] == 0).all() != jit_compile


@pytest.mark.slow
def test_fit_memorizes_a_batch(rng):
    model = Transformer(small_config(num_decoder_layers=2, hidden_dim=12, intermediate_dim=17))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.01), loss, weighted_metrics=["accuracy"])
    weight = (TARGETS != 0).astype("float32")
    history = model.fit(BATCH, TARGETS, sample_weight=weight, epochs=60, verbose=0)
    assert history.history["accuracy"][-1] == 1.0
    assert history.history["loss"][-1] < 0.2 * history.history["loss"][0]


def test_transformer_rejects_another_config():
    with pytest.raises(ValueError, match="Expected `config` to be a TransformerConfig"):
        Transformer("tiny")


@pytest.mark.parametrize(
    "inputs, message",
    [
        ({"inputs": SOURCE + 8, "targets": TARGETS}, r"Expected token ids in \[0, 13\)"),
        ((SOURCE, SOURCE), "the keys 'inputs' .B, S. and 'targets' .B, T.. Received: tuple."),
        ({"inputs": SOURCE, "target": SOURCE}, r"Received: keys \['inputs', 'target'\]."),
        (
            {"inputs": SOURCE[0], "targets": SOURCE},
            r"`inputs\['inputs'\]` of shape \[B, S\]. Received: shape \(5,\). Pass batches",
        ),
        (
            {"inputs": SOURCE, "targets": SOURCE[None]},
            r"`inputs\['targets'\]` of shape \[B, T\] = \[3, \*\]. Received: shape \(1, 3, 5\).",
        ),
        (
            {"inputs": SOURCE, "targets": SOURCE[:1]},
            r"`inputs\['targets'\]` of shape \[B, T\] = \[3, \*\]. Received: shape \(1, 5\)",
        ),
    ],
)
def test_transformer_rejects_invalid_inputs(inputs, message):
    with pytest.raises(ValueError, match=message):
        make_transformer()(inputs)


def test_transformer_summary_shows_shapes(capsys):
    model = make_transformer()
    model(BATCH)
    model.summary()
    text = capsys.readouterr().out
    assert "(None, None, 6)" in text
    assert "?" not in text


def test_source_and_target_may_have_unlike_vocabularies(tmp_path):
    sizes = {"source_vocab_size": 20, "vocab_size": 9, "num_decoder_layers": 2}
    model = random_transformer(0.2, tie_embeddings=False, **sizes)
    source, targets = np.array([[19, 15, 1]]), np.array([[8, 1]])
    logits = logits_of(model, source, targets)
    assert logits.shape == (1, 2, 9)
    with pytest.raises(ValueError, match=r"token ids in \[0, 9\)"):
        model({"inputs": source, "targets": targets + 8})
    found = model.generate(source, sampler="greedy", max_length=4, jit_compile=False)
    expected = greedy_outputs(lambda ids: logits_of(model, source, ids), source[:, :0], 4)
    np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match=r"token ids in \[0, 20\)"):
        model.generate(source + 1)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(logits_of(loaded, source, targets), logits)


def test_tied_tables_need_one_vocabulary():
    with pytest.raises(ValueError, match="tie_embeddings=False"):
        small_config(source_vocab_size=20)


def test_ragged_ids_raise_except_in_generate(tf):
    """`generate` pads them."""
    model = make_transformer()
    source, targets = (tf.RaggedTensor.from_tensor(x, padding=0) for x in (SOURCE, TARGETS))
    for call in (
        lambda: model({"inputs": source, "targets": TARGETS}),
        lambda: model({"inputs": SOURCE, "targets": targets}),
        lambda: model.score(source, TARGETS),
        lambda: model.score(SOURCE, targets),
        lambda: model.encode(source, 5),
        lambda: model.start_search(source, 5, 1),
    ):
        with pytest.raises(ValueError, match="to be dense. Received: a RaggedTensor of shape"):
            call()
    options = {"sampler": "greedy", "max_length": 5, "jit_compile": False}
    expected = model.generate(SOURCE, **options)
    np.testing.assert_array_equal(model.generate(source, **options), expected)
