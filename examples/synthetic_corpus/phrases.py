"""Noun phrases of the synthetic corpus: German agreement in gender, number and case.

Every phrase has `agreement` (person and number of its verb), `placement`
(its kind in German word order), `relative` (a clause that follows it, or None),
`english(is_object)` and `german(case, negated)`.
"""

from dataclasses import dataclass

from examples.synthetic_corpus import lexicon

CASES = ("nominative", "accusative", "dative")


def _by_gender(masculine, feminine, neuter, plural):
    """Returns the words or endings by gender and case.

    Each argument lists nominative, accusative and dative; - is no ending.
    """
    columns = dict(masculine=masculine, feminine=feminine, neuter=neuter, plural=plural)
    return {
        (gender, case): "" if ending == "-" else ending
        for gender, endings in columns.items()
        for case, ending in zip(CASES, endings.split())
    }


DEFINITE_ARTICLES = _by_gender("der den dem", "die die der", "das das dem", "die die den")
RELATIVE_PRONOUNS = DEFINITE_ARTICLES | {("plural", "dative"): "denen"}
_DER_ENDINGS = _by_gender("er en em", "e e er", "es es em", "e e en")
_EIN_ENDINGS = _by_gender("- en em", "e e er", "- - em", "e e en")
_WEAK = _by_gender("e en en", "e e en", "e e en", "en en en")
_MIXED = _by_gender("er en en", "e e en", "es es en", "en en en")
_STRONG_PLURAL = _by_gender("- - -", "- - -", "- - -", "e e en")

_ARTICLE = {"the": DEFINITE_ARTICLES}
_DER_WORDS = {"this": "dies", "these": "dies", "every": "jed"}
_EIN_WORDS = {"a": "ein", "my": "mein", "his": "sein", "her": "ihr", "our": "unser"}
_PLURAL_WORDS = {"two": ("zwei", "zwei", "zwei"), "some": ("einige", "einige", "einigen")}
INDEFINITE = ("a", "two", "some")
NEGATABLE = ("the", "a", "this", "my", "his", "her", "our")


@dataclass(frozen=True)
class NounPhrase:
    """A determiner and a noun, with an optional adjective and an optional relative clause."""

    determiner: str
    noun: lexicon.Noun
    adjective: lexicon.Adjective | None = None
    plural: bool = False
    relative: object = None

    @property
    def agreement(self):
        return "plural" if self.plural else "third"

    @property
    def gender(self):
        return "plural" if self.plural else self.noun.gender

    @property
    def placement(self):
        return "indefinite" if self.determiner in INDEFINITE else "definite"

    @property
    def negatable(self):
        return self.determiner in NEGATABLE

    def english(self, *, is_object=False):
        noun = self.noun.english_plural if self.plural else self.noun.english
        words = f"{self.adjective.english} {noun}" if self.adjective else noun
        determiner = "an" if self.determiner == "a" and words[0] in "aeiou" else self.determiner
        return f"{determiner} {words}"

    def german(self, case, *, negated=False):
        determiner, endings = self._german_determiner(case, negated=negated)
        adjective = self.adjective.stem + endings[self.gender, case] if self.adjective else ""
        return " ".join(filter(None, (determiner, adjective, self._german_noun(case))))

    def _german_determiner(self, case, *, negated):
        key = self.gender, case
        if self.determiner == "the":
            return DEFINITE_ARTICLES[key], _WEAK
        if self.determiner in _DER_WORDS:
            return _DER_WORDS[self.determiner] + _DER_ENDINGS[key], _WEAK
        if self.determiner in _PLURAL_WORDS:
            return _PLURAL_WORDS[self.determiner][CASES.index(case)], _STRONG_PLURAL
        stem = _EIN_WORDS[self.determiner]
        if negated and self.determiner == "a":
            stem = "kein"
        ending = _EIN_ENDINGS[key]
        return stem + ending, _MIXED

    def _german_noun(self, case):
        noun = self.noun
        if not self.plural:
            return noun.german if case == "nominative" else noun.oblique or noun.german
        if case == "dative" and noun.german_plural[-1] not in "ns":
            return noun.german_plural + "n"
        return noun.german_plural


@dataclass(frozen=True)
class PronounPhrase:
    """A personal pronoun."""

    pronoun: lexicon.Pronoun
    placement = "pronoun"
    negatable = True
    noun = None
    relative = None

    @property
    def agreement(self):
        return self.pronoun.agreement

    def english(self, *, is_object=False):
        return self.pronoun.english_object if is_object else self.pronoun.english_subject

    def german(self, case, *, negated=False):
        return getattr(self.pronoun, case)


@dataclass(frozen=True)
class FixedPhrase:
    """A phrase with the same words in every case.

    It is a name, the subject `it` or `who`, or the empty gap of a relative pronoun or
    question word.
    """

    words: str = ""
    german_words: str = ""
    agreement: str = "third"
    noun: lexicon.Noun | None = None
    placement = "definite"
    negatable = True
    relative = None

    def english(self, *, is_object=False):
        return self.words

    def german(self, case, *, negated=False):
        return self.german_words
