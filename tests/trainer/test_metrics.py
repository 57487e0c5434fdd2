"""Tests of metrics, compared with recorded results of tensor2tensor and Moses.

The recorded results are in tests/reference/bleu.json.
"""

import json
import pathlib

import pytest
import sacrebleu
from sacrebleu.metrics import BLEU

from trainer import metrics

RECORDED = json.loads((pathlib.Path(__file__).parents[1] / "reference" / "bleu.json").read_text())
CORPORA = pytest.mark.parametrize(
    "corpus", RECORDED["corpora"], ids=lambda corpus: corpus["name"].replace(" ", "_")
)


@CORPORA
def test_t2t_bleu_equals_tensor2tensor(corpus):
    sides = corpus["hypotheses"], corpus["references"]
    # tensor2tensor returns float32.
    assert metrics.t2t_bleu(*sides).value == pytest.approx(corpus["cased"], rel=1e-6)
    assert metrics.t2t_bleu(*sides, lowercase=True).value == pytest.approx(
        corpus["uncased"], rel=1e-6
    )


def test_t2t_bleu_tokenize_equals_tensor2tensor():
    for line, tokens in RECORDED["tokens"]:
        assert metrics.t2t_bleu_tokenize(line) == tokens


def test_sacrebleu_intl_tokenizer_differs():
    intl = sacrebleu.BLEU(tokenize="intl").tokenizer
    differing = [line for line, tokens in RECORDED["tokens"] if intl(line).split() != tokens]
    assert 0 < len(differing) < 6


@CORPORA
def test_compound_split_bleu_equals_moses(corpus):
    score = metrics.compound_split_bleu(corpus["hypotheses"], corpus["references"], "de")
    # multi-bleu.perl prints nothing for translations without words.
    expected = corpus["multi_bleu"] or {"bleu": 0.0}
    assert score.value == pytest.approx(expected["bleu"], abs=0.0051)


def test_sacremoses_equals_tokenizer_perl():
    import sacremoses

    tokenizer = sacremoses.MosesTokenizer(lang="de")
    for corpus in RECORDED["corpora"]:
        for lines, tokenised in zip(
            (corpus["hypotheses"], corpus["references"]), corpus["tokenised"]
        ):
            assert [tokenizer.tokenize(line, return_str=True) for line in lines] == [
                line.strip() for line in tokenised
            ]


def test_language_of_the_compound_split_bleu():
    sides = ["l'air d'hier"], ["l'air d'hier soir"]
    french, german = (
        metrics.score("compound_bleu", *sides, language=language) for language in ("fr", "de")
    )
    # With "fr" the tokenizer keeps the apostrophe with the article, with "de" with the noun.
    assert french.signature.startswith(
        "nrefs:1|case:mixed|tok:moses-fr|compounds:split|smooth:none|sacremoses:"
    )
    assert german.signature.startswith("nrefs:1|case:mixed|tok:moses-de|")
    assert metrics.split_compounds("Nord-Süd-Strecke -a b- a-b") == (
        "Nord ##AT##-##AT## Süd ##AT##-##AT## Strecke -a b- a ##AT##-##AT## b"
    )


def test_sacrebleu_metrics_have_its_signatures():
    sides = ["Der Hund schläft dort heute", "Ja"], ["der Hund schläft dort heute nicht", "ja"]
    version = sacrebleu.__version__
    score = metrics.score("bleu_lc", *sides)
    assert score.signature == f"nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|version:{version}"
    assert score.value == pytest.approx(100 * 2.718281828459045 ** (1 - 7 / 6))
    assert metrics.sacrebleu(*sides).value == pytest.approx(
        BLEU().corpus_score(sides[0], [sides[1]]).score
    )
    score = metrics.score("bleu_tokenized", ["a , b c-d ."], ["a , b c - d ."])
    assert score.signature == f"nrefs:1|case:mixed|eff:no|tok:none|smooth:exp|version:{version}"
    # Matches: 4 of 5 unigrams, 2 of 4 bigrams, 1 of 3 trigrams, 0 of 2 4-grams (smoothed to 1/2).
    # The brevity penalty is for 5 of 7 words.
    assert score.value == pytest.approx(
        100 * (4 / 5 * 2 / 4 * 1 / 3 * 1 / 4) ** 0.25 * 2.718281828459045 ** (1 - 7 / 5)
    )
    score = metrics.score("chrf", *sides)
    assert score.signature == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|version:{version}"
    assert score.value == pytest.approx(sacrebleu.corpus_chrf(sides[0], [sides[1]]).score)


CHINESE = ["你好，世界！", "今天天气很好。"]


@pytest.mark.parametrize("tokenize", ["zh", "char", "none", "13a"])
def test_tokenizer_of_bleu_is_in_the_signature(tokenize):
    for score in (
        metrics.sacrebleu(CHINESE, CHINESE, tokenize),
        metrics.score("bleu_lc", CHINESE, CHINESE, tokenize=tokenize),
    ):
        assert f"|tok:{tokenize}|" in score.signature
        is_split = tokenize in ("zh", "char")
        assert score.value == pytest.approx(100 if is_split else 0)
        assert (metrics.bleu_warning(CHINESE, tokenize) is None) == is_split


def test_warning_about_references_with_few_4_grams():
    short = ["Ja.", "Nein.", "", "Ein Hund schläft."]
    warning = metrics.bleu_warning(short)
    assert warning.startswith("warning: with the tokenizer 13a, the references have almost no seq")
    assert "--bleu_tokenize=zh" in warning
    assert metrics.bleu_warning([*short, "Der Mann sieht heute einen Hund."]) is None
    assert metrics.bleu_warning([""]) is None


def test_names_and_signatures_of_all_metrics():
    sides = ["Das ist gut so."], ["Das ist gut so."]
    found = {name: metrics.score(name, *sides) for name in metrics.METRICS}
    names = "BLEU lower-cased", "BLEU of tokens", "chrF2", "t2t-bleu", "t2t-bleu uncased"
    assert [score.name for score in found.values()] == [*names, "BLEU compounds split"]
    assert [score.value for score in found.values()] == pytest.approx([100.0] * 6)
    for name, case in (("t2t_bleu", "mixed"), ("t2t_bleu_uncased", "lc")):
        signature = f"nrefs:1|case:{case}|tok:t2t|smooth:exp|tensor2tensor:1.15.7"
        assert found[name].signature == signature
