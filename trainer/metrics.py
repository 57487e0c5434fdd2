"""Metrics of translations, in percent, over a test set with one reference per sentence.

sacreBLEU counts the n-grams of all metrics. This module adds the tokenization and the formula of
tensor2tensor's BLEU, and the compound splitting of papers of 2016 to 2018.
"""

import dataclasses
import functools
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

from sacrebleu.metrics import BLEU, CHRF


@dataclasses.dataclass(frozen=True)
class Score:
    """The value of a metric.

    Args:
        name: such as "chrF2".
        value: in percent.
        signature: description of the metric in the style of sacreBLEU.
    """

    name: str
    value: float
    signature: str


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """Returns sacreBLEU, case-sensitive, of detokenized text."""
    return _sacrebleu_score("BLEU", BLEU(), hypotheses, references)


def t2t_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> Score:
    """Returns BLEU_cased of tensor2tensor's `t2t-bleu`, or BLEU_uncased.

    Reference: tensor2tensor `bleu_hook.bleu_wrapper`.
    """
    tokenized = [
        [" ".join(t2t_bleu_tokenize(line.lower() if lowercase else line)) for line in lines]
        for lines in (hypotheses, references)
    ]
    counts = _count(*tokenized)
    value = 100 * _t2t_formula(counts.counts, counts.totals, counts.sys_len, counts.ref_len)
    name, case = ("t2t-bleu uncased", "lc") if lowercase else ("t2t-bleu", "mixed")
    return Score(name, value, f"nrefs:1|case:{case}|tok:t2t|smooth:exp|tensor2tensor:1.15.7")


def compound_split_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "de"
) -> Score:
    """Returns BLEU of Moses's tokens with compounds split at hyphens.

    Papers of 2016 to 2018 report it. Both sides are tokenized as by Moses's tokenizer.perl of that
    time (sacremoses), and n-grams are counted as by multi-bleu.perl.

    Args:
        hypotheses: the translations.
        references: their references; tensor2tensor's script expects them tokenized.
        language: of both, for abbreviations and apostrophes.

    Reference: tensor2tensor `utils/get_ende_bleu.sh`.
    """
    import sacremoses

    tokenizer = sacremoses.MosesTokenizer(lang=language)
    split = [
        [split_compounds(tokenizer.tokenize(line, return_str=True)) for line in lines]
        for lines in (hypotheses, references)
    ]
    signature = (
        f"nrefs:1|case:mixed|tok:moses-{language}|compounds:split|smooth:none"
        f"|sacremoses:{sacremoses.__version__}"
    )
    return Score("BLEU compounds split", _count(*split, smooth_method="none").score, signature)


def _sacrebleu_score(name, metric, hypotheses, references):
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(name, value, str(metric.get_signature()))


_LOWERCASED = functools.partial(_sacrebleu_score, "BLEU lower-cased", BLEU(lowercase=True))
# For models of text with separated tokens: only spaces separate words.
_TOKENIZED = functools.partial(
    _sacrebleu_score, "BLEU of tokens", BLEU(tokenize="none", force=True)
)
_CHRF = functools.partial(_sacrebleu_score, "chrF2", CHRF())
# By the names of `trainer.evaluate --metrics`.
METRICS: dict[str, Callable[..., Score]] = {
    "bleu_lc": _LOWERCASED,
    "bleu_tokenized": _TOKENIZED,
    "chrf": _CHRF,
    "t2t_bleu": t2t_bleu,
    "t2t_bleu_uncased": functools.partial(t2t_bleu, lowercase=True),
    "compound_bleu": compound_split_bleu,
}
# The metrics of detokenized text.
DEFAULT_METRICS = tuple(name for name in METRICS if name != "bleu_tokenized")


def score(
    name: str, hypotheses: Sequence[str], references: Sequence[str], language: str = "de"
) -> Score:
    """Returns the score of one of `METRICS`. `language` is that of the references."""
    settings = {"language": language} if name == "compound_bleu" else {}
    return METRICS[name](hypotheses, references, **settings)


def t2t_bleu_tokenize(line: str) -> list[str]:
    """Separates symbols, and punctuation that is not between digits.

    sacreBLEU's `intl` differs for numbers that are no digits ("½.") and for backslashes, which are
    no punctuation here.

    Reference: tensor2tensor `bleu_hook.bleu_tokenize`.
    """
    for pattern, replacement in _t2t_patterns():
        line = pattern.sub(replacement, line)
    return line.split()


def split_compounds(line: str) -> str:
    """Splits tokens at hyphens between other characters."""
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)


def _count(hypotheses, references, **settings):
    """Returns sacreBLEU's counts of tokenized text."""
    metric = BLEU(tokenize="none", force=True, **settings)
    return metric.corpus_score(list(hypotheses), [list(references)])


def _t2t_formula(matches, possible, length, reference_length):
    """Returns BLEU of n-gram counts.

    Orders without possible n-grams count as exact. Orders without a match are smoothed.
    """
    logarithms, smooth = 0.0, 1.0
    for right, total in zip(matches, possible):
        if total and not right:
            smooth *= 2
        if total:
            logarithms += math.log((right or 1 / smooth) / total)
    if not length:
        return 0.0
    brevity = math.exp(min(0.0, 1 - reference_length / length))
    return brevity * math.exp(logarithms / len(matches))


@functools.cache
def _t2t_patterns():
    """Returns (pattern, replacement) pairs. The patterns list all characters of two categories."""
    classes = {"P": [], "S": []}
    for character in map(chr, range(sys.maxunicode)):
        kind = unicodedata.category(character)[0]
        if kind in classes and character != "\\":
            classes[kind].append(re.escape(character))
    punctuation, symbols = ("[" + "".join(characters) + "]" for characters in classes.values())
    return (
        (re.compile(rf"(\D)({punctuation})"), r"\1 \2 "),
        (re.compile(rf"({punctuation})(\D)"), r" \1 \2"),
        (re.compile(rf"({symbols})"), r" \1 "),
    )
