"""Random sentences of the synthetic corpus, which combine clauses.

The method of each kind of sentence takes a group of tenses and returns (English, German).
`front` is the text before the German verb of the main clause: None for the clause's own
beginning, a German adverb, or "" after a subordinate clause.
"""

from dataclasses import replace

from examples.synthetic_corpus import lexicon
from examples.synthetic_corpus.clause_sampler import (
    ACTIVITIES,
    RESTING,
    WITH_PERSON,
    WITH_THING,
    ClauseSampler,
)
from examples.synthetic_corpus.clauses import (
    Clause,
    english_infinitive,
    english_question,
    english_statement,
    finish,
    german_infinitive,
    german_main,
    german_subordinate,
)
from examples.synthetic_corpus.phrases import FixedPhrase

COORDINATORS = (("and", "und"), ("but", "aber"), ("so", "deshalb"))
CONTENT_GROUPS = {"present": ("present", "past", "future"), "past": ("past",)}
INDIRECT_QUESTIONS = (("whether", "ob"), ("why", "warum"), ("when", "wann"))
QUESTION_WORDS = {"": "", "why": "warum", "when": "wann", "where": "wo"}


class SentenceSampler:
    """Draws (English, German) sentences with a `random.Random`."""

    def __init__(self, rng):
        self.draw = ClauseSampler(rng)

    def sentence(self):
        """Draws a sentence of one to four clauses."""
        kinds = (
            self.statement,
            self.subordinate_first,
            self.two_clauses,
            self.coordination,
            self.question,
        )
        # Without `several_clauses`, a model learns that sentences end after the second clause. The
        # weight is large because only one in five of them is short enough for training.
        kind = self.draw.rng.choices(
            (*kinds, self.several_clauses), weights=(22, 12, 38, 18, 10, 140)
        )[0]
        return _finish(kind(self.draw.group()), "?" if kind == self.question else ".")

    def long_sentence(self):
        """Draws a sentence of three or four clauses."""
        return _finish(self.several_clauses(self.draw.group()), ".")

    def statement(self, group, front=None):
        return _main(self.draw.clause(group, can_front=front is None), front)

    def two_clauses(self, group, front=None):
        kinds = (
            self.subordinate_last,
            self.content,
            self.subject_relative,
            self.object_relative,
            self.infinitive,
        )
        return self.draw.rng.choices(kinds, weights=(12, 8, 6, 6, 6))[0](group, front)

    def several_clauses(self, group):
        return self.draw.pick((self.chain, self.chain, self.chain_of_statements, self.embedding))(
            group
        )

    def coordination(self, group):
        return self._coordinate(group, self.statement, self.statement)

    def question(self, group):
        draw = self.draw
        word = draw.pick(("", "", "why", "when", "where", "who", "object"))
        if word == "who":
            clause = draw.clause(group, FixedPhrase("who", "wer"), can_negate=False)
            return _main(clause, None)
        if word == "object":
            verb = draw.pick(WITH_PERSON + WITH_THING)
            clause = draw.gap_clause(group, verb)
            german = "was" if verb in WITH_THING else "wem" if verb.case == "dative" else "wen"
            return english_question(clause, "what" if verb in WITH_THING else "whom"), german_main(
                clause, german
            )
        predicate = {"verb": draw.pick(RESTING + ACTIVITIES)} if word == "where" else None
        clause = draw.clause(
            group, predicate=predicate, can_negate=False, can_have_adverb=word != "when"
        )
        return english_question(clause, word), german_main(clause, QUESTION_WORDS[word])

    def subordinate_last(self, group, front=None):
        main = self.draw.clause(group, can_front=front is None)
        return _with_subordinate(_main(main, front), self.draw.subordinate(group))

    def subordinate_first(self, group):
        return _joined(", ", self.draw.subordinate(group), self.statement(group, front=""))

    def content(self, group, front=None):
        """Draws a sentence with `says that …`, `asks whether …` or `does not know why …`."""
        draw = self.draw
        verb = draw.pick((lexicon.SAY, lexicon.BELIEVE, lexicon.ASK, lexicon.KNOW))
        group = "past" if group == "past" and verb is not lexicon.KNOW else "present"
        negated = verb is lexicon.KNOW and draw.chance(0.6)
        is_question = negated or verb is lexicon.ASK
        english, german = draw.pick(INDIRECT_QUESTIONS) if is_question else ("that", "dass")
        main = Clause(draw.person_subject(), verb, group, negated=negated)
        clause = draw.clause(
            draw.pick(CONTENT_GROUPS[group]),
            can_negate=not is_question,
            can_have_adverb=english != "when",
        )
        subordinate = f"{english} {english_statement(clause)}", german_subordinate(clause, german)
        return _with_subordinate(_main(main, front), subordinate)

    def subject_relative(self, group, front=None):
        """Draws a sentence with a relative clause after its subject, such as `the man who …`.

        The main clause has no `often`, because it could belong to either clause.
        """
        of_person = group == "future" or self.draw.chance(0.7)
        head = self.draw.head(of_person)
        head = replace(head, relative=self.draw.relative(head, of_person))
        if of_person:
            clause = self.draw.clause(group, head, can_front=front is None, can_be_often=False)
        else:
            clause = self.draw.clause(group, head, self.draw.thing_predicate(), plain=True)
        return _main(clause, front)

    def object_relative(self, group, front=None):
        """Draws a sentence that ends with its object's relative clause: `… the man whom …`."""
        draw = self.draw
        of_person = draw.chance(0.5)
        head = draw.head(of_person)
        subject = draw.person_subject(other_than=head)
        head = replace(head, relative=draw.relative(head, of_person))
        verb = draw.pick(
            [verb for verb in (WITH_PERSON if of_person else WITH_THING) if not verb.particle]
        )
        clause = draw.clause(group, subject, {"verb": verb, verb.case: head}, plain=True)
        if front is None and draw.chance(0.4):
            clause = replace(clause, time=draw.pick(lexicon.TIMES[group]), time_first=True)
        return _main(clause, front)

    def infinitive(self, group, front=None):
        """Draws a sentence with `tries to …`, `forgot to …` or `goes home in order to …`."""
        draw = self.draw
        subject = draw.person_subject()
        if group == "future" or draw.chance(0.4):
            english, german = "in order to", "um "
            predicate = draw.movement(subject)
            main = draw.clause(group, subject, predicate, can_negate=False, can_front=front is None)
        else:
            english, german = "to", ""
            predicate = {"verb": draw.pick((lexicon.TRY, lexicon.FORGET))}
            main = draw.clause(group, subject, predicate, plain=True)
        purpose = Clause(subject, tense="present", **draw.agentive_predicate(subject))
        subordinate = (
            f"{english} {english_infinitive(purpose)}",
            german + german_infinitive(purpose),
        )
        return _with_subordinate(_main(main, front), subordinate)

    def chain(self, group):
        """Draws two coordinated sentences, at least one of which has two clauses."""
        first, second = self.draw.pick(
            (
                (self.two_clauses, self.statement),
                (self.statement, self.two_clauses),
                (self.two_clauses, self.two_clauses),
                (self.subordinate_first, self.statement),
            )
        )
        return self._coordinate(group, first, second)

    def chain_of_statements(self, group):
        return self._coordinate(group, self.coordination, self.statement)

    def embedding(self, group):
        """Draws a sentence such as `A says that B because C` or `when A, B says that C`."""
        if self.draw.chance(0.5):
            return _with_subordinate(
                self.content(group), self.draw.subordinate("past", ("because", "although"))
            )
        return _joined(", ", self.draw.subordinate("present"), self.content("present", front=""))

    def _coordinate(self, group, first, second):
        english, german = self.draw.pick(COORDINATORS)
        if english == "so":
            following = _joined("", ("so ", ""), second(group, front=german))
        else:
            following = _joined(" ", (english, german), second(group))
        return _joined(", ", first(group), following)


def _main(clause, front):
    return english_statement(clause), german_main(clause, front)


def _joined(separator, first, second):
    return tuple(a + separator + b for a, b in zip(first, second))


def _with_subordinate(main, subordinate):
    return f"{main[0]} {subordinate[0]}", f"{main[1]}, {subordinate[1]}"


def _finish(pair, mark):
    return tuple(finish(text, mark) for text in pair)
