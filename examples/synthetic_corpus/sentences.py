"""Random sentences of the synthetic corpus, drawn by the rules in `lexicon.json`.

The English of every clause is unambiguous, so that it has exactly one German translation. `you`
and `it` are never drawn as persons or things, because their translation depends on more than the
sentence.
"""

import re
from bisect import bisect
from itertools import accumulate

from examples.synthetic_corpus.grammar import LEXICON, VERBS, Clause, Phrase, noun_phrase

TEXTS = LEXICON["texts"]
# Lists, or pairs of a list and cumulative weights. `random.choices` would add weights in each call.
CHOICES = {
    name: (list(choices), list(accumulate(choices.values())))
    if isinstance(choices, dict)
    else choices
    for name, choices in LEXICON["choices"].items()
}


class SentenceSampler:
    """Draws (English, German) sentences with a `random.Random`."""

    def __init__(self, rng):
        self.rng = rng

    def sentence(self, kind=None):
        """Draws a sentence of one to four clauses, or of a kind, such as `several clauses`."""
        kind = kind or self.pick(CHOICES["sentence"])
        texts = self.draw(kind, self.pick(CHOICES["group"]))
        for pattern, replacement in ((" +", " "), ("can not", "cannot"), ("[ ,]*, *", ", ")):
            texts = [re.sub(pattern, replacement, text).strip(" ,") for text in texts]
        mark = "?" if kind == "question" else "."
        return tuple(text[0].upper() + text[1:] + mark for text in texts)

    def chance(self, probability):
        return probability == 1 or probability > 0 and self.rng.random() < probability

    def pick(self, choices):
        """Draws an element of a list, or of a list with cumulative weights."""
        if isinstance(choices, tuple):
            names, ends = choices
            return names[bisect(ends, self.rng.random() * ends[-1], 0, len(ends) - 1)]
        return self.rng.choice(choices)

    def resolve(self, name, context=""):
        """Follows the choices from a name, such as `place`, to one without, such as `at home`."""
        while choices := CHOICES.get(f"{name} {context}", CHOICES.get(name)):
            name = choices if isinstance(choices, str) else self.pick(choices)
        return name

    def draw(self, kind, group, front=None, head=None):
        """Draws a sentence or clause of a kind in "sentences" or "choices" of `lexicon.json`.

        Its tenses are those of `group`: present, past or future. The texts `front` are before its
        first main clause; default: a time, or nothing. Its clauses share the phrase `head`.
        """
        rule = LEXICON["sentences"][self.resolve(kind, f"in the {group}")]
        group = self.resolve(rule.get("group", group), f"in the {group}")
        head = self.phrase(rule["head"]) if "head" in rule else head
        if "parts" in rule:
            # Between two parts is a comma in English, and none in German.
            fronts = front, (",", "")
            texts = [
                self.draw(part, group, front, head) for part, front in zip(rule["parts"], fronts)
            ]
        elif "coordinated" in rule:
            first, second = rule["coordinated"]
            between, front = self.pick(LEXICON["coordinators"])
            following = self.draw(second, group, front)
            texts = self.draw(first, group), between, following
        else:
            return self.clause(LEXICON["clause"] | rule, group, front, head)
        return tuple(" ".join(side) for side in zip(*texts))

    def clause(self, rule, group, front, head):
        verb, complements = self.resolve(rule["verb"]), {}
        plain = self.chance(rule["plain"])
        choice = rule["subject"]
        subject = choice != "head" and self.phrase(choice, f"in the {group}", head)
        if "relative" in rule:
            head = head._replace(relative=self.draw(rule["relative"], group, head=head))
        subject = subject or head
        if subject.english == "it":
            verb, plain = "rain", True
        if not verb:
            verb, complements = self.predicate(rule["predicate"], group, subject)
        if "object" in rule:
            complements["object"] = head
        clause = Clause(subject, VERBS[verb], complements, group)
        if not plain:
            self.vary(clause, rule, group)
        if rule["order"] != "main":
            return clause.text(rule["order"], self.lead(rule, clause, head))
        if front is None and self.chance(rule["late time"]):
            complements["time"] = self.phrase("time", f"in the {group}")
        if front is None and "time" in complements and self.chance(rule["fronting"]):
            front = complements.pop("time")
        return clause.text("fronted", front) if front else clause.text("main")

    def predicate(self, kind, group, subject):
        """Draws (a verb, its complements) of a kind in "predicates" of `lexicon.json`."""
        frame = LEXICON["predicates"][self.resolve(kind, f"in the {group}")]
        verb, complements = self.resolve(frame["verb"]), {}
        for slot, choice, probability, *verbs in frame["complements"]:
            possible = len(complements) < 2 and (not verbs or verb in verbs[0])
            if possible and self.chance(probability):
                complements[slot] = self.phrase(choice, f"of {subject.english}", subject)
        return verb, complements

    def vary(self, clause, rule, group):
        """Draws the tense, negation and adverbs of a clause."""
        if clause.verb["english"] != "be":
            clause.tense = self.resolve("tense", f"in the {group}")
        clause.negated = self.chance(rule["negated"]) and clause.can_be_negated()
        can_be_often = group != "future" and not clause.negated
        if can_be_often and self.chance(rule["frequency"]):
            clause.complements["frequency"] = self.phrase("frequency")
        elif self.chance(rule["time"]):
            time = self.phrase("time", f"in the {group}")
            # `not every day` and `not soon` are unclear.
            if not (clause.negated and time[0] in ("every day", "soon")):
                clause.complements["time"] = time

    def lead(self, rule, clause, head):
        """Returns the first words of a subordinate clause or question."""
        if "pronoun" in rule:
            case = "nominative" if clause.subject is head else clause.verb["case"]
            gender = LEXICON["nouns"][head.referent][0]
            return rule["pronoun"], LEXICON["relative_pronouns"][gender][case]
        return rule["leads"][clause.verb["english"]] if "leads" in rule else rule["lead"]

    def phrase(self, choice, context="", other=None):
        """Draws a phrase, or a pair of texts. A phrase never has the referent of `other`."""
        while True:
            name = self.resolve(choice, context)
            if name in TEXTS:
                return name, TEXTS[name]
            if name in LEXICON["persons"]:
                phrase = Phrase(*LEXICON["persons"][name], name)
            else:
                words = LEXICON["noun_phrases"][name]
                phrase = noun_phrase(**{word: self.resolve(words[word]) for word in words})
            if other is None or phrase.referent != other.referent:
                return phrase
