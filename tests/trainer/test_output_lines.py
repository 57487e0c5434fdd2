import pytest

from trainer import translate
from trainer.serving.translator import Alignment, Translation

HOSTILE = Translation(b"ein\tHund\nund\r\nmehr", -2.0, False)
ALIGNED = Translation(b"", 0.0, False, Alignment([], [], []))


def test_formats_write_one_line_per_sentence():
    assert translate.format_best(7, [HOSTILE]) == b"ein\tHund und mehr\n"
    assert translate.format_best_and_score(7, [HOSTILE]) == b"ein Hund und mehr\t-2.0000\n"
    line = b"6 ||| ein\tHund und mehr ||| Score= -2.0000 ||| -2.0000\n"
    assert translate.format_n_best(7, [HOSTILE, HOSTILE]) == 2 * line
    # A separator in a translation makes no field.
    line = b"0 ||| a| | |b ||| Score= -2.0000 ||| -2.0000\n"
    assert translate.format_n_best(1, [Translation(b"a|||b", -2.0, False)]) == line


def test_formats_of_empty_sentences():
    assert translate.format_best(1, [ALIGNED]) == b"\n"
    assert translate.format_best_and_score(1, [ALIGNED]) == b"\t0.0000\n"
    assert translate.format_links(1, [ALIGNED]) == b"\n"
    assert translate.format_tokens(1, [ALIGNED]) == b" ||| \n"


def test_links_are_source_target_pairs_and_tokens_are_separated_by_spaces():
    aligned = Alignment([b"a", b"dog"], [b"ein", b"Hu", b"nd"], [0, 1, 1])
    translations = [Translation(b"ein Hund", -0.25, False, aligned)]
    assert translate.format_links(1, translations) == b"0-0 1-1 1-2\n"
    assert translate.format_tokens(1, translations) == b"a dog ||| ein Hu nd\n"


@pytest.mark.parametrize(
    ("token", "word"),
    [
        (b"a b", "a▁b"),
        (b" ", "▁"),
        (b"", "▁"),
        (b"\n", "▁"),
        (b"a\r", "a"),
        (b"|||", "|▁|▁|"),
        ("▁ein".encode(), "▁ein"),
    ],
)
def test_tokens_are_single_words(token, word):
    aligned = Alignment([b"x", token], [token], [1])
    line = translate.format_tokens(1, [Translation(b"", 0.0, False, aligned)]).decode()
    assert line == f"x {word} ||| {word}\n"
