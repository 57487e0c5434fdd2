"""Tests of corpora in text files and of the errors for invalid files."""

import gzip
import os
import random
import threading

import pytest

from trainer.data.text_files import read_text

ENGLISH = ["A dog runs.", "", "She sleeps\u2028well.", "It's 5 o'clock."]
GERMAN = ["Ein Hund läuft.", "Leer?", "Sie schläft gut.", "Es ist fünf Uhr."]


@pytest.fixture
def write(tmp_path):
    def write(name, content):
        content = content if isinstance(content, bytes) else content.encode()
        (tmp_path / name).write_bytes(gzip.compress(content) if name.endswith(".gz") else content)
        return str(tmp_path / name)

    return write


def test_read_text_yields_lines_in_order(write):
    corpus = read_text(write("a.en", "\n".join(ENGLISH) + "\n"), write("a.de", "\r\n".join(GERMAN)))
    assert list(corpus) == list(zip(ENGLISH, GERMAN))
    assert list(corpus) == list(corpus)
    assert list(corpus.sources()) == ENGLISH
    assert list(corpus.targets()) == GERMAN
    assert list(corpus.sentences())[:3] == [ENGLISH[0], GERMAN[0], ENGLISH[1]]


def test_read_text_of_several_plain_and_compressed_files(write):
    source = write("a.en", "one\ntwo\n") + "," + write("b.en.gz", "three\n")
    target = write("a.de.gz", "eins\nzwei\n") + ", " + write("b.de", "drei\n")
    corpus = read_text(source, target)
    assert list(corpus) == [("one", "eins"), ("two", "zwei"), ("three", "drei")]


def test_fingerprint_changes_with_the_files(write):
    source, target = write("a.en", "one\n"), write("a.de", "eins\n")
    before = read_text(source, target).fingerprint
    assert read_text(source, target).fingerprint == before
    assert read_text(target, source).fingerprint != before
    write("a.de", "einse\n")
    assert read_text(source, target).fingerprint != before


def test_files_are_read_as_a_stream(write):
    # A file is opened when its first line is requested and closed after its last line.
    corpus = read_text(write("a.en", "one\ntwo\n"), write("a.de", "eins\nzwei\n"))
    pairs = iter(corpus)
    write("a.en", "un\ndeux\n")
    assert list(pairs) == [("un", "eins"), ("deux", "zwei")]


def test_missing_file_raises(write, tmp_path):
    with pytest.raises(
        ValueError,
        match="Expected a text file at .*none.en. Received: no such file. Check the path.",
    ):
        read_text(str(tmp_path / "none.en"), write("a.de", "eins\n"))
    with pytest.raises(ValueError, match="Received: a directory. Check the path."):
        read_text(write("a.en", "one\n"), str(tmp_path))


EMPTY = "to have one sentence per line. Received: an empty file."
NOT_GZIP = "to be a gzip file, because of its suffix. Received: a truncated"
CORRUPT_GZIP = bytearray(gzip.compress(random.Random(1).randbytes(9999).hex().encode()))
CORRUPT_GZIP[5000:5050] = b"\xff" * 50


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        ({"a.en": b"one\n"}, {"a.de": b""}, f"Expected .*a.de {EMPTY}"),
        ({"a.en": b"one\n"}, {"a.de.gz": gzip.compress(b"")}, f"Expected .*a.de.gz {EMPTY}"),
        (
            {"a.en": b"one\n", "b.en": b"one\ntwo\nthree\n"},
            {"a.de": b"eins\n", "b.de": b"eins\nzwei\ndrei\nvier\nsieben"},
            "in .*b.en as translations in .*b.de. Received: 3 and 5 lines. Line n of",
        ),
        (
            {"a.en": b"one\n", "b.en": b"two\n"},
            {"a.de": b"eins\n"},
            "Expected as many source files as target files. Received: 2 .* and 1 .* Give one "
            "target file per source file",
        ),
        (
            {"a.en": b"one\nfive\n"},
            {"a.de": "eins\nfünf\n".encode("latin-1")},
            r"Expected UTF-8 in .*a.de. Received: invalid bytes .*\\xfc.* in line 2. Convert .*"
            r"iconv -f",
        ),
        (
            {"a.en": "\ufeffone\n".encode()},
            {"a.de": b"eins\n"},
            "Expected .*a.en without a byte order mark. .* Remove it: sed -i",
        ),
        ({"plain.gz": b"one\n"}, {"a.de": b"eins\n"}, f"Expected .*plain.gz {NOT_GZIP}"),
        (
            {"truncated.gz": gzip.compress(b"one\n")[:-9]},
            {"a.de": b"eins\n"},
            f"Expected .*truncated.gz {NOT_GZIP}",
        ),
        ({"corrupt.gz": CORRUPT_GZIP}, {"a.de": b"eins\n"}, f"Expected .*corrupt.gz {NOT_GZIP}"),
    ],
    ids=[
        "empty",
        "empty gzip",
        "lines",
        "files",
        "encoding",
        "byte order mark",
        "not gzip",
        "truncated gzip",
        "corrupt gzip",
    ],
)
def test_invalid_files_raise(sources, targets, message, tmp_path):
    for name, content in (sources | targets).items():
        (tmp_path / name).write_bytes(content)
    paths = [",".join(str(tmp_path / name) for name in side) for side in (sources, targets)]
    with pytest.raises(ValueError, match=message):
        read_text(*paths)


@pytest.mark.parametrize(
    "source, target", [("a.en", ""), ("", "a.de"), (None, "a.de"), (None, None)]
)
def test_missing_side_raises(source, target):
    with pytest.raises(
        ValueError,
        match="Expected source and target files. Received: (only (source|target) files, a|neither)",
    ):
        read_text(source, target)


def test_read_text_of_real_text(real_text):
    folder = real_text("multi30k")
    pairs = list(read_text(str(folder / "val.en.gz"), str(folder / "val.de.gz")))
    assert len(pairs) == 1014
    assert pairs[0][0] == "A group of men are loading cotton onto a truck"


def test_files_may_be_pipes(tmp_path):
    for name, text in (("source", "a\nb\n"), ("target", "c\nd\n")):
        os.mkfifo(tmp_path / name)
        threading.Thread(target=(tmp_path / name).write_text, args=(text,), daemon=True).start()
    corpus = read_text(str(tmp_path / "source"), str(tmp_path / "target"))
    assert list(corpus) == list(corpus) == [("a", "c"), ("b", "d")]


def test_commands_for_compressed_files_decompress_them(write, tmp_path):
    target = write("a.de", "eins\n")
    with pytest.raises(ValueError, match=r"Remove it: gunzip .*/a.en.gz && sed -i .*/a.en$"):
        read_text(write("a.en.gz", "\ufeffone\n"), target)
    with pytest.raises(ValueError, match=r": gunzip .*/b.en.gz && iconv .*/b.en > .*/b.en.utf8$"):
        read_text(write("b.en.gz", "fünf\n".encode("latin-1")), target)
