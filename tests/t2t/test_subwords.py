"""The plain subword vocabulary: held to what tensor2tensor's SubwordTextEncoder made of the same
files.
"""

import json
import unicodedata
from pathlib import Path

import pytest

from t2t_relpos.t2t.subwords import (
    ESCAPE_CHARACTERS,
    SubwordVocabulary,
    alphanumeric_characters,
    is_alphanumeric,
)

RECORDED = sorted((Path(__file__).parents[1] / "reference" / "subwords").glob("*.vocab"))


@pytest.fixture(params=RECORDED, ids=lambda path: path.stem)
def recorded(request):
    """A vocabulary that tensor2tensor built, and what it made of strings and ids."""
    return SubwordVocabulary.from_bytes(request.param.read_bytes()), json.loads(
        request.param.with_suffix(".json").read_text()
    )


def lines(*subtokens):
    return "".join(f"'{subtoken}'\n" for subtoken in subtokens).encode()


SMALL = ("<pad>_", "<EOS>_", "ab_", *sorted(ESCAPE_CHARACTERS | set("<pad>EOSab")))


def test_recordings_are_there():
    assert [path.stem for path in RECORDED] == ["hostile", "sentences", "small", "unquoted"]


def test_subtokens_are_those_that_tensor2tensor_reads(recorded):
    vocabulary, expected = recorded
    assert list(vocabulary.subtokens) == expected["subtokens"]
    assert len(vocabulary) == len(expected["subtokens"])


def test_encodes_as_tensor2tensor(recorded):
    vocabulary, expected = recorded
    assert [[text, vocabulary.encode(text)] for text, _ in expected["encoded"]] == expected[
        "encoded"
    ]


def test_decodes_as_tensor2tensor(recorded):
    vocabulary, expected = recorded
    assert [[ids, vocabulary.decode(ids)] for ids, _ in expected["decoded"]] == expected["decoded"]


def test_every_string_comes_back(recorded):
    vocabulary, expected = recorded
    texts = [text for text, _ in expected["encoded"]]
    assert [vocabulary.decode(vocabulary.encode(text)) for text in texts] == texts


def test_of_equal_subtokens_the_last_counts():
    assert SubwordVocabulary((*SMALL, "ab_")).encode("ab") == [len(SMALL)]


def test_quotes_of_either_kind_or_none_and_line_ends():
    wanted = (*SMALL, "'", '"', "", "a'", "")
    content = lines(*SMALL) + b"\"'\"\r\n'\"'\n'\na' \t\n\n"
    vocabulary = SubwordVocabulary.from_bytes(content)
    assert vocabulary.subtokens == wanted
    assert SubwordVocabulary.from_bytes(content[:-1]).subtokens == wanted[:-1]
    assert vocabulary.encode("'") == [wanted.index("'"), wanted.index("_")]


def test_letters_and_numbers_are_those_of_unicodedata():
    characters = alphanumeric_characters()
    assert len(characters) == len(set(characters)) > 130_000
    for character in "aß٣½Ⅷ字ªʰ𝟘":
        assert is_alphanumeric(character) and character in characters
    for character in " _\u0301\u200d😀\ufffd\u0378\ue000\x00":
        assert not is_alphanumeric(character) and character not in characters
    assert {unicodedata.category(character)[0] for character in characters} == {"L", "N"}


@pytest.mark.parametrize(
    "content, received",
    [
        (b"", "none"),
        (b"\n", "''"),
        (b"the\nof\nand\n", "'the', 'of'"),
        (b"<unk>\t0\n<s>\t0\n", r"'<unk>\\t0', '<s>\\t0'"),
        (lines("<EOS>_", "<pad>_", *SMALL[2:]), "'<EOS>_', '<pad>_'"),
        (lines("<pad>_"), "'<pad>_'"),
    ],
)
def test_what_is_no_vocabulary_is_an_error(content, received):
    with pytest.raises(
        ValueError,
        match=(
            f"whose first two subtokens are '<pad>_' and '<EOS>_'. Received: {received}. Give the "
            "file named vocab"
        ),
    ):
        SubwordVocabulary.from_bytes(content)


def test_bytes_that_are_not_utf8_are_an_error():
    with pytest.raises(
        ValueError,
        match=(
            "a text file in UTF-8. Received: 5 bytes that are not UTF-8. Give the file named vocab"
        ),
    ):
        SubwordVocabulary.from_bytes(b"'\xff\xfe'\n")


def test_vocabulary_without_escape_characters_is_an_error():
    with pytest.raises(
        ValueError,
        match=(
            r"and those that escape others .* Received: 24 subtokens without ';', '_'. The file "
            r"is cut short or was edited"
        ),
    ):
        SubwordVocabulary.from_bytes(lines(*(s for s in SMALL if s not in ("_", ";"))))


def test_vocabulary_cut_short_is_an_error():
    with pytest.raises(
        ValueError,
        match=r"Received: 3 subtokens without '0', '1', '2', '3', '4' and 18 more. The file is",
    ):
        SubwordVocabulary.from_bytes(lines(*SMALL[:3]))


def test_raw_reserved_names_are_read_too():
    vocabulary = SubwordVocabulary.from_bytes(lines("<pad>", "<EOS>", *SMALL[2:]))
    assert vocabulary.subtokens[:2] == ("<pad>", "<EOS>")
    assert vocabulary.encode("ab") == [2]
