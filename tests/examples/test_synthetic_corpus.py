"""Tests of the synthetic corpus: grammar, disjoint splits, reproducible sentences and files."""

import hashlib
import json
import random

import pytest
from absl import app
from subprocesses import run_python

from examples import synthetic_corpus
from examples.synthetic_corpus import __main__ as corpus_program
from examples.synthetic_corpus import lexicon
from examples.synthetic_corpus.clauses import (
    Clause,
    RelativeClause,
    english_infinitive,
    english_question,
    english_statement,
    finish,
    german_infinitive,
    german_main,
    german_subordinate,
)
from examples.synthetic_corpus.phrases import FixedPhrase, NounPhrase, PronounPhrase
from examples.synthetic_corpus.sentence_sampler import SentenceSampler

NOUNS = {
    noun.english: noun
    for noun in lexicon.PEOPLE + lexicon.RELATIVES + lexicon.THINGS + lexicon.CLOSABLE
}
ADJECTIVES = {
    adjective.english: adjective
    for adjective in lexicon.PERSON_ADJECTIVES + lexicon.THING_ADJECTIVES
}
PLACES = {
    phrase.english: phrase
    for phrase in lexicon.PLACES + lexicon.ON_FOOT_GOALS + lexicon.GOALS + lexicon.STATES
}
TIMES = {phrase.english: phrase for times in lexicon.TIMES.values() for phrase in times}
FREQUENCIES = {phrase.english: phrase for phrase in lexicon.FREQUENCIES}
SHE, HE, I, THEY, WE = (
    PronounPhrase(pronoun)
    for pronoun in (lexicon.SHE, lexicon.HE, lexicon.I, lexicon.THEY, lexicon.WE)
)


def noun_phrase(words, plural=False, relative=None):
    determiner, *adjective, noun = words.split()
    return NounPhrase(
        determiner, NOUNS[noun], ADJECTIVES[adjective[0]] if adjective else None, plural, relative
    )


THE_MAN = noun_phrase("the man")
THE_BOY = noun_phrase("the boy")
RELATIVE_WOMAN = noun_phrase(
    "the woman",
    relative=RelativeClause(
        Clause(FixedPhrase(), lexicon.CALL, "past", accusative=HE), "nominative", True
    ),
)
RELATIVE_KEY = noun_phrase(
    "the key",
    relative=RelativeClause(
        Clause(SHE, lexicon.FIND, "past", accusative=FixedPhrase()), "accusative", False
    ),
)
RELATIVE_CHILDREN = noun_phrase(
    "the child",
    plural=True,
    relative=RelativeClause(
        Clause(HE, lexicon.HELP, "present", dative=FixedPhrase()), "dative", True
    ),
)

MAIN_CLAUSES = {
    # A fronted adverbial inverts subject and verb; the separable prefix stands last.
    ("Today she calls him.", "Heute ruft sie ihn an."): Clause(
        SHE, lexicon.CALL, "present", accusative=HE, time=TIMES["today"], time_first=True
    ),
    ("They got up yesterday.", "Sie sind gestern aufgestanden."): Clause(
        THEY, lexicon.GET_UP, "past", time=TIMES["yesterday"]
    ),
    ("The man gives the boy an old apple.", "Der Mann gibt dem Jungen einen alten Apfel."): Clause(
        THE_MAN, lexicon.GIVE, "present", dative=THE_BOY, accusative=noun_phrase("a old apple")
    ),
    ("I do not buy a car.", "Ich kaufe kein Auto."): Clause(
        I, lexicon.BUY, "present", accusative=noun_phrase("a car"), negated=True
    ),
    ("He did not sell my expensive bicycle.", "Er hat mein teures Fahrrad nicht verkauft."): Clause(
        HE, lexicon.SELL, "past", accusative=noun_phrase("my expensive bicycle"), negated=True
    ),
    ("She wants to help these tall teachers.", "Sie will diesen großen Lehrern helfen."): Clause(
        SHE, lexicon.HELP, "want to", dative=noun_phrase("these tall teacher", plural=True)
    ),
    ("We had to pick him up at the station.", "Wir mussten ihn am Bahnhof abholen."): Clause(
        WE, lexicon.PICK_UP, "past have to", accusative=HE, place=PLACES["at the station"]
    ),
    (
        "Every neighbor followed the friendly girl.",
        "Jeder Nachbar ist dem freundlichen Mädchen gefolgt.",
    ): Clause(
        noun_phrase("every neighbor"),
        lexicon.FOLLOW,
        "past",
        dative=noun_phrase("the friendly girl"),
    ),
    (
        "Tomorrow two tall men will go home with her.",
        "Morgen werden zwei große Männer mit ihr nach Hause gehen.",
    ): Clause(
        noun_phrase("two tall man", plural=True),
        lexicon.GO,
        "future",
        goal=PLACES["home"],
        companion=("with", SHE),
        time=TIMES["tomorrow"],
        time_first=True,
    ),
    (
        "Her brother often brings a dog along for us.",
        "Ihr Bruder bringt oft einen Hund für uns mit.",
    ): Clause(
        noun_phrase("her brother"),
        lexicon.BRING,
        "present",
        accusative=noun_phrase("a dog"),
        companion=("for", WE),
        frequency=FREQUENCIES["often"],
    ),
    ("I was never ill.", "Ich war nie krank."): Clause(
        I, lexicon.BE, "past", goal=PLACES["ill"], frequency=FREQUENCIES["never"]
    ),
    (
        "The woman who called him shows them a new picture.",
        "Die Frau, die ihn angerufen hat, zeigt ihnen ein neues Bild.",
    ): Clause(
        RELATIVE_WOMAN,
        lexicon.SHOW,
        "present",
        dative=THEY,
        accusative=noun_phrase("a new picture"),
    ),
    (
        "He looked for the key that she found.",
        "Er hat den Schlüssel gesucht, den sie gefunden hat.",
    ): Clause(HE, lexicon.LOOK_FOR, "past", accusative=RELATIVE_KEY),
    ("I thank the children whom he helps.", "Ich danke den Kindern, denen er hilft."): Clause(
        I, lexicon.THANK, "present", dative=RELATIVE_CHILDREN
    ),
}


@pytest.mark.parametrize("pair", MAIN_CLAUSES, ids=lambda pair: pair[0])
def test_main_clauses_are_correct(pair):
    clause = MAIN_CLAUSES[pair]
    assert (finish(english_statement(clause), "."), finish(german_main(clause), ".")) == pair


SUBORDINATE_CLAUSES = {
    ("because she calls him", "weil sie ihn anruft"): Clause(
        SHE, lexicon.CALL, "present", accusative=HE
    ),
    (
        "because the man had to sell his old car",
        "weil der Mann sein altes Auto verkaufen musste",
    ): Clause(THE_MAN, lexicon.SELL, "past have to", accusative=noun_phrase("his old car")),
    ("because I came back yesterday", "weil ich gestern zurückgekommen bin"): Clause(
        I, lexicon.COME_BACK, "past", time=TIMES["yesterday"]
    ),
    (
        "because these men will invite our aunt",
        "weil diese Männer unsere Tante einladen werden",
    ): Clause(
        noun_phrase("these man", plural=True),
        lexicon.INVITE,
        "future",
        accusative=noun_phrase("our aunt"),
    ),
    ("because it rained", "weil es geregnet hat"): Clause(
        FixedPhrase("it", "es"), lexicon.RAIN, "past"
    ),
}


@pytest.mark.parametrize("pair", SUBORDINATE_CLAUSES, ids=lambda pair: pair[0])
def test_the_verb_is_last_in_subordinate_clauses(pair):
    clause = SUBORDINATE_CLAUSES[pair]
    found = f"because {english_statement(clause)}", german_subordinate(clause, "weil")
    assert found == pair


def test_questions_have_the_verb_before_the_subject():
    clause = Clause(SHE, lexicon.CLOSE, "past", accusative=noun_phrase("the door"))
    assert finish(english_question(clause), "?") == "Did she close the door?"
    assert finish(german_main(clause, ""), "?") == "Hat sie die Tür zugemacht?"
    assert finish(english_question(clause, "why"), "?") == "Why did she close the door?"
    assert finish(german_main(clause, "warum"), "?") == "Warum hat sie die Tür zugemacht?"
    gap = Clause(THE_BOY, lexicon.LISTEN, "present", dative=FixedPhrase())
    assert finish(english_question(gap, "whom"), "?") == "Whom does the boy listen to?"
    assert finish(german_main(gap, "wem"), "?") == "Wem hört der Junge zu?"


def test_infinitives_take_zu_between_prefix_and_verb():
    call = Clause(SHE, lexicon.CALL, "present", accusative=HE)
    buy = Clause(SHE, lexicon.BUY, "present", accusative=noun_phrase("a small lamp"))
    assert (english_infinitive(call), german_infinitive(call)) == ("call him", "ihn anzurufen")
    assert (english_infinitive(buy), german_infinitive(buy)) == (
        "buy a small lamp",
        "eine kleine Lampe zu kaufen",
    )


@pytest.mark.parametrize(
    "words, plural, german",
    [
        ("the old dog", False, ("der alte Hund", "den alten Hund", "dem alten Hund")),
        (
            "a friendly woman",
            False,
            ("eine freundliche Frau", "eine freundliche Frau", "einer freundlichen Frau"),
        ),
        ("our new car", False, ("unser neues Auto", "unser neues Auto", "unserem neuen Auto")),
        (
            "this tall boy",
            False,
            ("dieser große Junge", "diesen großen Jungen", "diesem großen Jungen"),
        ),
        (
            "two friendly doctor",
            True,
            ("zwei freundliche Ärzte", "zwei freundliche Ärzte", "zwei freundlichen Ärzten"),
        ),
        ("some old car", True, ("einige alte Autos", "einige alte Autos", "einigen alten Autos")),
        (
            "these beautiful picture",
            True,
            ("diese schönen Bilder", "diese schönen Bilder", "diesen schönen Bildern"),
        ),
        ("every neighbor", False, ("jeder Nachbar", "jeden Nachbarn", "jedem Nachbarn")),
    ],
)
def test_noun_phrases_agree_in_gender_number_and_case(words, plural, german):
    phrase = noun_phrase(words, plural)
    assert tuple(phrase.german(case) for case in ("nominative", "accusative", "dative")) == german


@pytest.fixture(scope="module")
def splits():
    return {split: synthetic_corpus.generate(split) for split in synthetic_corpus.SPLITS}


def test_splits_have_their_sizes_and_no_duplicate_sentences(splits):
    assert {split: len(pairs) for split, pairs in splits.items()} == synthetic_corpus.SPLITS
    sources = [english for pairs in splits.values() for english, _ in pairs]
    assert len(set(sources)) == len(sources) == 22_000


@pytest.mark.slow
def test_splits_with_different_seeds_are_disjoint():
    train = {english for english, _ in synthetic_corpus.generate("train", size=3001, seed=1)}
    test = {english for english, _ in synthetic_corpus.generate("test", size=1009, seed=2)}
    assert not train & test


def test_test_longer_has_longer_sentences_than_train(splits):
    words = {
        split: [len(english.split()) for english, _ in pairs] for split, pairs in splits.items()
    }
    assert min(words["test_longer"]) > max(words["train"])
    assert (min(words["train"]), max(words["train"])) == (4, 16)
    assert max(words["test_longer"]) <= 30


def test_test_splits_have_only_words_of_train(splits):
    def words(split, side):
        text = " ".join(pair[side] for pair in splits[split])
        return {word.strip(",.?").lower() for word in text.split()}

    for side, most in enumerate((300, 410)):
        known = words("train", side)
        assert 200 < len(known) < most
        assert not (words("test_longer", side) | words("test", side)) - known


@pytest.mark.slow
def test_each_english_sentence_has_one_translation():
    sampler = SentenceSampler(random.Random(11))
    translations = {}
    for _ in range(20_011):
        for english, german in (sampler.sentence(), sampler.long_sentence()):
            assert translations.setdefault(english, german) == german


def test_sentences_are_capitalized_and_punctuated(splits):
    for pairs in splits.values():
        for pair in pairs:
            for text in pair:
                assert text[0].isupper() and text[-1] in ".?" and text == " ".join(text.split())
                assert " ," not in text and ",," not in text and ",." not in text


SHA256 = {
    "train": "cff84596d1e25c221df18aa4375a9eebca38598095c392747997480e31260a50",
    "dev": "f9fde2a71186606c427686a926c699180b1bcb4934a9e3993aa5e6a27d37182f",
    "test": "109bf22a826eefda45c63d063a6c54df67c366a4442143ffd77214c355521ceb",
    "test_longer": "856571c77d42d4fdfe406970013072703db74316efd3e5bfce11f338fd55a239",
}


def test_sentences_equal_recorded_hashes(splits):
    """Published results were measured on these sentences."""
    for split, pairs in splits.items():
        assert hashlib.sha256(json.dumps(pairs).encode()).hexdigest() == SHA256[split], split


def test_other_seeds_give_other_sentences(splits):
    assert splits["dev"] != synthetic_corpus.generate("dev", seed=1)


def test_program_writes_two_files_per_split(tmp_path, splits, capsys):
    corpus_program.main(["", str(tmp_path / "new" / "folder")])
    for split, pairs in splits.items():
        for language, lines in zip(("en", "de"), zip(*pairs)):
            text = (tmp_path / "new" / "folder" / f"{split}.{language}").read_text("utf-8")
            assert text == "".join(f"{line}\n" for line in lines)
    assert len(list((tmp_path / "new" / "folder").iterdir())) == 8
    assert "test_longer.en, .de: 500 sentence pairs" in capsys.readouterr().out


def test_file_instead_of_a_folder_is_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(SystemExit, match="Can't write to .*file: File exists."):
        corpus_program.main(["", str(tmp_path / "file")])


@pytest.mark.parametrize("arguments", [[], ["a", "b"]])
def test_other_than_one_argument_is_an_error(arguments):
    with pytest.raises(app.UsageError, match="Expected one argument, a folder for the files."):
        corpus_program.main(["", *arguments])


def test_corpus_imports_only_the_standard_library():
    program = (
        "import sys; before = set(sys.modules); import examples.synthetic_corpus;"
        "loaded = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(sorted(loaded - set(sys.stdlib_module_names)))"
    )
    assert run_python("-c", program).stdout.strip() == "['examples']"


def test_unknown_split_is_an_error():
    message = "Expected split to be one of train, dev, test, test_longer. Received: 'valid'"
    with pytest.raises(ValueError, match=message):
        synthetic_corpus.generate("valid")


def test_size_below_one_is_an_error():
    with pytest.raises(ValueError, match="Expected size to be at least 1. Received: 0. Omit it"):
        synthetic_corpus.generate("dev", size=0)
