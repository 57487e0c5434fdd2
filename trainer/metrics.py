"""What `trainer.evaluate` prints of translations besides sacreBLEU: each metric by name, with what
its number is.

All are in percent, over a whole test set with one reference per sentence. sacreBLEU counts n-grams
for all of them; where others' BLEU splits words otherwise, or differs in what counts as none, that
is done here.
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
    """A number and what it is.

    Args:
        name: such as "chrF2".
        value: in percent.
        signature: how it was counted, in the style of sacreBLEU's signatures.
    """

    name: str
    value: float
    signature: str


def sacrebleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """sacreBLEU of detokenised text, cased: the number to publish."""
    return _of_sacrebleu("BLEU", BLEU(), hypotheses, references)


def sacrebleu_lowercased(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """sacreBLEU of lower-cased text."""
    return _of_sacrebleu("BLEU lower-cased", BLEU(lowercase=True), hypotheses, references)


def sacrebleu_tokenized(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """sacreBLEU of text whose words are split already, as a model gives that was trained on such
    text: only spaces count.
    """
    return _of_sacrebleu(
        "BLEU of tokens", BLEU(tokenize="none", force=True), hypotheses, references
    )


def chrf(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """chrF2: F-score of n-grams of up to 6 characters, recall counting twice.

    Reference: Popović 2015.
    """
    return _of_sacrebleu("chrF2", CHRF(), hypotheses, references)


def t2t_bleu(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The BLEU_cased that tensor2tensor's `t2t-bleu` prints of these lines.

    Reference: tensor2tensor `bleu_hook.bleu_wrapper`.
    """
    return _t2t_bleu("t2t-bleu", hypotheses, references, "mixed")


def t2t_bleu_uncased(hypotheses: Sequence[str], references: Sequence[str]) -> Score:
    """The BLEU_uncased that `t2t-bleu` prints."""
    lower = ([line.lower() for line in lines] for lines in (hypotheses, references))
    return _t2t_bleu("t2t-bleu uncased", *lower, "lc")


def compound_split_bleu(
    hypotheses: Sequence[str], references: Sequence[str], language: str = "de"
) -> Score:
    """BLEU with compounds split at hyphens and Moses's words, as papers of 2016 to 2018 report it.

    Both sides are tokenised as by Moses's tokenizer.perl of that time (sacremoses), `-` between
    letters becomes ` ##AT##-##AT## `, and n-grams are counted as by multi-bleu.perl. The reference
    is tokenised here too; tensor2tensor's script takes one that is.

    Args:
        hypotheses: the translations.
        references: their references.
        language: of both, for Moses's abbreviations and apostrophes.

    Reference: tensor2tensor `utils/get_ende_bleu.sh`.
    """
    import sacremoses

    tokenizer = sacremoses.MosesTokenizer(lang=language)
    split = [
        [split_compounds(tokenizer.tokenize(line, return_str=True)) for line in lines]
        for lines in (hypotheses, references)
    ]
    score = _count(*split, smooth_method="none")
    signature = (
        f"nrefs:1|case:mixed|tok:moses-{language}|compounds:split|smooth:none"
        f"|sacremoses:{sacremoses.__version__}"
    )
    return Score("BLEU compounds split", score.score, signature)


# By the names that `trainer.evaluate --metrics` takes.
METRICS: dict[str, Callable[..., Score]] = {
    "bleu_lc": sacrebleu_lowercased,
    "bleu_tokenized": sacrebleu_tokenized,
    "chrf": chrf,
    "t2t_bleu": t2t_bleu,
    "t2t_bleu_uncased": t2t_bleu_uncased,
    "compound_bleu": compound_split_bleu,
}
# All that mean something for detokenised text.
DEFAULT_METRICS = tuple(name for name in METRICS if name != "bleu_tokenized")


def score(
    name: str, hypotheses: Sequence[str], references: Sequence[str], language: str = "de"
) -> Score:
    """One of METRICS; `language` is the references'."""
    settings = {"language": language} if name == "compound_bleu" else {}
    return METRICS[name](hypotheses, references, **settings)


def t2t_bleu_tokenize(line: str) -> list[str]:
    """Splits off punctuation, but between digits, and symbols.

    sacreBLEU's `intl` differs where a number is no digit ("½."), and at backslashes, which here are
    no punctuation.

    Reference: tensor2tensor `bleu_hook.bleu_tokenize`.

    Example:

    >>> t2t_bleu_tokenize("In 1,000 Jahren (ca. 10%).")
    ['In', '1,000', 'Jahren', '(', 'ca', '.', '10', '%', ')', '.']
    """
    for pattern, replacement in _t2t_patterns():
        line = pattern.sub(replacement, line)
    return line.split()


def split_compounds(line: str) -> str:
    """Splits tokens at hyphens that stand between others.

    Example:

    >>> split_compounds("das E-Mail-Programm - neu")
    'das E ##AT##-##AT## Mail ##AT##-##AT## Programm - neu'
    """
    return re.sub(r"(\S)-(\S)", r"\1 ##AT##-##AT## \2", line)


def _of_sacrebleu(name, metric, hypotheses, references):
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(name, value, str(metric.get_signature()))


def _count(hypotheses, references, **settings):
    """sacreBLEU's counts of text that is tokenised already."""
    return BLEU(tokenize="none", force=True, **settings).corpus_score(
        list(hypotheses), [list(references)]
    )


def _t2t_bleu(name, hypotheses, references, case):
    lines = (
        [" ".join(t2t_bleu_tokenize(line)) for line in side] for side in (hypotheses, references)
    )
    counted = _count(*lines)
    value = 100 * _t2t_formula(counted.counts, counted.totals, counted.sys_len, counted.ref_len)
    return Score(name, value, f"nrefs:1|case:{case}|tok:t2t|smooth:exp|tensor2tensor:1.15.7")


def _t2t_formula(matches, possible, length, reference_length):
    """BLEU of n-gram counts.

    Orders that the translations are too short for count as exact, and no match is smoothed away.
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
    """Pairs of a pattern and its replacement, made when first needed: they name every character of
    two Unicode categories.
    """
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
