"""Tests of the reports of text: counts of tokens, warnings, and counts of an exported model."""

from types import SimpleNamespace

import pytest
from pair_corpus import PairCorpus

from trainer.data.encoding import encode_pairs
from trainer.data.text_report import (
    CountedTranslations,
    TextCounts,
    count_in_graph,
    describe_sides,
)
from trainer.data.tokenizer import Tokenizers
from trainer.serving.translator import Translation


@pytest.fixture
def module(tokenizer):
    """Returns an object with the functions of a `TranslationModule` that tokenize."""

    def ids(text):
        found = tokenizer.tokenize(text)
        return {"ids": found.to_tensor(), "lengths": found.row_lengths()}

    return SimpleNamespace(
        ids=ids,
        tokenize=lambda text: {"tokens": tokenizer.pieces(ids(text)["ids"])},
        detokenize=lambda ids: {"text": tokenizer.detokenize(ids)},
    )


def test_counts_have_a_summary_and_sums():
    counts = TextCounts(10, 1000, 3, 0, 2) + TextCounts(10, 1000, 1, 20, 0)
    assert counts == TextCounts(20, 2000, 4, 20, 2)
    assert str(counts) == (
        "2,000 tokens, 4 unknown (0.20%), 20 byte pieces (1.00%), normalization changes 2 of 20 "
        "lines"
    )


def test_more_than_a_thousandth_of_unknown_tokens_is_a_warning():
    sides = {"source": TextCounts(1, 1000, 1), "target": TextCounts(1, 1000, 2)}
    lines = describe_sides(sides)
    assert lines[:2] == [f"  {name}: {counts}" for name, counts in sides.items()]
    (warning,) = lines[2:]
    assert warning.startswith("  warning: 0.20% of the tokens of the target are unknown, because")
    assert warning.endswith("train a new model with --preset and --byte_fallback.")
    assert describe_sides(sides, is_new=True)[2].endswith(
        "Train the vocabulary with --byte_fallback, or on text with these characters."
    )
    assert TextCounts().warning("the source") is None


def test_counts_of_an_exported_model_equal_those_of_training(module, tokenizer):
    texts = ["the dog", "", "the ｄog", "Ω dog", "the  dog ", "a\x0bdog", "a\u2028dog"]
    corpus = PairCorpus(tuple((x, x) for x in texts))
    expected = encode_pairs(corpus, Tokenizers.shared(tokenizer)).counts["source"]
    assert count_in_graph(module, [text.encode() for text in texts]) == expected
    assert (expected.unknown, expected.normalized) == (1, 3)
    assert count_in_graph(module, []) == TextCounts()


def test_counts_of_translated_lines(module):
    answer = [Translation(b"", 0.0, False)], [Translation(b"", 0.0, True)]
    translate = CountedTranslations(lambda texts: answer[: len(texts)], module)
    assert translate([b" ", "ΩΩ the".encode()]) == answer
    translate([b"the"])
    first, counts, warning = translate.describe()
    assert first == "Read 3 lines: 1 blank, 1 cut."
    assert ", 1 unknown" in counts and "of the source are unknown" in warning
    assert CountedTranslations(None).describe() == ["Read 0 lines: 0 blank, 0 cut."]
