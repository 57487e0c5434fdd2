"""Compares hypotheses and scores of CTranslate2 with our searches, for all architectures."""

import re
from types import SimpleNamespace

import numpy as np
import pytest
from keras import ops
from small_transformers import small_config

from t2t_relpos.decoding import beam_search, greedy_search
from t2t_relpos.models import Transformer, TransformerConfig

VOCAB_SIZE = 43
EOS_ID = 1
# The longest source and LENGTH exceed K = 5. The sources have different lengths.
SOURCES = [[17, 5, 23, 8, 40, 2, 11, 30, 9, 14, 6, 1], [3, 41, 1], [7, 29, 13, 22, 1]]
LENGTH = 7
KINDS = {
    "relative": {},
    "K = 0": {"max_relative_position": 0},
    "no key table": {"use_key_table": False},
    "no value table": {"use_value_table": False},
    "no tables": {"use_key_table": False, "use_value_table": False},
    "left and right": {"max_relative_position": (4, 2)},
    "left only, no key table": {"max_relative_position": (3, 0), "use_key_table": False},
    "one head, tables per head": {"share_heads": False, "num_heads": 1},
    "sinusoidal": {"position": "sinusoidal"},
    "learned": {"position": "learned", "max_length": 13},
    "learned, shorter than outputs": {"position": "learned", "max_length": 12},
    "no positions": {"position": "none"},
    "relative and sinusoidal": {"position": "relative+sinusoidal"},
    "untied embeddings": {"tie_embeddings": False},
    "two vocabularies": {"tie_embeddings": False, "source_vocab_size": 61},
    "target space and sinusoids": {
        "target_space_id": 7,
        "position": "sinusoidal",
        "tie_embeddings": False,
    },
    "epsilon": {"layer_norm_epsilon": 0.1},
}
POST_NORM = ["relative", "sinusoidal", "epsilon"]
CASES = [(kind, True) for kind in KINDS] + [(kind, False) for kind in POST_NORM]
QUICK = [
    ("left and right", True),
    ("sinusoidal", False),
    ("two vocabularies", True),
]


def random_model(rng, **settings):
    """Returns a model with random weights, including biases and tables."""
    config = TransformerConfig(
        **{
            "vocab_size": VOCAB_SIZE,
            "num_encoder_layers": 1,
            "num_decoder_layers": 2,
            "hidden_dim": 24,
            "intermediate_dim": 37,
            "num_heads": 4,
            "max_relative_position": 5,
        }
        | settings
    )
    model = Transformer(config)
    for weight in model.trainable_weights:
        scale = 1.0 if "embeddings" in weight.path else 0.3
        weight.assign(rng.normal(size=weight.shape) * scale + ("gamma" in weight.path))
    return model


@pytest.fixture(scope="module")
def build():
    """Returns `ctranslate2_spec.build`. Skips the test without the package."""
    pytest.importorskip("ctranslate2", reason="needs: pip install '.[ctranslate2]'")
    from trainer.serving import ctranslate2_spec

    return ctranslate2_spec.build


@pytest.fixture
def translator(build, tmp_path):
    """Returns a function of a model and a name that returns its translator of CTranslate2.

    Its tokens are ids in decimal.
    """
    import ctranslate2

    def make(model, name="model"):
        target = model.config.vocab_size
        sizes = model.config.source_vocab_size or target, target
        spec = build(model, *(list(map(str, range(size))) for size in sizes), 2)
        spec.optimize()
        (tmp_path / name).mkdir()
        spec.save(str(tmp_path / name))
        return ctranslate2.Translator(str(tmp_path / name), device="cpu", intra_threads=1)

    return make


def translate(peer, sources, **options):
    """Returns CTranslate2's hypotheses of each source (lists of ids with EOS) and their scores."""
    tokens = [[str(i) for i in ids[:-1]] for ids in sources]
    options = {"return_end_token": True, "return_scores": True, "min_decoding_length": 0} | options
    results = peer.translate_batch(tokens, **options)
    ids = [
        [[int(token) for token in hypothesis] for hypothesis in result.hypotheses]
        for result in results
    ]
    return ids, np.array([result.scores for result in results])


def ours(search, model, sources, max_length, forbidden=(0,), **options):
    """Returns lists of ids and scores of our search. `forbidden` ids have probability 0."""
    length = max(map(len, sources))
    padded = np.array([ids + [0] * (length - len(ids)) for ids in sources], "int32")
    never = np.where(np.isin(np.arange(model.config.vocab_size), forbidden), -1e9, 0).astype(
        "float32"
    )

    def step(ids, state):
        logits, state = model.step(ids, state)
        return logits + never, state

    result = search(step, model.encode(padded, max_length), len(sources), max_length, **options)
    ids, lengths = (ops.convert_to_numpy(part) for part in (result.ids, result.lengths))
    rows = [[row[:n].tolist() for row, n in zip(*sentence)] for sentence in zip(ids, lengths)]
    return rows, ops.convert_to_numpy(result.scores)


@pytest.mark.parametrize(
    "kind, normalize_first",
    [case if case in QUICK else pytest.param(*case, marks=pytest.mark.long) for case in CASES],
)
def test_greedy_and_beam_search_equal_ctranslate2(kind, normalize_first, rng, translator):
    model = random_model(rng, normalize_first=normalize_first, **KINDS[kind])
    peer = translator(model)
    # Only the decoder's learned positions are extended, so the longest source is left out.
    sources = SOURCES if kind != "learned, shorter than outputs" else SOURCES[1:]
    length = LENGTH if kind != "learned, shorter than outputs" else 17
    if model.config.source_vocab_size is not None:  # Some ids are not in the target's vocabulary.
        sources = [[i if i == EOS_ID else i + 18 for i in ids] for ids in sources]

    greedy = {"beam_size": 1, "length_penalty": 0, "max_decoding_length": length}
    ids, scores = translate(peer, sources, **greedy)
    expected, expected_scores = ours(greedy_search, model, sources, length)
    assert ids == expected
    np.testing.assert_allclose(scores, expected_scores, rtol=1e-4, atol=2e-5)

    # All outputs have the same length, so that finishing rules and penalties have no effect.
    options = {"min_decoding_length": length, "max_decoding_length": length, "num_hypotheses": 4}
    ids, scores = translate(peer, sources, beam_size=4, length_penalty=0.7, **options)
    settings = {"beam_size": 4, "num_results": 4, "alpha": 0.0}
    expected, log_probs = ours(beam_search, model, sources, length, (0, EOS_ID), **settings)
    assert ids == expected
    np.testing.assert_allclose(scores, log_probs / length**0.7, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"share_heads": False}, "since CTranslate2 has one table for all heads of a layer."),
        ({"relative_cross_attention": True}, "since CTranslate2 does not support them there."),
        (
            {"position": "relative+sinusoidal", "normalize_first": False},
            "since CTranslate2 adds no sinusoids if the first layer has relative positions. "
            "Received: position='relative+sinusoidal', normalize_first=False.",
        ),
    ],
)
def test_unsupported_architecture_raises(build, settings, message):
    config = small_config(hidden_dim=4, num_heads=2, **settings)
    with pytest.raises(ValueError, match=f"Expected .*{re.escape(message)}"):
        build(SimpleNamespace(config=config), [], [], 2)


def test_unlike_epsilons_raise(build, rng):
    model = random_model(rng)
    names = [list(map(str, range(VOCAB_SIZE)))] * 2
    epsilon = model.config.layer_norm_epsilon
    assert build(model, *names, 2).config.layer_norm_epsilon == epsilon
    model.decoder_layers[0].cross_attention_residual.norm.epsilon = 0.25
    with pytest.raises(ValueError, match=f"one epsilon of all .* Received: {epsilon}, 0.25"):
        build(model, *names, 2)
