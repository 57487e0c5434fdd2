"""Compares scores and alignments of `FoldedTransformer` with those of the Keras model."""

import numpy as np
import pytest

from t2t_relpos.decoding import score_tokens
from t2t_relpos.models import Transformer, TransformerConfig
from t2t_relpos.models.folded import FoldedTransformer, fold_weights

VOCAB, BATCH, SOURCE_LENGTH, TARGET_LENGTH = 23, 5, 7, 11


@pytest.mark.parametrize(
    "settings",
    [
        {},
        {"position": "sinusoidal"},
        {"position": "learned", "normalize_first": False},
        {"relative_cross_attention": True, "share_heads": False},
    ],
    ids=str,
)
def test_scores_and_alignments_equal_the_keras_model(settings):
    model = Transformer(
        TransformerConfig(
            vocab_size=VOCAB,
            num_encoder_layers=1,
            num_decoder_layers=2,
            hidden_dim=22,
            intermediate_dim=13,
            num_heads=2,
            **{"max_relative_position": 3, "max_length": 17, **settings},
        )
    )
    rng = np.random.default_rng(7)
    for weight in model.weights:
        weight.assign(weight + 0.3 * rng.normal(size=weight.shape))
    source = rng.integers(2, VOCAB, size=(BATCH, SOURCE_LENGTH)).astype("int32")
    source[1, 4:] = source[3, 1:] = 0
    targets = rng.integers(2, VOCAB, size=(BATCH, TARGET_LENGTH)).astype("int32")
    targets[0, 3:] = targets[4, 10:] = 0
    scores, alignments = model.score(source, targets, return_alignments=True)
    logits, fast_alignments = FoldedTransformer(model.config, fold_weights(model)).score(
        source, targets
    )
    np.testing.assert_allclose(alignments, fast_alignments, atol=2e-5)
    for ours, theirs in zip(scores, score_tokens(logits, targets), strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-4, rtol=1e-4)
