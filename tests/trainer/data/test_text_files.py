"""Tests of corpora in text files and of the errors for invalid files."""

import gzip
import io
import os
import random
import threading

import pytest

from trainer import streams
from trainer.data import text_files
from trainer.data.text_files import read_one_side, read_text

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


def test_read_one_side_yields_lines_in_order(write, tmp_path):
    files = write("a", "\n".join(ENGLISH)), write("b.gz", "\n".join(GERMAN))
    corpus = read_one_side(", ".join(files))
    assert list(corpus) == [(line,) for line in [*ENGLISH, *GERMAN]] and corpus.sides == ("text",)
    assert list(corpus.sentences()) == list(corpus.targets()) == [*ENGLISH, *GERMAN]
    with pytest.raises(ValueError, match="Expected a text file at .*none. Received: no such file"):
        read_one_side(f"{files[0]}none")
    with pytest.raises(ValueError, match="Received: a directory. Check the path."):
        read_one_side(str(tmp_path))


def test_fingerprint_depends_on_contents_only(write, tmp_path):
    source, target = write("a.en", "one\ntwo\n"), write("a.de", "eins\nzwei\n")
    before, status = read_text(source, target).fingerprint, os.stat(target)
    assert read_text(target, source).fingerprint != before
    for other in (
        write("b.en", "one\ntwo\n"),
        write("b.en.gz", "one\ntwo\n"),
        write("crlf.en", "one\r\ntwo\r\n"),
        write("open.en", "one\ntwo"),
    ):
        assert read_text(other, target).fingerprint == before
    halves = [write(name, line) for name, line in (("1", "one\n"), ("2", "two"))]
    targets = [write(name, line) for name, line in (("3", "eins\n"), ("4", "zwei"))]
    assert read_text(",".join(halves), ",".join(targets)).fingerprint == before
    write("a.de", "eins\ndrei\n")
    os.utime(target, ns=(status.st_atime_ns, status.st_mtime_ns))
    assert os.stat(target).st_size == status.st_size
    assert read_text(source, target).fingerprint != before


def test_carriage_return_inside_a_line_is_a_space(write):
    """In files for training and evaluation as in the input of `trainer.translate`."""
    content = "On\rSunday\r\n\r\nTwo\n"
    corpus = read_text(write("a.en", "a\nb\nc\n"), write("a.de", content))
    assert list(corpus.targets()) == ["On Sunday", "", "Two"]
    assert list(streams.lines(io.BytesIO(content.encode()), "-")) == [b"On Sunday", b"", b"Two"]


def test_block_size_does_not_matter(write, monkeypatch):
    source, target = write("a.en", "one\ntwo\nthree"), write("a.de", "ä\rb\r\nc\nd")
    expected = read_text(source, target)
    monkeypatch.setattr(text_files, "_BLOCK_BYTES", 1)
    assert read_text(source, target) == expected
    write("a.en", b"one\ntwo\nth\xff")
    with pytest.raises(ValueError, match="in line 3. Convert"):
        read_text(source, target)


EMPTY = "to have one sentence per line. Received: an empty file."
NOT_GZIP = "to be a gzip file, because of its first bytes. Received: a truncated"
CORRUPT_GZIP = bytearray(gzip.compress(random.Random(1).randbytes(9999).hex().encode()))
CORRUPT_GZIP[5000:5050] = b"\xff" * 50


ONE, EINS = {"a.en": b"one\n"}, {"a.de": b"eins\n"}


@pytest.mark.parametrize(
    ("sources", "targets", "message"),
    [
        (ONE, {"a.de": b""}, f".*a.de {EMPTY}"),
        (
            ONE | {"b.en": b"one\ntwo\nthree\n"},
            EINS | {"b.de": b"eins\nzwei\ndrei\nvier\nsieben"},
            ".* in .*b.en as translations in .*b.de. Received: 3 and 5 lines. Line n of",
        ),
        (ONE | {"b.en": b"two\n"}, EINS, "as many source files as target files. Received: 2"),
        (
            {"a.en": b"one\nfive\n"},
            {"a.de": "eins\nfünf\n".encode("latin-1")},
            r"UTF-8 text in .*a.de. Received: invalid .*\\xfc.* in line 2. Convert .*iconv -f",
        ),
        ({"a.en.gz": gzip.compress("\ufeffone\n".encode())}, EINS, ".*without a byte order"),
        ({"a.en": b"one\rtwo\r"}, EINS, "lines of .*a.en to end in a line feed. Received:"),
        ({"short.gz": gzip.compress(b"one\n")[:-9]}, EINS, f".*short.gz {NOT_GZIP}"),
        ({"corrupt.gz": CORRUPT_GZIP}, EINS, f".*corrupt.gz {NOT_GZIP}"),
    ],
)
def test_invalid_files_raise(sources, targets, message, tmp_path):
    for name, content in (sources | targets).items():
        (tmp_path / name).write_bytes(content)
    paths = [",".join(str(tmp_path / name) for name in side) for side in (sources, targets)]
    with pytest.raises(ValueError, match=f"Expected {message}"):
        read_text(*paths)


@pytest.mark.parametrize(
    ("source", "target", "received"),
    [
        ("a.en", "", "only source files, a.en. Give the target"),
        (None, "a.de", "only target files, a.de. Give the source"),
        (None, None, "neither"),
    ],
)
def test_missing_side_raises(source, target, received):
    with pytest.raises(ValueError, match=f"Expected source and target files. Received: {received}"):
        read_text(source, target)


def test_files_may_be_pipes(tmp_path):
    for name, text in (("source", "a\nb\n"), ("target", "c\nd\n")):
        os.mkfifo(tmp_path / name)
        threading.Thread(target=(tmp_path / name).write_text, args=(text,), daemon=True).start()
    corpus = read_text(str(tmp_path / "source"), str(tmp_path / "target"))
    assert list(corpus) == list(corpus) == [("a", "c"), ("b", "d")]


def test_files_are_decompressed_by_their_first_bytes(tmp_path):
    for name, content in (("plain", gzip.compress(b"one\n")), ("a.gz", b"one\n")):
        (tmp_path / name).write_bytes(content)
        assert list(read_one_side(tmp_path / name)) == [("one",)]


@pytest.mark.parametrize(
    ("content", "line"), [(b"one\n" * 200 + b"a\0b\n", 201), ("one\n".encode("utf-16-le"), 1)]
)
def test_nul_bytes_raise(tmp_path, content, line):
    (tmp_path / "nul").write_bytes(content)
    message = rf"Expected UTF-8 text in .*/nul. Received: a NUL byte in line {line}, as in UTF-16"
    with pytest.raises(ValueError, match=message):
        read_one_side(tmp_path / "nul")
