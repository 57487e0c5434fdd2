import json

import numpy as np
import pytest

from t2t_relpos.models import TransformerConfig
from trainer.visualization.attention_maps import attention_maps
from trainer.visualization.logit_parts import logit_parts
from trainer.visualization.page_data import no_position, page_data
from trainer.visualization.sentence_pair import SentencePair
from trainer.visualization.table_statistics import mean_logits, row_norms

NAMES = [f"n{i}" for i in range(23)]
PAIR = SentencePair("a b", "c", [5, 7, 9, 1], [3, 1, 1], True)


def data_of(transformer):
    maps = attention_maps(transformer, PAIR.source_ids, PAIR.target_ids)
    data = page_data(transformer.config, PAIR, NAMES, maps, "runs/x")
    assert json.loads(json.dumps(data, allow_nan=False)) == data
    return maps, data


def same(rows, expected, visible=True):
    """Whether rows of JSON hold numbers to 4 digits, and None where a pair is not visible."""
    visible = np.broadcast_to(visible, np.shape(expected))
    np.testing.assert_array_equal([[x is not None for x in row] for row in rows], visible)
    numbers = np.array([[np.nan if x is None else x for x in row] for row in rows])
    np.testing.assert_allclose(numbers[visible], np.asarray(expected)[visible], rtol=5.001e-4)


@pytest.mark.parametrize(
    "kind", ["shared tables", "tables per head", "relative cross-attention", "K = 0"]
)
def test_numbers_are_the_arrays(make_transformer, kind):
    transformer = make_transformer(kind)
    maps, data = data_of(transformer)
    for part in data["parts"]:
        for shown, layer in zip(part["layers"], maps[part["id"]], strict=True):
            for head, values in enumerate(shown["heads"]):
                same(values["weights"], layer.weights[head], layer.visible)
                if layer.position is None:
                    assert (
                        values.keys() == {"weights", "parts"}
                        and values["parts"] is None
                        and shown["tables"] is None
                    )
                    continue
                same(values["content"], layer.content[head], layer.visible)
                same(values["position"], layer.position[head], layer.visible)
                expected = logit_parts(layer)[head]._asdict()
                assert values["parts"].keys() == expected.keys()
                np.testing.assert_allclose(
                    list(values["parts"].values()), list(expected.values()), rtol=5.001e-4
                )
            if shown["tables"]:
                same(shown["tables"]["keyNorms"], row_norms(layer.key_table))
                same(shown["tables"]["valueNorms"], row_norms(layer.value_table))
                same(shown["tables"]["meanLogits"], mean_logits(layer))
                farthest = transformer.config.max_relative_position
                assert shown["tables"]["distances"] == list(range(-farthest, farthest + 1))


def test_labels(make_transformer):
    _, data = data_of(make_transformer("shared tables"))
    source, predicted, read = ["n5", "n7", "n9", "n1"], ["n3", "n1", "n1"], ["‹go›", "n3", "n1"]
    assert [(part["id"], part["queries"], part["keys"]) for part in data["parts"]] == [
        ("encoder", source, source), ("decoder", predicted, read), ("cross", predicted, source),
    ]  # fmt: skip
    assert (data["source"], data["target"]) == (
        {"text": "a b", "tokens": source},
        {"text": "c", "tokens": predicted},
    )
    assert data["isGiven"] and data["model"] == "runs/x" and data["settings"]["num_heads"] == 2


@pytest.mark.parametrize(
    "kind, present",
    [
        ("a^K alone", {"keyNorms", "meanLogits"}),
        ("a^V alone", {"valueNorms"}),
        ("no tables", None),
        ("learned", None),
    ],
)
def test_missing_tables(make_transformer, kind, present):
    _, data = data_of(make_transformer(kind))
    tables = data["parts"][1]["layers"][2]["tables"]
    if present is None:
        assert tables is None
    else:
        assert {name for name, rows in tables.items() if rows is not None} == present | {
            "distances"
        }


def test_reasons():
    def reason(part="encoder", **settings):
        return no_position(TransformerConfig(vocab_size=5, **settings), part)

    assert reason() is None and reason("decoder") is None
    assert "(relative_cross_attention is off)" in reason("cross")
    assert reason("cross", relative_cross_attention=True) is None
    assert (
        "position=sinusoidal: no tables"
        in reason(position="sinusoidal")
        == reason("cross", position="sinusoidal")
    )
    assert "no a^K (use_key_table is off)" in reason(use_key_table=False)
    assert "neither a^K nor a^V" in reason(use_key_table=False, use_value_table=False)
    assert reason(position="relative+sinusoidal") is None
