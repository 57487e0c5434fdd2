"""Translation metrics, in percent, for test sets with one reference per sentence.

sacreBLEU counts the n-grams for all metrics. This module adds the tokenization and the formula of
tensor2tensor's BLEU, and the compound splitting used in papers from 2016 to 2018.
"""

import dataclasses
import functools
import math
import re
import sys
import unicodedata
from collections.abc import Callable, Sequence

from sacrebleu.metrics import BLEU, CHRF

# Tokenizers of sacreBLEU for BLEU that need no download.
BLEU_TOKENIZERS = ("13a", "intl", "zh", "char", "none", "ja-mecab", "ko-mecab")
DEFAULT_TOKENIZER = "13a"


@dataclasses.dataclass(frozen=True)
class Score:
    """The value of a metric.

    Args:
        name: name of the metric, such as "chrF2".
        value: value in percent.
        signature: description of the metric in sacreBLEU's format.
    """

    name: str
    value: float
    signature: str


def check_bleu_tokenize(name: str):
    """Raises ValueError if a tokenizer is not in `BLEU_TOKENIZERS`, or needs a missing package."""
    if name not in BLEU_TOKENIZERS:
        raise ValueError(
            f"Expected bleu_tokenize to be one of {', '.join(BLEU_TOKENIZERS)}. Received: {name!r}."
            " For others, for which sacreBLEU downloads a model, score the --output of "
            "trainer.evaluate with the program sacrebleu."
        )
    try:
        BLEU(tokenize=name)
    except RuntimeError as error:
        raise ValueError(
            f"Expected the packages of bleu_tokenize={name}. Received: an environment without "
            f"them. Install them: pip install 'sacrebleu[{name[:2]}]'."
        ) from error


def sacrebleu(
    hypotheses: Sequence[str], references: Sequence[str], tokenize: str = DEFAULT_TOKENIZER
) -> Score:
    """Returns the case-sensitive sacreBLEU score of detokenized text."""
    return _bleu("BLEU", hypotheses, references, tokenize)


def compare(
    systems: dict[str, Sequence[str]], references: Sequence[str], tokenize: str = DEFAULT_TOKENIZER
) -> list[str]:
    """Returns a table of BLEU and chrF2 of several systems, with sacreBLEU's paired bootstrap.

    Each score has its 95% confidence interval. p is the probability that a
    system as good as the first differs from it as much.

    Args:
        systems: the translations of each system by its name.
        references: reference translations.
        tokenize: tokenizer of sacreBLEU for BLEU.

    Returns:
        Lines: a header, a line for each system, and the signatures of both metrics.
    """
    from sacrebleu.significance import PairedTest

    found = {"BLEU": BLEU(tokenize=tokenize, force=True), "chrF2": CHRF()}
    test = PairedTest([*systems.items()], found, [list(references)], test_type="bs")
    signatures, scores = test()
    width = max(map(len, ["model", *systems]))
    lines = [f"  {'model':{width}}" + "".join(f"{name:>16}{'p':>9}" for name in found)]
    first = next(iter(systems.values()))
    for number, (system, translations) in enumerate(systems.items()):
        line = f"  {system:{width}}"
        for name in found:
            result = scores[name][number]
            # sacreBLEU's p of equal translations is the smallest one.
            p = 1.0 if number and translations == first else result.p_value
            p = "-" if p is None else f"{p:.4f}"
            line += f"{f'{result.score:.2f} ± {result.ci:.2f}':>16}{p:>9}"
        lines.append(line)
    return lines + [f"{name}  {signatures[name]}" for name in found]


def bleu_warning(references: Sequence[str], tokenize: str = DEFAULT_TOKENIZER) -> str | None:
    """Returns a warning if BLEU can't score a test set, otherwise None.

    BLEU is close to 0, for perfect translations too, if references have almost no 4-grams. This is
    the case for languages without spaces, unless the tokenizer splits their text.
    """
    tokenizer = BLEU(tokenize=tokenize, force=True).tokenizer
    lengths = [len(tokenizer(reference).split()) for reference in references if reference.strip()]
    if sum(max(length - 3, 0) for length in lengths) >= len(lengths):
        return None
    return (
        f"warning: with the tokenizer {tokenize}, the references have almost no sequences of 4 "
        "tokens, so BLEU is close to 0 for perfect translations too. For text without spaces "
        "between words, give --bleu_tokenize=zh (Chinese), ja-mecab (Japanese), ko-mecab (Korean) "
        "or char (any language), or use chrF."
    )


def t2t_bleu(
    hypotheses: Sequence[str], references: Sequence[str], *, lowercase: bool = False
) -> Score:
    """Returns the BLEU_cased or BLEU_uncased score of tensor2tensor's `t2t-bleu`.

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
    """Returns the BLEU score of Moses tokens with compounds split at hyphens.

    Papers from 2016 to 2018 report this score. Both sides are tokenized as in Moses's
    tokenizer.perl of that time (sacremoses), with the abbreviations and apostrophes of `language`.
    tensor2tensor's script expects tokenized references. N-grams are counted as in multi-bleu.perl.

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


def _bleu(name, hypotheses, references, tokenize, **settings):
    # With force, sacreBLEU does not warn about text that looks tokenized.
    force = {"force": True} if tokenize == "none" else {}
    metric = BLEU(tokenize=tokenize, **force, **settings)
    return _sacrebleu_score(name, metric, hypotheses, references)


def _sacrebleu_score(name, metric, hypotheses, references):
    value = metric.corpus_score(list(hypotheses), [list(references)]).score
    return Score(name, value, str(metric.get_signature()))


# Keys are the values of `trainer.evaluate --metrics`.
METRICS: dict[str, Callable[..., Score]] = {
    "bleu_lc": functools.partial(
        _bleu, "BLEU lower-cased", tokenize=DEFAULT_TOKENIZER, lowercase=True
    ),
    # For text that is already tokenized: only spaces separate words.
    "bleu_tokenized": functools.partial(_bleu, "BLEU of tokens", tokenize="none"),
    "chrf": functools.partial(_sacrebleu_score, "chrF2", CHRF()),
    "t2t_bleu": t2t_bleu,
    "t2t_bleu_uncased": functools.partial(t2t_bleu, lowercase=True),
    "compound_bleu": compound_split_bleu,
}
# All metrics of detokenized text.
DEFAULT_METRICS = tuple(name for name in METRICS if name != "bleu_tokenized")


def score(
    name: str,
    hypotheses: Sequence[str],
    references: Sequence[str],
    language: str = "de",
    tokenize: str = DEFAULT_TOKENIZER,
) -> Score:
    """Returns the score of the metric `name` of `METRICS`.

    `language`, that of the references, is for "compound_bleu", and `tokenize` for "bleu_lc".
    """
    settings = {"compound_bleu": {"language": language}, "bleu_lc": {"tokenize": tokenize}}
    return METRICS[name](hypotheses, references, **settings.get(name, {}))


def t2t_bleu_tokenize(line: str) -> list[str]:
    """Splits a line into tokens: separates symbols, and punctuation that is not between digits.

    sacreBLEU's `intl` tokenizer differs for numbers that are not digits ("½.") and for backslashes,
    which do not count as punctuation here.

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
    """Returns the BLEU score of n-gram counts.

    Orders without possible n-grams have a precision of 1. Orders without a match are smoothed.
    """
    logarithms, smooth = 0.0, 1.0
    for matching, total in zip(matches, possible):
        if total and not matching:
            smooth *= 2
        if total:
            logarithms += math.log((matching or 1 / smooth) / total)
    if not length:
        return 0.0
    brevity = math.exp(min(0.0, 1 - reference_length / length))
    return brevity * math.exp(logarithms / len(matches))


@functools.cache
def _t2t_patterns():
    """Returns (pattern, replacement) pairs. The patterns list all punctuation and all symbols."""
    classes = {"P": [], "S": []}
    for character in map(chr, range(sys.maxunicode)):
        category = unicodedata.category(character)[0]
        if category in classes and character != "\\":
            classes[category].append(re.escape(character))
    punctuation, symbols = ("[" + "".join(characters) + "]" for characters in classes.values())
    return (
        (re.compile(rf"(\D)({punctuation})"), r"\1 \2 "),
        (re.compile(rf"({punctuation})(\D)"), r" \1 \2"),
        (re.compile(rf"({symbols})"), r" \1 "),
    )
