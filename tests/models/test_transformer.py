import dataclasses

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
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
from t2t_relpos.models.config import POSITIONS as ALL_POSITIONS

VARIANTS = [
    {},
    {"position": "sinusoidal", "normalize_first": False},
    {"position": "learned", "tie_embeddings": False, "target_space_id": 2},
    {"position": "relative+sinusoidal", "max_relative_position": 0},
    {"position": "none", "num_encoder_layers": 2, "num_decoder_layers": 3},
    {"share_heads": False, "relative_cross_attention": True, "use_value_table": False},
    {"relative_cross_attention": True, "max_relative_position": (4, 1)},
]
POSITIONS = [position for position in ALL_POSITIONS if not position.startswith("relative_v2")]
on_variants = pytest.mark.parametrize("settings", VARIANTS, ids=str)


def make_transformer(**settings):
    return shared_transformer(0.2, **{"num_decoder_layers": 2} | settings)


def logits_of(model, source=SOURCE, targets=TARGETS):
    return ops.convert_to_numpy(model({"inputs": source, "targets": targets}))


@on_variants
def test_decoding_steps_equal_the_full_call(settings):
    model = make_transformer(**settings)
    expected = logits_of(model)
    assert expected.shape == (3, 7, 13)
    state = model.encode(SOURCE, max_length=7)
    previous = np.zeros(3, "int32")
    for t in range(7):
        logits, state = model.step(previous, state)
        # Logits are also compared at padding positions after the end of a sentence.
        np.testing.assert_allclose(logits, expected[:, t], atol=1e-5)
        previous = TARGETS[:, t]


@on_variants
def test_saved_transformer_equals_the_original(settings, tmp_path):
    model = make_transformer(**settings)
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    assert loaded.config == model.config
    np.testing.assert_array_equal(logits_of(loaded), logits_of(model))


@on_variants
def test_logits_are_projected_states(settings):
    # The second sentence has padding before a token.
    targets = np.array([TARGETS[0], [8, 0, 9, 1, 0, 0, 0], TARGETS[2]], "int32")
    tokens = np.arange(7) < np.array([[7], [4], [2]])
    model = make_transformer(**settings)
    states = model.states({"inputs": SOURCE, "targets": targets})
    assert tuple(states.shape) == (3, 7, 6)
    logits = ops.convert_to_numpy(model.output_embedding(states, reverse=True))
    np.testing.assert_allclose(logits[tokens], logits_of(model, targets=targets)[tokens], atol=1e-5)


def test_logits_are_independent_of_padding():
    model = make_transformer()
    full = logits_of(model)
    single = logits_of(model, SOURCE[1:2, :2], TARGETS[1:2, :3])
    np.testing.assert_allclose(single[0], full[1, :3], atol=1e-5)


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


@pytest.mark.parametrize("distances", [(1, 4), pytest.param((3, 0), marks=pytest.mark.slow)])
def test_a_pair_of_distances_equals_one_distance_with_repeated_rows(distances, rng, precision):
    keras.config.set_dtype_policy(precision.dtype)
    settings = {"share_heads": False, "relative_cross_attention": True}
    pair = random_transformer(0.2, max_relative_position=distances, **settings)
    left, right = distances
    k = max(distances)
    single = Transformer(dataclasses.replace(pair.config, max_relative_position=k))
    single.set_weights(
        [
            ops.convert_to_numpy(w)[..., np.clip(np.arange(-k, k + 1), -left, right) + left, :]
            if w.name == "table"
            else ops.convert_to_numpy(w)
            for w in pair.weights
        ]
    )
    cotangent = rng.normal(size=(3, 7, 13)).astype("float32") * (TARGETS != 0)[..., None]

    def logits_and_gradients(model):
        values = [ops.convert_to_numpy(v) for v in model.trainable_variables]
        run = lambda tensors: with_values(model.trainable_variables, tensors, lambda: model(BATCH))
        return output_and_gradients(run, values, cotangent)

    found, (logits, gradients) = map(logits_and_gradients, (pair, single))
    for number, variable in enumerate(pair.trainable_variables):
        if variable.name == "table":
            first, last = k - left, k + right + 1
            d_table = gradients[number][..., first:last, :].copy()
            d_table[..., 0, :] += gradients[number][..., :first, :].sum(-2)
            d_table[..., -1, :] += gradients[number][..., last:, :].sum(-2)
            gradients[number] = d_table
    assert_all_close(found, (logits, gradients), atol=100 * precision.atol)


@pytest.mark.parametrize("jit_compile", [False, True])
def test_states_at_padding_are_zero_without_xla(jit_compile, tf):
    model = shared_transformer(0.2)
    run = tf.function(model.states, jit_compile=jit_compile, autograph=False)
    states = run({name: tf.constant(ids) for name, ids in BATCH.items()}).numpy()
    padding = TARGETS == 0
    assert (np.abs(states).max(-1) > 0)[~padding].all()
    assert (states[padding] == 0).all() != jit_compile


def test_logits_depend_on_earlier_targets_only():
    model = make_transformer()
    changed = TARGETS.copy()
    changed[:, 3] = 11
    before, after = logits_of(model), logits_of(model, targets=changed)
    np.testing.assert_allclose(before[:, :4], after[:, :4], atol=1e-5)
    assert (np.abs(before[:, 4:] - after[:, 4:]).max(axis=(1, 2)) > 1e-3).all()


@pytest.mark.parametrize("position", POSITIONS)
def test_token_order_changes_logits_only_with_positions(position):
    model = make_transformer(position=position)
    # In the first sentence, two ids change places.
    change = (logits_of(model) - logits_of(model, SOURCE[:, [2, 1, 0, 3, 4]]))[0]
    assert (np.abs(change).max() < 1e-5) == (position == "none")


def test_tie_embeddings_shares_one_table():
    tied, untied = make_transformer(), make_transformer(tie_embeddings=False)
    assert tied.source_embedding is tied.output_embedding
    assert untied.count_params() - tied.count_params() == 2 * 13 * 6


def test_each_self_attention_has_a_key_and_a_value_table():
    model = make_transformer(share_heads=False, num_encoder_layers=2, num_decoder_layers=3)
    tables = [v.path for v in model.variables if v.name == "table"]
    assert len(tables) == len(set(tables)) == 2 * (2 + 3)


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
    ids = np.zeros((1, 4), "int64")
    for t in range(4):
        ids[0, t] = 1 + logits_of(model, source, ids)[0, t, 1:].argmax()
    is_after_end = np.cumsum(ids == 1, axis=1) - (ids == 1) > 0
    np.testing.assert_array_equal(found, np.where(is_after_end, 0, ids))
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
