"""Random sentences of the synthetic corpus.

The English of every clause is unambiguous, so that it has exactly one German translation. `you`
and `it` are never drawn as persons or things, because their translation depends on more than the
sentence.
"""

import re

from examples.synthetic_corpus.grammar import (
    ADJECTIVES,
    CASES,
    ENDINGS,
    LEXICON,
    NOUNS,
    PRONOUNS,
    VERBS,
    Clause,
    Phrase,
    noun_phrase,
    pronoun,
)

GROUPS, PHRASES = LEXICON["groups"], LEXICON["phrases"]
REASONS = {"present": ("present", "past"), "past": ("past",), "future": ("present", "past")}
CONTENTS = {"present": ("present", "past", "future"), "past": ("past",)}


class SentenceSampler:
    """Draws (English, German) sentences with a `random.Random`.

    The method of each kind of sentence has the arguments `group`, the group of its tenses:
    present, past or future; and `front`, German text before the verb of the main clause: None for
    the clause's own beginning, an adverb, or "" after a subordinate clause.
    """

    def __init__(self, rng):
        self.rng, self.pick = rng, rng.choice

    def sentence(self):
        """Draws a sentence of one to four clauses."""
        # Without `several_clauses`, a model learns that sentences end after the second clause. The
        # weight is large because only one in five of them is short enough for training.
        kind = self.choose(LEXICON["weights"]["sentence"])
        return self.finished(kind, "?" if kind == "question" else ".")

    def long_sentence(self):
        """Draws a sentence of three or four clauses."""
        return self.finished("several_clauses", ".")

    def finished(self, kind, mark):
        texts = self.draw(kind, self.choose(LEXICON["weights"]["group"]))
        texts = [re.sub(r"[ ,]*, *", ", ", re.sub(" +", " ", text)).strip(" ,") for text in texts]
        return tuple(text[0].upper() + text[1:] + mark for text in texts)

    def choose(self, weights):
        """Draws a key of a dict of weights."""
        return self.rng.choices(list(weights), weights.values())[0]

    def chance(self, probability):
        return self.rng.random() < probability

    def draw(self, kind, group, **front):
        """Draws a sentence of a kind, the name of one of the methods below."""
        return getattr(self, kind)(group, **front)

    def statement(self, group, front=None):
        return self.main(self.clause(group), front)

    def two_clauses(self, group, front=None):
        return self.draw(self.choose(LEXICON["weights"]["two_clauses"]), group, front=front)

    def several_clauses(self, group):
        return self.draw(self.pick(("chain", "chain", "chain_of_statements", "embedding")), group)

    def chain(self, group):
        return self.coordination(group, *self.pick(LEXICON["chains"]))

    def chain_of_statements(self, group):
        return self.coordination(group, "coordination", "statement")

    def coordination(self, group, first="statement", second="statement"):
        english, german = self.pick(PHRASES["coordinators"])
        if english == "so":
            following = _joined((english, ""), self.draw(second, group, front=german))
        else:
            following = _joined((english, german), self.draw(second, group))
        return _joined(self.draw(first, group), following, ",", ",")

    def embedding(self, group):
        """Draws a sentence such as `A says that B because C` or `when A, B says that C`."""
        if self.chance(0.5):
            main = self.content(group)
            return _joined(main, self.subordinate("past", ("because", "although")), german=",")
        return _joined(self.subordinate("present"), self.content("present", front=""), ",", ",")

    def subordinate_first(self, group):
        return _joined(self.subordinate(group), self.statement(group, front=""), ",", ",")

    def subordinate_last(self, group, front=None):
        return _joined(self.statement(group, front), self.subordinate(group), german=",")

    def content(self, group, front=None):
        """Draws a sentence with `says that …`, `asks whether …` or `does not know why …`."""
        verb = self.pick(("say", "believe", "ask", "know"))
        group = "past" if group == "past" and verb != "know" else "present"
        negated = verb == "know" and self.chance(0.6)
        question = negated or verb == "ask"
        lead = self.pick(PHRASES["indirect questions"]) if question else ("that", "dass")
        main = Clause(self.person_subject(), VERBS[verb], {}, group, negated)
        without = ("negation" if question else "") + ("adverb" if lead[0] == "when" else "")
        clause = self.clause(self.pick(CONTENTS[group]), without=without)
        return _joined(self.main(main, front), clause.text("subordinate", *lead), german=",")

    def subject_relative(self, group, front=None):
        """Draws a sentence with a relative clause after its subject, such as `the man who …`."""
        of_person = group == "future" or self.chance(0.7)
        head = self.head(of_person)
        self.add_relative(head, of_person)
        if of_person:
            # `often` could belong to either clause.
            return self.main(self.clause(group, head, without="often"), front)
        adjective = ADJECTIVES[self.pick(GROUPS["thing adjectives"])]
        is_new = "be", {"goal": (adjective.english, adjective.german)}
        return self.main(self.clause(group, head, is_new, plain=True), front)

    def object_relative(self, group, front=None):
        """Draws a sentence that ends with its object's relative clause: `… the man whom …`."""
        of_person = self.chance(0.5)
        head = self.head(of_person)
        subject = self.person_subject(other_than=head)
        self.add_relative(head, of_person)
        verbs = GROUPS["with person" if of_person else "with thing"]
        verb = self.pick([verb for verb in verbs if not VERBS[verb].particle])
        clause = self.clause(group, subject, (verb, {VERBS[verb].case: head}), plain=True)
        if front is None and self.chance(0.4):
            clause.complements["front"] = self.pick(PHRASES[f"times in the {group}"])
        return self.main(clause, front)

    def infinitive(self, group, front=None):
        """Draws a sentence with `tries to …`, `forgot to …` or `goes home in order to …`."""
        subject = self.person_subject()
        if group == "future" or self.chance(0.4):
            lead = "in order to", "um"
            predicate = self.predicate("movement", subject)
            main = self.clause(group, subject, predicate, without="negation")
        else:
            lead = "to", ""
            main = self.clause(group, subject, (self.pick(("try", "forget")), {}), plain=True)
        main = self.main(main, front)
        verb, complements = self.predicate("action", subject)
        purpose = Clause(subject, VERBS[verb], complements, "present")
        return _joined(main, purpose.text("infinitive", *lead), german=",")

    def question(self, group):
        word = self.pick(("", "", "why", "when", "where", "who", "object"))
        if word == "who":
            who = Phrase("who", nominative="wer")
            return self.clause(group, who, without="negation").text("main")
        if word == "object":
            verb = self.pick(GROUPS["with person"] + GROUPS["with thing"])
            clause = self.gap_clause(group, verb)
            if verb in GROUPS["with thing"]:
                return clause.text("question", "what", "was")
            return clause.text("question", "whom", "wem" if VERBS[verb].case == "dative" else "wen")
        predicate = (self.pick(GROUPS["resting or active"]), {}) if word == "where" else None
        without = "negation adverb" if word == "when" else "negation"
        clause = self.clause(group, predicate=predicate, without=without)
        return clause.text("question", word, LEXICON["question_words"][word])

    def main(self, clause, front):
        """Returns the clause as a main clause, half of the times with its time in front."""
        if front is not None:
            return clause.text("fronted", german=front)
        if "time" in clause.complements and self.chance(0.5):
            clause.complements["front"] = clause.complements.pop("time")
        return clause.text("fronted" if "front" in clause.complements else "main")

    def subordinate(self, group, conjunctions=tuple(LEXICON["conjunctions"])):
        """Draws a subordinate clause for a main clause in `group`."""
        english = self.pick(conjunctions)
        if english in ("because", "although"):
            group = self.pick(REASONS[group])
            clause = self.clause(group)
        else:
            english = "when" if english == "if" and group == "past" else english
            group = "past" if group == "past" else "present"
            clause = self.clause(group, plain=True)
        is_als = english == "when" and group == "past"
        return clause.text(
            "subordinate", english, "als" if is_als else LEXICON["conjunctions"][english]
        )

    def clause(self, group, subject=None, predicate=None, *, plain=False, without=""):
        """Draws a clause in a tense of `group`.

        Args:
            group: present, past or future.
            subject: phrase. Default: a random person.
            predicate: (verb, complements). Default: a random predicate.
            plain: whether it has neither a modal verb nor negation nor an adverb.
            without: words among negation, adverb and often.
        """
        if subject is None and predicate is None and group != "future" and self.chance(0.04):
            return Clause(Phrase("it", nominative="es"), VERBS["rain"], {}, group)
        subject = subject or self.person_subject()
        kind = "predicate in the future" if group == "future" else "predicate"
        verb, complements = predicate or self.predicate(kind, subject)
        tense = group if plain or verb == "be" else self.pick(LEXICON["drawn_tenses"][group])
        clause = Clause(subject, VERBS[verb], complements, tense)
        if plain:
            return clause
        if "negation" not in without and self.chance(0.2):
            clause.negated = clause.can_be_negated()
        can_be_often = "often" not in without and group != "future" and not clause.negated
        if "adverb" in without:
            return clause
        if can_be_often and self.chance(0.12):
            complements["frequency"] = self.pick(PHRASES["frequencies"])
        elif self.chance(0.5):
            time = self.pick(PHRASES[f"times in the {group}"])
            # `not every day` and `not soon` are unclear.
            if not (clause.negated and time[0] in ("every day", "soon")):
                complements["time"] = time
        return clause

    def gap_clause(self, group, verb, other_than=None, *, plain=False):
        """Draws a clause without its object, which a question word or relative pronoun replaces."""
        predicate = verb, {VERBS[verb].case: Phrase()}
        subject = self.person_subject(other_than)
        return self.clause(group, subject, predicate, plain=plain, without="negation")

    def add_relative(self, head, of_person):
        """Draws a relative clause for the noun phrase `head`."""
        group = self.pick(("present", "past"))
        case, lead = "nominative", "who"
        if of_person and self.chance(0.5):
            subject = Phrase(noun=head.noun)
            clause = self.clause(group, subject, plain=self.chance(0.7), without="negation")
        else:
            verb = self.pick(GROUPS["with person" if of_person else "with thing"])
            clause = self.gap_clause(group, verb, head, plain=self.chance(0.7))
            case, lead = VERBS[verb].case, "whom" if of_person else "that"
        pronoun = ENDINGS["relative"][NOUNS[head.noun].gender][CASES.index(case)]
        english, german = clause.text("subordinate", lead, pronoun)
        head.relative = english, f", {german},"

    def predicate(self, kind, subject):
        """Draws (a verb, its complements) of a kind in "predicates" of `lexicon.json`."""
        frame = LEXICON["predicates"][kind]
        while "choices" in frame:
            frame = LEXICON["predicates"][self.choose(frame["choices"])]
        verbs = frame["verbs"]
        verb = self.pick(verbs) if len(verbs) > 1 else verbs[0]
        complements, has_option = {}, False
        for slot, kind, probability, *only_verbs in frame["complements"]:
            if only_verbs and verb not in only_verbs[0]:
                continue
            if probability < 1:
                if has_option or not self.chance(probability):
                    continue
                has_option = True
            slot = VERBS[verb].case if slot == "object" else slot
            if kind == "person":
                complements[slot] = self.person_object(subject)
            else:
                complements[slot] = self.thing(kind) if kind in GROUPS else self.pick(PHRASES[kind])
        return verb, complements

    def person_subject(self, other_than=None):
        """Draws a person with a different noun than `other_than`."""
        while True:
            if self.chance(0.5):
                return pronoun(self.pick((*PRONOUNS, "I")))
            person = self.person("subject")
            if other_than is None or person.referent != other_than.referent:
                return person

    def person_object(self, subject):
        """Draws a person other than the subject: neither `me` nor `us` if it is `I` or `we`."""
        speakers = ("I", "we") if subject.english in ("I", "we") else ()
        while True:
            if self.chance(0.35):
                person = pronoun(self.pick([name for name in PRONOUNS if name not in speakers]))
            else:
                person = self.person("person")
            if person.referent != subject.referent:
                return person

    def person(self, determiners):
        if self.chance(0.15):
            name = self.pick(GROUPS["names"])
            return Phrase(*[name] * 5)
        if self.chance(0.3):
            determiner, plural = self.determiner("relatives"), self.chance(0.2)
            return noun_phrase(determiner, self.pick(GROUPS["relatives"]), plural=plural)
        plural = self.chance(0.3)
        determiner = self.determiner("people" if plural else determiners)
        adjective = self.pick(GROUPS["person adjectives"]) if self.chance(0.3) else ""
        return noun_phrase(determiner, self.pick(GROUPS["people"]), adjective, plural=plural)

    def thing(self, nouns):
        plural = self.chance(0.25)
        adjective = self.pick(GROUPS["thing adjectives"]) if self.chance(0.4) else ""
        determiner = self.determiner("things" if plural else "thing")
        return noun_phrase(determiner, self.pick(GROUPS[nouns]), adjective, plural=plural)

    def head(self, of_person):
        """Draws a noun phrase that can take a relative clause."""
        noun = self.pick(GROUPS["people" if of_person else "things"])
        return noun_phrase(self.determiner("head"), noun)

    def determiner(self, kind):
        return self.pick(LEXICON["drawn_determiners"][kind])


def _joined(first, second, english="", german=""):
    return f"{first[0]}{english} {second[0]}", f"{first[1]}{german} {second[1]}"
