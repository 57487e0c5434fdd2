"""Phrases and clauses of the synthetic corpus in English and German.

Words and word orders are in `lexicon.json`.
"""

import json
from collections import namedtuple
from dataclasses import dataclass
from pathlib import Path

LEXICON = json.loads(Path(__file__).with_name("lexicon.json").read_text("utf-8"))
NEGATABLE_TENSES = ("present", "past", "future", "can", "want to", "past want to")
Phrase = namedtuple("Phrase", LEXICON["phrase"], defaults=("", ("", "")))
COLUMNS, *ROWS = LEXICON["verbs"]
VERBS = {row[0]: dict(zip(COLUMNS, row)) for row in ROWS}


def noun_phrase(noun, determiner, adjective="", plural=""):
    """Returns the phrase of English words; `plural` is "plural" or empty."""
    gender, *numbers = LEXICON["nouns"][noun]
    english, *german = numbers[bool(plural)]
    english = f"{adjective} {english}".strip()
    english = f"{'an' if determiner == 'a' and english[0] in 'aeiou' else determiner} {english}"
    stem = LEXICON["adjective_stems"].get(adjective)
    placement, forms = LEXICON["determiners"][determiner]
    for case, form in enumerate(forms[plural or gender]):
        word, ending = form.split()
        german[case] = f"{word} {stem}{ending} {german[case]}" if stem else f"{word} {german[case]}"
    return Phrase(english, english, *german, 2 if plural else 1, placement, noun, determiner)


@dataclass
class Clause:
    """The content of a clause.

    `verb` is a value of `VERBS`. `complements` has phrases for recipient, object, with and for, and
    (English, German) texts for other slots. `tense` is a key of "tenses" in `lexicon.json`.
    """

    subject: Phrase
    verb: dict
    complements: dict
    tense: str
    negated: bool = False

    def can_be_negated(self):
        objects = self.complements.keys() & {"recipient", "object"}
        determiners = [self.complements[slot].determiner for slot in objects]
        return (
            self.tense in NEGATABLE_TENSES
            and self.subject.determiner != "every"
            and not {"these", "two", "some", "every"} & set(determiners)
            and determiners.count("a") < 2
            and "for" not in self.complements
        )

    def text(self, order, front=("", "")):
        """Returns the English and the German clause in a "word_order", after some words."""
        words = [{",": ",", "front": first} for first in front]
        self._add_verb(*words, order)
        self._add_phrases(*words)
        slots = [slots.split() for slots in LEXICON["word_order"][order]]
        return tuple(" ".join(words[i].get(slot, "") for slot in slots[i]) for i in range(2))

    def _add_verb(self, english, german, order):
        verb, person, tenses = self.verb, self.subject.person, LEXICON["tenses"]
        tense = tenses.get(f"{self.tense} {verb['auxiliary']}", tenses[self.tense])
        forms = tense["with_auxiliary" if self.negated or order == "question" else "statement"]
        english["auxiliary"], english["verb"] = forms[person].format(**verb).split("|")
        english["particle"], english["infinitive"] = verb["particle"], verb["english"]
        finite, rest = tense["german"][person].format(**verb).split("|")
        german["auxiliary"], german["verb"], german["infinitive"] = finite, rest, verb["with_zu"]
        german["final"] = rest + finite if self.tense == "present" else f"{rest} {finite}"

    def _add_phrases(self, english, german):
        english["subject"] = f"{self.subject.english} {self.subject.relative[0]}"
        german["subject"] = f"{self.subject.nominative}{self.subject.relative[1]}"
        if self.negated:
            english["negation"], german["negation"] = "not", "nicht"
        for slot, phrase in self.complements.items():
            if not isinstance(phrase, Phrase):
                english[slot], german[slot] = phrase
            elif slot in LEXICON["prepositions"]:
                preposition, case = LEXICON["prepositions"][slot]
                english[slot] = f"{slot} {phrase.english_object}"
                german[slot] = f"{preposition} {getattr(phrase, case)}"
            else:
                text = getattr(phrase, "dative" if slot == "recipient" else self.verb["case"])
                if self.negated and phrase.determiner == "a":
                    text, german["negation"] = f"k{text}", ""
                german[phrase.placement] = f"{german.get(phrase.placement, '')} {text}"
                english[slot] = f"{phrase.english_object} {phrase.relative[0]}"
                german["relative"] = phrase.relative[1]
