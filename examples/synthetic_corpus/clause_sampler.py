"""Random clauses of the synthetic corpus: verbs with subjects, objects, places and times.

The English of every clause is unambiguous, so that it has exactly one German translation.
"""

from dataclasses import replace

from examples.synthetic_corpus import lexicon
from examples.synthetic_corpus.clauses import (
    Clause,
    RelativeClause,
    english_statement,
    german_subordinate,
)
from examples.synthetic_corpus.phrase_sampler import PhraseSampler
from examples.synthetic_corpus.phrases import FixedPhrase

RESULTATIVE = (lexicon.GET_UP, lexicon.FALL_ASLEEP, lexicon.ARRIVE, lexicon.COME_BACK)
RESTING = (lexicon.SLEEP, lexicon.WAIT)
ACTIVITIES = (lexicon.WORK, lexicon.DANCE, lexicon.COOK)
WITH_PERSON = (
    lexicon.VISIT,
    lexicon.SEE,
    lexicon.MEET,
    lexicon.CALL,
    lexicon.INVITE,
    lexicon.PICK_UP,
    lexicon.HELP,
    lexicon.THANK,
    lexicon.FOLLOW,
    lexicon.LISTEN,
)
IN_PLACES = (
    lexicon.SEE,
    lexicon.MEET,
    lexicon.PICK_UP,
    lexicon.HELP,
    lexicon.FIND,
    lexicon.LOOK_FOR,
    lexicon.SELL,
)
WITH_THING = (lexicon.BUY, lexicon.SELL, lexicon.FIND, lexicon.LOOK_FOR, lexicon.BRING)
FOR_PERSON = (lexicon.BUY, lexicon.LOOK_FOR, lexicon.BRING)
GIVING = (lexicon.GIVE, lexicon.SHOW)
OPENING = (lexicon.OPEN, lexicon.CLOSE)

TENSES = {
    "present": ("present",) * 6 + ("can", "should", "have to", "want to"),
    "past": ("past",) * 6 + ("past have to", "past want to"),
    "future": ("future",),
}
UNCLEAR_WITH_NOT = ("every day", "soon")
NEGATABLE_TENSES = ("present", "past", "future", "can", "want to", "past want to")
REASONS = {"present": ("present", "past"), "past": ("past",), "future": ("present", "past")}
OCCASIONS = {"present": ("present",), "past": ("past",), "future": ("present",)}
CONJUNCTIONS = {
    "because": "weil",
    "although": "obwohl",
    "if": "wenn",
    "when": "wenn",
    "before": "bevor",
}


class ClauseSampler(PhraseSampler):
    """Draws clauses with a `random.Random`."""

    def group(self):
        """Draws the group of tenses of a clause: "present", "past" or "future"."""
        return self.rng.choices(("present", "past", "future"), weights=(9, 8, 3))[0]

    def clause(
        self,
        group,
        subject=None,
        predicate=None,
        *,
        plain=False,
        can_negate=True,
        can_front=False,
        can_have_adverb=True,
        can_be_often=True,
    ):
        """Draws a clause in a tense of `group`.

        With `plain`, it has no modal verb, negation or adverb.
        """
        if subject is None and predicate is None and group != "future" and self.chance(0.04):
            return Clause(FixedPhrase("it", "es"), lexicon.RAIN, group)
        subject = subject or self.person_subject()
        predicate = predicate or self.predicate(subject, group)
        tense = group if plain or predicate["verb"] is lexicon.BE else self.pick(TENSES[group])
        clause = Clause(subject, tense=tense, **predicate)
        if plain:
            return clause
        if can_negate and self.chance(0.2) and _is_negatable(clause):
            clause = replace(clause, negated=True)
        if not can_have_adverb:
            return clause
        if can_be_often and group != "future" and not clause.negated and self.chance(0.12):
            return replace(clause, frequency=self.pick(lexicon.FREQUENCIES))
        if self.chance(0.5):
            return self.with_time(clause, group, can_front)
        return clause

    def with_time(self, clause, group, can_front):
        """Returns the clause with a random time, unless negation would make the time unclear."""
        time = self.pick(lexicon.TIMES[group])
        if clause.negated and time.english in UNCLEAR_WITH_NOT:
            return clause
        return replace(clause, time=time, time_first=can_front and self.chance(0.5))

    def subordinate(self, group, conjunctions=tuple(CONJUNCTIONS)):
        """Draws a subordinate clause for a main clause in `group`. Returns (English, German)."""
        english = self.pick(conjunctions)
        if english in ("because", "although"):
            group = self.pick(REASONS[group])
            clause = self.clause(group)
        else:
            if english == "if" and group == "past":
                english = "when"
            group = OCCASIONS[group][0]
            clause = self.clause(group, plain=True)
        german = "als" if english == "when" and group == "past" else CONJUNCTIONS[english]
        return f"{english} {english_statement(clause)}", german_subordinate(clause, german)

    def gap_clause(self, group, verb, other_than=None, *, plain=False):
        """Draws a clause without its object, which a question word or relative pronoun replaces."""
        predicate = {"verb": verb, verb.case: FixedPhrase()}
        return self.clause(
            group, self.person_subject(other_than), predicate, plain=plain, can_negate=False
        )

    def relative(self, head, of_person):
        """Draws a relative clause for the noun phrase `head`."""
        group = self.pick(("present", "past"))
        if of_person and self.chance(0.5):
            subject = FixedPhrase(agreement=head.agreement, noun=head.noun)
            clause = self.clause(group, subject, plain=self.chance(0.7), can_negate=False)
            return RelativeClause(clause, "nominative", of_person=True)
        verb = self.pick(WITH_PERSON if of_person else WITH_THING)
        clause = self.gap_clause(group, verb, other_than=head, plain=self.chance(0.7))
        return RelativeClause(clause, verb.case, of_person=of_person)

    def thing_predicate(self):
        adjective = self.pick(lexicon.THING_ADJECTIVES)
        return {"verb": lexicon.BE, "goal": lexicon.Phrase(adjective.english, adjective.german)}

    def predicate(self, subject, group):
        """Draws a verb with objects and places that fit a person as the subject."""
        kinds = (
            self._resultative,
            self._activity,
            self.movement,
            self.agentive_predicate,
            self._state,
        )
        return self.rng.choices(kinds, weights=(10, 16, 12, 55, 7 if group != "future" else 0))[0](
            subject
        )

    def agentive_predicate(self, subject):
        """Draws an action with a person or a thing as the object."""
        kinds = (self._meeting, self._trading, self._giving, self._opening)
        return self.rng.choices(kinds, weights=(45, 30, 15, 10))[0](subject)

    def _resultative(self, subject):
        return {"verb": self.pick(RESULTATIVE)}

    def _activity(self, subject):
        if self.chance(0.3):
            return {
                "verb": self.pick(ACTIVITIES),
                "companion": ("with", self.person_object(subject)),
            }
        verb = self.pick(RESTING + ACTIVITIES + (lexicon.STAY,))
        place = self.pick(lexicon.PLACES) if verb is lexicon.STAY or self.chance(0.4) else None
        return {"verb": verb, "place": place}

    def movement(self, subject):
        verb = self.pick((lexicon.GO, lexicon.DRIVE))
        predicate = {
            "verb": verb,
            "goal": self.pick(lexicon.ON_FOOT_GOALS if verb is lexicon.GO else lexicon.GOALS),
        }
        if self.chance(0.25):
            predicate["companion"] = "with", self.person_object(subject)
        return predicate

    def _state(self, subject):
        return {"verb": lexicon.BE, "goal": self.pick(lexicon.STATES + lexicon.PLACES)}

    def _meeting(self, subject):
        verb = self.pick(WITH_PERSON)
        place = self.pick(lexicon.PLACES) if verb in IN_PLACES and self.chance(0.25) else None
        return {"verb": verb, verb.case: self.person_object(subject), "place": place}

    def _trading(self, subject):
        verb = self.pick(WITH_THING)
        predicate = {"verb": verb, "accusative": self.thing()}
        if verb in FOR_PERSON and self.chance(0.25):
            predicate["companion"] = "for", self.person_object(subject)
        elif verb in IN_PLACES and self.chance(0.25):
            predicate["place"] = self.pick(lexicon.PLACES)
        return predicate

    def _giving(self, subject):
        return {
            "verb": self.pick(GIVING),
            "dative": self.person_object(subject),
            "accusative": self.thing(lexicon.GIFTS),
        }

    def _opening(self, subject):
        return {"verb": self.pick(OPENING), "accusative": self.thing(lexicon.CLOSABLE)}


def _is_negatable(clause):
    if clause.tense not in NEGATABLE_TENSES or getattr(clause.subject, "determiner", "") == "every":
        return False
    if clause.companion and clause.companion[0] == "for":
        return False
    objects = [phrase for phrase in (clause.dative, clause.accusative) if phrase]
    indefinite = [phrase for phrase in objects if phrase.placement == "indefinite"]
    return len(indefinite) < 2 and all(phrase.negatable for phrase in objects)
