"""Tests of calls with the floats that Keras makes of integers when it averages a batch.

Integers as floats must then give the results of integers. tests/models/test_fit_on_replicas.py
has Keras's own averages.
"""

import keras
import numpy as np
import pytest
from comparisons import assert_all_close
from small_transformers import BATCH, TARGETS, random_transformer, small_causal_lm

from t2t_relpos import backend, layers
from t2t_relpos.attention import attend, make_attention_mask, relative_ids_from_positions

IDS = np.array([[3, 0, 2, 1], [1, 2, 0, 3]], "int32")
MASK = (IDS > 0).astype("int32")
PAIRS = MASK[:, None] * MASK[:, :, None]
RELATIONS = (IDS[:, None] + IDS[:, :, None]) % 3
IMAGE_MASK = MASK.reshape(2, 2, 2)
SCALAR = np.int32(2)


def vectors(*shape):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


X, HEADS = vectors(2, 4, 6), vectors(2, 1, 4, 3)
MASKS = {"query_mask": MASK, "value_mask": MASK, "key_mask": MASK, "attention_mask": PAIRS}
OF_LAYER = {"num_heads": 2, "key_dim": 3}
K = {"max_relative_position": 2}


def of_relative(**arguments):
    return layers.RelativeMultiHeadAttention(**OF_LAYER, **K)(X, X, **arguments)


def of_cache(index):
    layer = layers.RelativeMultiHeadAttention(**OF_LAYER, **K)
    return layer(X, X, cache=np.zeros((2, 2, 9, 2, 3), "float32"), cache_update_index=index)


def of_packing(mask):
    packing = layers.Packing(mask)
    return packing.unpack(packing.pack(X))


# A function of integers or masks, and its arguments.
CALLS = {
    "TokenEmbedding": (lambda ids: layers.TokenEmbedding(4, 6)(ids), (IDS,)),
    "CausalLM": (lambda ids: small_causal_lm()(ids), (TARGETS,)),
    "Transformer": (lambda batch: random_transformer(0.3)(batch), (BATCH,)),
    "positions": (lambda p: layers.LearnedPositionEmbedding(4)(X, positions=p), (IDS,)),
    "start": (lambda start: layers.SinusoidalPositionEncoding()(X, start=start), (IDS[:, 0],)),
    "masks": (lambda masks: of_relative(**masks), (MASKS,)),
    "query_positions": (
        lambda p: of_relative(query_positions=p, key_positions=p, use_causal_mask=True),
        (IDS,),
    ),
    "query_offset": (lambda offset: of_relative(query_offset=offset), (SCALAR,)),
    "relations": (
        lambda r, masks: layers.RelationMultiHeadAttention(**OF_LAYER, num_relations=3)(
            X, X, relations=r, **masks
        ),
        (RELATIONS, MASKS),
    ),
    "encoder": (
        lambda mask, pairs: layers.TransformerEncoder(7, 2, **K)(
            X, padding_mask=mask, attention_mask=pairs
        ),
        (MASK, PAIRS),
    ),
    "decoder": (
        lambda mask: layers.TransformerDecoder(7, 2, **K)(
            X, X, decoder_padding_mask=mask, encoder_padding_mask=mask
        ),
        (MASK,),
    ),
    "two blocks": (
        lambda mask: layers.LocalRelativeMultiHeadAttention(**OF_LAYER, block_length=2)(
            X, X, value_mask=mask
        ),
        (MASK,),
    ),
    "packing": (of_packing, (MASK,)),
    "attend": (
        lambda mask, ids: attend(
            HEADS,
            HEADS,
            HEADS,
            vectors(3, 3),
            key_mask=mask,
            mask=mask[:, None] * mask[:, :, None],
            query_mask=mask,
            relative_ids=ids,
        ),
        (MASK, RELATIONS),
    ),
    "attend, offsets": (
        lambda offset: attend(HEADS, HEADS, HEADS, vectors(5, 3), query_offset=offset),
        (IDS[:, 0],),
    ),
    "make_attention_mask": (
        lambda p: make_attention_mask((4, 4), causal=True, window=2, positions=(p, p)),
        (IDS,),
    ),
    "relative_ids": (lambda p: relative_ids_from_positions(p, p, 2), (IDS,)),
}


@pytest.mark.parametrize("name", CALLS)
def test_averages_are_accepted_only_while_keras_builds(name, monkeypatch):
    function, arguments = CALLS[name]

    def call(arguments):
        keras.utils.set_random_seed(1)
        return function(*arguments)

    expected = call(arguments)
    averages = keras.tree.map_structure(lambda x: x.astype("float32"), arguments)
    with pytest.raises(ValueError, match="integer dtype|to be boolean|an int tensor"):
        call(averages)
    monkeypatch.setattr(backend, "is_building_from_averages", lambda: True)
    assert_all_close(call(averages), expected, atol=0)
