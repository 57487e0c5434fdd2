"""Phrases and clauses of the synthetic corpus in English and German.

German phrases agree in gender, number and case. Words, endings and word orders are in
`lexicon.json`, where a table of words has the names of its columns in its first row.
"""

import json
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

LEXICON = json.loads(Path(__file__).with_name("lexicon.json").read_text("utf-8"))


def _table(name):
    columns, *rows = LEXICON[name]
    return {row[0]: namedtuple(name, columns)(*row) for row in rows}


NOUNS, ADJECTIVES, PRONOUNS = _table("nouns"), _table("adjectives"), _table("pronouns")
VERBS, DETERMINERS, ENDINGS = _table("verbs"), _table("determiners"), LEXICON["endings"]
CASES = ("nominative", "accusative", "dative")
NEGATABLE_TENSES = ("present", "past", "future", "can", "want to", "past want to")


@dataclass
class Phrase:
    """A noun phrase, pronoun or name, or the gap of a relative pronoun or question word.

    `person` is the index of its verb form: 0 I, 1 he, 2 we. `placement` is its kind in German word
    order: pronoun, definite or indefinite. `relative` is a pair of relative clauses.
    """

    english: str = ""
    english_object: str = ""
    nominative: str = ""
    accusative: str = ""
    dative: str = ""
    person: int = 1
    placement: str = "definite"
    noun: str = ""
    determiner: str = ""
    relative: tuple = ("", "")

    @property
    def referent(self):
        return self.noun or self.english


def pronoun(english):
    return Phrase(*PRONOUNS[english], "pronoun")


def noun_phrase(determiner, noun, adjective="", *, plural=False):
    """Returns the phrase of English words: keys of `DETERMINERS`, `NOUNS` and `ADJECTIVES`."""
    determiner, noun = DETERMINERS[determiner], NOUNS[noun]
    number = "plural" if plural else noun.gender
    english = f"{adjective} {noun.english_plural if plural else noun.english}".strip()
    article = "an" if determiner.english == "a" and english[0] in "aeiou" else determiner.english
    german = []
    for case in range(3):
        words = [determiner.stem + ENDINGS[determiner.endings][number][case]]
        if adjective:
            ending = ENDINGS[determiner.adjective_endings][number][case]
            words.append(ADJECTIVES[adjective].stem + ending)
        words.append((noun.german_plural if plural else noun.german)[case])
        german.append(" ".join(words))
    agreement = 2 if plural else 1, determiner.placement, noun.english, determiner.english
    return Phrase(*[f"{article} {english}"] * 2, *german, *agreement)


@dataclass
class Clause:
    """The content of a clause.

    `complements` has phrases for dative, accusative, with and for, and (English, German) texts for
    place, goal, frequency, time and front, a time at the beginning. `tense` is present, past or a
    key of the auxiliaries in `lexicon.json`.
    """

    subject: Phrase
    verb: tuple
    complements: dict
    tense: str
    negated: bool = False

    def objects(self):
        return [(c, self.complements[c]) for c in ("dative", "accusative") if c in self.complements]

    def can_be_negated(self):
        determiners = [phrase.determiner for _, phrase in self.objects()]
        return (
            self.tense in NEGATABLE_TENSES
            and self.subject.determiner != "every"
            and not {"these", "two", "some", "every"} & set(determiners)
            and determiners.count("a") < 2
            and "for" not in self.complements
        )

    def text(self, order, english="", german=""):
        """Returns the English and the German clause, which `finish` completes.

        Args:
            order: a key of "word_order" in `lexicon.json`.
            english: first words in English. Default: the fronted time, or nothing.
            german: first words in German.
        """
        words = {"front": (english, german)}
        words |= self.complements | self._phrases()
        words |= self._verbs(needs_auxiliary=self.negated or order == "question")
        return tuple(
            " ".join(words[slot][side] for slot in slots.split() if slot in words)
            for side, slots in enumerate(LEXICON["word_order"][order])
        )

    def _phrases(self):
        subject, relative = self.subject, self.subject.relative
        words = {"subject": (f"{subject.english} {relative[0]}", subject.nominative + relative[1])}
        for preposition, german, case in (("with", "mit", "dative"), ("for", "für", "accusative")):
            if preposition in self.complements:
                phrase = self.complements[preposition]
                english = f"{preposition} {phrase.english_object}"
                words[preposition] = english, f"{german} {getattr(phrase, case)}"
        words["nicht"] = "", "nicht" if self.negated else ""
        for case, phrase in self.objects():
            words[case] = f"{phrase.english_object} {phrase.relative[0]}", ""
            german = getattr(phrase, case)
            if self.negated and phrase.determiner == "a":
                german, words["nicht"] = f"k{german}", ("", "")
            words[phrase.placement] = "", f"{words.get(phrase.placement, ('', ''))[1]} {german}"
            words["relative"] = "", phrase.relative[1]
        return words

    def _verbs(self, *, needs_auxiliary):
        verb, tenses, person = self.verb, LEXICON["tenses"], self.subject.person
        tense = tenses.get(f"{self.tense} {verb.english}") or tenses[self.tense]
        forms = verb._asdict() | {"auxiliary": LEXICON["german_auxiliaries"][verb.auxiliary]}
        english = tense["with_auxiliary" if needs_auxiliary else "statement"][person]
        auxiliary, main_verb = english.format(**forms).split("|")
        finite, rest = tense["german"][person].format(**forms).split("|")
        negation = ("not" if auxiliary == "can" else " not") if self.negated else ""
        return {
            "auxiliary": (auxiliary + negation, finite),
            "verb": (main_verb, rest),
            "final": ("", rest + finite if self.tense == "present" else f"{rest} {finite}"),
            "infinitive": (verb.english, verb.with_zu),
            "particle": (verb.particle, ""),
        }
