"""Random noun phrases of the synthetic corpus.

`you` and `it` are never drawn, because their translation depends on more than the sentence.
"""

from examples.synthetic_corpus import lexicon
from examples.synthetic_corpus.phrases import FixedPhrase, NounPhrase, PronounPhrase


class PhraseSampler:
    """Draws noun phrases with a `random.Random`."""

    def __init__(self, rng):
        self.rng = rng
        self.pick = rng.choice

    def chance(self, probability):
        """Returns True with this probability."""
        return self.rng.random() < probability

    def head(self, of_person):
        """Draws a noun phrase that can take a relative clause."""
        noun = self.pick(lexicon.PEOPLE if of_person else lexicon.THINGS)
        return NounPhrase(self.pick(("the", "the", "a")), noun)

    def person_subject(self, other_than=None):
        """Draws a person with a different noun than `other_than`."""
        while True:
            if self.chance(0.5):
                return PronounPhrase(self.pick(lexicon.PRONOUNS + (lexicon.I,)))
            person = self._person(singular_determiners=("the", "the", "the", "a", "this", "every"))
            if not _is_same(person, other_than):
                return person

    def person_object(self, subject):
        """Draws a person other than the subject: neither `me` nor `us` if it is `I` or `we`."""
        while True:
            person = self._object_pronoun(subject) if self.chance(0.35) else self._person()
            if not _is_same(person, subject):
                return person

    def _object_pronoun(self, subject):
        speakers = (lexicon.I, lexicon.WE)
        by_speaker = getattr(subject, "pronoun", None) in speakers
        return PronounPhrase(
            self.pick([p for p in lexicon.PRONOUNS if not (by_speaker and p in speakers)])
        )

    def _person(self, singular_determiners=("the", "the", "the", "a", "this")):
        if self.chance(0.15):
            name = self.pick(lexicon.NAMES)
            return FixedPhrase(name, name)
        if self.chance(0.3):
            determiner = self.pick(("my", "his", "her", "our"))
            nouns, adjectives = lexicon.RELATIVES, ()
            plural = self.chance(0.2)
        else:
            plural = self.chance(0.3)
            determiner = self.pick(
                ("the", "the", "these", "two", "some") if plural else singular_determiners
            )
            nouns, adjectives = lexicon.PEOPLE, lexicon.PERSON_ADJECTIVES
        adjective = self.pick(adjectives) if adjectives and self.chance(0.3) else None
        return NounPhrase(determiner, self.pick(nouns), adjective, plural)

    def thing(self, nouns=lexicon.THINGS):
        plural = self.chance(0.25)
        determiners = (
            ("the", "these", "two", "some", "my")
            if plural
            else ("the", "the", "a", "a", "this", "his", "her")
        )
        adjective = self.pick(lexicon.THING_ADJECTIVES) if self.chance(0.4) else None
        return NounPhrase(self.pick(determiners), self.pick(nouns), adjective, plural)


def _is_same(phrase, other):
    if phrase == other:
        return True
    return phrase.noun is not None and phrase.noun == getattr(other, "noun", None)
