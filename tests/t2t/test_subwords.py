"""Compares the plain Python subword vocabulary with recordings of tensor2tensor.

The recordings are outputs of tensor2tensor's SubwordTextEncoder for the same files.
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
    """Returns a vocabulary built by tensor2tensor and its recorded encodings and decodings."""
    return SubwordVocabulary.from_bytes(request.param.read_bytes()), json.loads(
        request.param.with_suffix(".json").read_text()
    )


def lines(*subtokens):
    """Returns the content of a vocabulary file."""
    return "".join(f"'{subtoken}'\n" for subtoken in subtokens).encode()


SMALL = ("<pad>_", "<EOS>_", "ab_", *sorted(ESCAPE_CHARACTERS | set("<pad>EOSab")))


def test_all_recordings_are_found():
    assert [path.stem for path in RECORDED] == ["hostile", "sentences", "small", "unquoted"]


def test_from_bytes_reads_the_subtokens_of_tensor2tensor(recorded):
    vocabulary, expected = recorded
    assert list(vocabulary.subtokens) == expected["subtokens"]
    assert len(vocabulary) == len(expected["subtokens"])


def test_encode_equals_tensor2tensor(recorded):
    vocabulary, expected = recorded
    assert [[text, vocabulary.encode(text)] for text, _ in expected["encoded"]] == expected[
        "encoded"
    ]


def test_decode_equals_tensor2tensor(recorded):
    vocabulary, expected = recorded
    assert [[ids, vocabulary.decode(ids)] for ids, _ in expected["decoded"]] == expected["decoded"]


def test_encode_uses_the_last_of_equal_subtokens():
    assert SubwordVocabulary((*SMALL, "ab_")).encode("ab") == [len(SMALL)]


def test_from_bytes_handles_quotes_and_line_ends():
    expected_subtokens = (*SMALL, "'", '"', "", "a'", "")
    content = lines(*SMALL) + b"\"'\"\r\n'\"'\n'\na' \t\n\n"
    vocabulary = SubwordVocabulary.from_bytes(content)
    assert vocabulary.subtokens == expected_subtokens
    assert SubwordVocabulary.from_bytes(content[:-1]).subtokens == expected_subtokens[:-1]
    assert vocabulary.encode("'") == [expected_subtokens.index("'"), expected_subtokens.index("_")]


def test_alphanumeric_characters_equal_unicodedata():
    characters = alphanumeric_characters()
    assert len(characters) == len(set(characters)) > 130_000
    for character in "aß٣½Ⅷ字ªʰ𝟘":
        assert is_alphanumeric(character) and character in characters
    for character in " _\u0301\u200d😀\ufffd\u0378\ue000\x00":
        assert not is_alphanumeric(character) and character not in characters
    assert {unicodedata.category(character)[0] for character in characters} == {"L", "N"}


RESERVED = (
    "whose first two subtokens are '<pad>_' and '<EOS>_'. Received: {}. Pass the file named vocab"
)


@pytest.mark.parametrize(
    "content, message",
    [
        (b"", RESERVED.format("none")),
        (b"\n", RESERVED.format("''")),
        (b"the\nof\nand\n", RESERVED.format("'the', 'of'")),
        (b"<unk>\t0\n<s>\t0\n", RESERVED.format(r"'<unk>\\t0', '<s>\\t0'")),
        (lines("<EOS>_", "<pad>_", *SMALL[2:]), RESERVED.format("'<EOS>_', '<pad>_'")),
        (lines("<pad>_"), RESERVED.format("'<pad>_'")),
        (
            b"'\xff\xfe'\n",
            "a text file in UTF-8. Received: 5 bytes that are not UTF-8. Pass the file named vocab",
        ),
        (
            lines(*(s for s in SMALL if s not in ("_", ";"))),
            r"and those that escape others .* Received: 24 subtokens without ';', '_'. The file "
            r"is cut short or was edited",
        ),
        (
            lines(*SMALL[:3]),
            "Received: 3 subtokens without '0', '1', '2', '3', '4' and 18 more. The file is",
        ),
    ],
)
def test_from_bytes_rejects_other_files(content, message):
    with pytest.raises(ValueError, match=message):
        SubwordVocabulary.from_bytes(content)


def test_from_bytes_accepts_reserved_names_without_underscore():
    vocabulary = SubwordVocabulary.from_bytes(lines("<pad>", "<EOS>", *SMALL[2:]))
    assert vocabulary.subtokens[:2] == ("<pad>", "<EOS>")
    assert vocabulary.encode("ab") == [2]
