"""Clauses of the synthetic corpus in English and German.

A `Clause` holds the content. The functions return it in the word order of a main
clause, a question, a subordinate clause or an infinitive.
"""

import re
from dataclasses import dataclass

from examples.synthetic_corpus import lexicon
from examples.synthetic_corpus.phrases import RELATIVE_PRONOUNS

_AGREEMENTS = ("first", "third", "plural")
_ENGLISH_AUXILIARIES = {"future": "will", "can": "can", "should": "should"}
_ENGLISH_PREFIX_VERBS = {
    "have to": ("have to", "has to", "had to"),
    "want to": ("want to", "wants to", "wanted to"),
}
_ENGLISH_BE = {"present": ("am", "is", "are"), "past": ("was", "was", "were")}
_GERMAN_FINITE = {
    "haben": ("habe", "hat", "haben"),
    "sein": ("bin", "ist", "sind"),
    "war": ("war", "war", "waren"),
    "future": ("werde", "wird", "werden"),
    "can": ("kann", "kann", "können"),
    "should": ("sollte", "sollte", "sollten"),
    "have to": ("muss", "muss", "müssen"),
    "want to": ("will", "will", "wollen"),
    "past have to": ("musste", "musste", "mussten"),
    "past want to": ("wollte", "wollte", "wollten"),
}


@dataclass(frozen=True)
class Clause:
    """The content of a clause.

    `companion` is ("with" or "for", phrase). `goal` is a direction or a predicate. `tense`
    is present, past, future, can, should, have to, want to, past have to or past want to.
    """

    subject: object
    verb: lexicon.Verb
    tense: str
    dative: object = None
    accusative: object = None
    companion: tuple | None = None
    place: lexicon.Phrase | None = None
    goal: lexicon.Phrase | None = None
    frequency: lexicon.Phrase | None = None
    time: lexicon.Phrase | None = None
    time_first: bool = False
    negated: bool = False


@dataclass(frozen=True)
class RelativeClause:
    """A clause with a gap for its relative pronoun, which has the given case."""

    clause: Clause
    case: str
    of_person: bool

    def english(self):
        lead = "that" if not self.of_person else "who" if self.case == "nominative" else "whom"
        return _join(lead, english_statement(self.clause))

    def german(self, gender):
        return german_subordinate(self.clause, RELATIVE_PRONOUNS[gender, self.case])


def english_statement(clause):
    """Returns the English main clause, such as `today the man buys a book`."""
    auxiliary, verb = _english_verb(clause, needs_auxiliary=clause.negated)
    if clause.negated:
        auxiliary += "not" if auxiliary == "can" else " not"
    front = clause.time.english if clause.time and clause.time_first else ""
    return _join(
        front,
        _english_phrase(clause.subject),
        auxiliary,
        _english_frequency(clause),
        verb,
        _english_rest(clause),
    )


def english_question(clause, question_word=""):
    """Returns the question `does the man buy a book`, or the same after a question word."""
    auxiliary, verb = _english_verb(clause, needs_auxiliary=True)
    return _join(
        question_word,
        auxiliary,
        _english_phrase(clause.subject),
        _english_frequency(clause),
        verb,
        _english_rest(clause),
    )


def english_infinitive(clause):
    """Returns the English infinitive that follows `to`, such as `buy a book`."""
    return _join(clause.verb.english, _english_rest(clause))


def german_main(clause, front=None):
    """Returns the German main clause, whose verb is in second position.

    The verb follows `front`. Without `front`, it follows the fronted time or the subject.
    With `front=""`, the verb comes first.
    """
    finite, rest = _german_verb(clause)
    if front is None and clause.time and clause.time_first:
        front = clause.time.german
    subject = _german_subject(clause)
    before, after = (subject, "") if front is None else (front, subject)
    return _join(before, finite, after, _german_middle(clause), rest, _extraposed(clause))


def german_subordinate(clause, lead):
    """Returns the German subordinate clause, whose verb comes last.

    `lead` is a conjunction, a question word or a relative pronoun.
    """
    finite, rest = _german_verb(clause)
    verb = rest + finite if clause.tense == "present" else _join(rest, finite)
    return _join(lead, _german_subject(clause), _german_middle(clause), verb, _extraposed(clause))


def german_infinitive(clause):
    """Returns the German infinitive with `zu`: `ein Buch zu kaufen`, `ihn anzurufen`."""
    verb = clause.verb
    infinitive = f"{verb.prefix}zu{verb.german}" if verb.prefix else f"zu {verb.german}"
    return _join(_german_middle(clause), infinitive)


def finish(text, mark):
    """Returns text that starts with a capital and ends in `mark`. Merges adjacent commas."""
    text = re.sub(r"[ ,]*, *", ", ", text).strip(" ,")
    return text[0].upper() + text[1:] + mark


def _join(*parts):
    return " ".join(part for part in parts if part)


def _english_phrase(phrase, *, is_object=False):
    if phrase is None:
        return ""
    relative = phrase.relative.english() if phrase.relative else ""
    return _join(phrase.english(is_object=is_object), relative)


def _english_verb(clause, needs_auxiliary):
    """Returns (the auxiliary or "", the verb after it)."""
    past = clause.tense.startswith("past")
    agreement = clause.subject.agreement
    verb = clause.verb
    if verb is lexicon.BE:
        return _ENGLISH_BE[clause.tense][_AGREEMENTS.index(agreement)], ""
    if clause.tense in _ENGLISH_AUXILIARIES:
        return _ENGLISH_AUXILIARIES[clause.tense], verb.english
    forms = verb.english, verb.third, verb.past
    prefix_verb = _ENGLISH_PREFIX_VERBS.get(clause.tense.removeprefix("past "))
    if prefix_verb:
        forms = tuple(f"{form} {verb.english}" for form in prefix_verb)
    which = 2 if past else 1 if agreement == "third" else 0
    if needs_auxiliary:
        return ("do", "does", "did")[which], forms[0]
    return "", forms[which]


def _english_frequency(clause):
    return clause.frequency.english if clause.frequency else ""


def _english_rest(clause):
    companion = ""
    if clause.companion:
        preposition, phrase = clause.companion
        companion = f"{preposition} {phrase.english(is_object=True)}"
    return _join(
        _english_phrase(clause.dative, is_object=True),
        _english_phrase(clause.accusative, is_object=True),
        clause.verb.particle,
        clause.goal.english if clause.goal else "",
        companion,
        clause.place.english if clause.place else "",
        clause.time.english if clause.time and not clause.time_first else "",
    )


def _german_verb(clause):
    """Returns the finite verb, and the rest of the verb at the end of a main clause."""
    verb, tense = clause.verb, clause.tense
    person = _AGREEMENTS.index(clause.subject.agreement)
    if verb is lexicon.BE:
        return _GERMAN_FINITE["sein" if tense == "present" else "war"][person], ""
    if tense == "present":
        return (verb.german_first, verb.german_third, verb.german)[person], verb.prefix
    if tense == "past":
        return _GERMAN_FINITE[verb.auxiliary][person], verb.prefix + verb.participle
    return _GERMAN_FINITE[tense][person], verb.prefix + verb.german


def _german_subject(clause):
    relative = clause.subject.relative
    aside = f", {relative.german(clause.subject.gender)}," if relative else ""
    return _join(clause.subject.german("nominative"), aside)


def _german_middle(clause):
    """Returns the part between the two verb positions of a German main clause.

    The order is: pronouns, time, definite objects, frequency or nicht, "with" companion,
    place, indefinite objects, "for" companion, goal. The dative precedes the accusative.
    """
    negated = clause.negated
    placed = {"pronoun": [], "definite": [], "indefinite": []}
    for case in ("dative", "accusative"):
        phrase = getattr(clause, case)
        if phrase:
            placed[phrase.placement].append(phrase.german(case, negated=negated))
    adverb = "nicht" if negated and not placed["indefinite"] else ""
    return _join(
        *placed["pronoun"],
        clause.time.german if clause.time and not clause.time_first else "",
        *placed["definite"],
        clause.frequency.german if clause.frequency else adverb,
        _german_companion(clause, "with", "mit", "dative"),
        clause.place.german if clause.place else "",
        *placed["indefinite"],
        _german_companion(clause, "for", "für", "accusative"),
        clause.goal.german if clause.goal else "",
    )


def _german_companion(clause, english, german, case):
    if not clause.companion or clause.companion[0] != english:
        return ""
    return f"{german} {clause.companion[1].german(case)}"


def _extraposed(clause):
    """Returns the relative clause of an object, which follows the verb, or ""."""
    phrase = clause.accusative or clause.dative
    if not phrase or not phrase.relative:
        return ""
    return ", " + phrase.relative.german(phrase.gender)
