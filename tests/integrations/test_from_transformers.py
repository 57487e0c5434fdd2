"""Tests of Keras layers from states of attention modules of transformers, on all backends."""

import importlib
import importlib.util
import sys

import keras
import numpy as np
import pytest
from comparisons import assert_all_close

NAME = "t2t_relpos.integrations.transformers"
WIDTH, HEADS, DEPTH, LENGTH = 12, 3, 4, 17


@pytest.fixture
def from_transformers(monkeypatch):
    """Returns the function, imported where PyTorch and transformers can't be imported."""
    monkeypatch.delitem(sys.modules, NAME, raising=False)
    for package in ("transformers", "peft"):
        monkeypatch.setitem(sys.modules, package, None)
    if "torch" not in sys.modules:
        monkeypatch.setitem(sys.modules, "torch", None)
    return importlib.import_module(NAME).from_transformers


def make_state(rng, names, *, use_bias=True, **tables):
    """Returns random weights of projections and tables, and inputs `[B, T, D]`."""
    state = {f"{name}.weight": rng.normal(size=(WIDTH, WIDTH)) * 0.3 for name in names}
    if use_bias:
        state |= {f"{name}.bias": rng.normal(size=WIDTH) for name in names}
    state |= {name: rng.normal(size=shape) for name, shape in tables.items()}
    return {name: x.astype("float32") for name, x in state.items()}


def attention(x, state, names, vectors):
    """Returns the attention of a module, by the vectors `[T, T, H]` for keys and for values."""

    def project(name, x):
        return x @ state[f"{name}.weight"].T + state.get(f"{name}.bias", 0)

    query, key, value = (
        project(name, x).reshape(len(x), LENGTH, HEADS, DEPTH).swapaxes(1, 2) for name in names[:3]
    )
    scores = query @ key.swapaxes(2, 3) + np.einsum("bnth,tsh->bnts", query, vectors["key"])
    weights = np.exp(scores * DEPTH**-0.5)
    weights /= weights.sum(-1, keepdims=True)
    outputs = weights @ value
    if "value" in vectors:
        outputs += np.einsum("bnts,tsh->bnth", weights, vectors["value"])
    return project(names[3], outputs.swapaxes(1, 2).reshape(x.shape))


POSITIONS = np.arange(LENGTH)
DISTANCES = POSITIONS - POSITIONS[:, None]
CONFORMER = "linear_q", "linear_k", "linear_v", "linear_out"
ENCODER = "q_proj", "k_proj", "v_proj", "out_proj"


def test_state_of_w2v_bert(from_transformers, rng):
    state = make_state(rng, CONFORMER, **{"distance_embedding.weight": (8, DEPTH)})
    vectors = state["distance_embedding.weight"][DISTANCES.clip(-4, 3) + 4]
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    layer = from_transformers(state, max_relative_position=(4, 3), name="attention")
    assert layer.name == "attention" and layer.dropout == 0
    assert_all_close(layer(x, x), attention(x, state, CONFORMER, {"key": vectors}), atol=1e-5)


@pytest.mark.parametrize("use_bias", [False, True])
def test_state_of_vits(from_transformers, rng, use_bias):
    tables = {"emb_rel_k": (1, 5, DEPTH), "emb_rel_v": (1, 5, DEPTH)}
    state = make_state(rng, ENCODER, use_bias=use_bias, **tables)
    in_window = (abs(DISTANCES) <= 2)[..., None]
    vectors = {
        name: in_window * state[f"emb_rel_{name[0]}"][0][DISTANCES.clip(-2, 2) + 2]
        for name in ("key", "value")
    }
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    layer = from_transformers(state)
    assert_all_close(layer(x, x), attention(x, state, ENCODER, vectors), atol=1e-5)


def test_state_of_speecht5(from_transformers, rng):
    state, key_table = make_state(rng, ENCODER), rng.normal(size=(6, DEPTH)).astype("float32")
    vectors = key_table[(-DISTANCES).clip(-3, 2) + 3]
    x = rng.normal(size=(2, LENGTH, WIDTH)).astype("float32")
    layer = from_transformers(state, key_table=key_table)
    assert layer.max_relative_position == (2, 3)
    assert_all_close(layer(x, x), attention(x, state, ENCODER, {"key": vectors}), atol=1e-5)


def test_missing_arguments_and_weights_are_named(from_transformers, rng):
    state = make_state(rng, CONFORMER, **{"distance_embedding.weight": (8, DEPTH)})
    with pytest.raises(ValueError, match="max_relative_position"):
        from_transformers(state)
    with pytest.raises(ValueError, match=r"left \+ right \+ 1 = 8, .*Received: \(64, 8\)"):
        from_transformers(state, max_relative_position=(64, 8))
    with pytest.raises(ValueError, match="embed_positions.pe_k.weight"):
        from_transformers(make_state(rng, ENCODER))
    state["linear_k.base_layer.weight"] = state.pop("linear_k.weight")
    with pytest.raises(ValueError, match="linear_k.weight.*merge_and_unload"):
        from_transformers(state, max_relative_position=(4, 3))


def test_weights_that_the_layer_would_ignore_are_named(from_transformers, rng):
    tables = {"emb_rel_k": (1, 5, DEPTH), "emb_rel_v": (1, 5, DEPTH)}
    state = make_state(rng, ENCODER, **tables)
    for name in ENCODER:  # as pruning of all biases
        state[f"{name}.bias_orig"] = state.pop(f"{name}.bias")
    message = r"in addition: \['k_proj.bias_orig', .*\]. Remove adapters, pruning"
    with pytest.raises(ValueError, match=message):
        from_transformers(state)


def test_arguments_of_other_models_are_refused(from_transformers, rng):
    key_table = rng.normal(size=(6, DEPTH)).astype("float32")
    conformer = make_state(rng, CONFORMER, **{"distance_embedding.weight": (8, DEPTH)})
    tables = {"emb_rel_k": (1, 5, DEPTH), "emb_rel_v": (1, 5, DEPTH)}
    vits, speecht5 = make_state(rng, ENCODER, **tables), make_state(rng, ENCODER)
    for state, options in ((vits, {}), (speecht5, {"key_table": key_table})):
        assert from_transformers(state, **options).built
        with pytest.raises(ValueError, match=r"max_relative_position.*\(9, 9\).*Leave it out"):
            from_transformers(state, max_relative_position=(9, 9), **options)
    for state, options in ((vits, {}), (conformer, {"max_relative_position": (4, 3)})):
        with pytest.raises(ValueError, match="key_table.*SpeechT5's encoder only"):
            from_transformers(state, key_table=key_table, **options)


@pytest.mark.skipif(keras.backend.backend() == "torch", reason="requires another backend")
def test_replace_attention_requires_pytorch():
    module = importlib.import_module(NAME)
    message = "KERAS_BACKEND" if importlib.util.find_spec("torch") else r"t2t-relpos\[torch\]"
    functions = module.replace_attention, module.restore_attention, module.replaced_modules
    for function in functions:
        with pytest.raises(ImportError, match=message):
            function(None)
