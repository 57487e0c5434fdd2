"""Tests of files that are not plain UTF-8 text."""

import bz2
import gzip
import io
import lzma

import pytest

from trainer import streams
from trainer.data.text_files import check_format, read_text

TEXT = "A dog runs.\nEin Hund läuft.\n"
JAPANESE = "犬が走っています。\n猫は眠っています。\n"


LIKE_OTHER_FORMATS = [
    "BZh is a code\n",
    "BZh9 is a code\n",
    "%PDF-\n",
    "%PDF-1.7\n%PDF-1.4\n",
    "%PDF-1.7 %é\n",
    "%PDF-1.7 begins a PDF file\n%é\n",
    "PK\n",
]


@pytest.mark.parametrize(
    "text",
    ["", "a", TEXT, JAPANESE, "\ufeffa\n", "a\0b\n" + TEXT * 9, *LIKE_OTHER_FORMATS],
)
def test_text_in_utf_8_and_in_8_bits_passes(text):
    check_format(text.encode(), "file")
    check_format(text.encode("latin-1", errors="ignore"), "file")


@pytest.mark.parametrize(
    ("start", "received"),
    [
        (gzip.compress(b"a", mtime=0), "a gzip file. Convert it with: gunzip"),
        (bz2.compress(b"a"), "a bzip2 file. Convert it with: bunzip2"),
        (bz2.compress(b"", 1), "a bzip2 file. Convert it with: bunzip2"),
        (lzma.compress(b"a"), "an xz file. Convert it with: unxz"),
        (b"\x28\xb5\x2f\xfd\x04", "a zstd file. Convert it with: unzstd"),
        (b"PK\x03\x04\x14", "a zip file. Convert it with: unzip"),
        (b"%PDF-1.5\n%\xd0\xd4\xc5\xd8\n", "a PDF file. Convert it with: pdftotext"),
        (b"%PDF-1.7\r\n%\xb5\xb5\xb5\xb5\r\n", "a PDF file. Convert it with: pdftotext"),
        (TEXT.encode("utf-16"), "UTF-16. Convert it with: iconv -f UTF-16 -t UTF-8"),
        (TEXT.encode("utf-32"), "UTF-32. Convert it with: iconv -f UTF-32 -t UTF-8"),
    ],
)
def test_other_formats_raise(start, received):
    with pytest.raises(ValueError, match=f"Expected UTF-8 text in my file. Received: {received}"):
        check_format(start, "my file")
    with pytest.raises(ValueError, match=f"Expected UTF-8 text in in. Received: {received}"):
        list(streams.lines(io.BytesIO(start), "in"))


def test_text_that_starts_like_another_format_is_read(tmp_path):
    for text in LIKE_OTHER_FORMATS:
        (tmp_path / "text").write_text(text)
        corpus = read_text(str(tmp_path / "text"), str(tmp_path / "text"))
        assert list(corpus.sources()) == text.splitlines()
        with streams.reading(tmp_path / "text") as source:
            assert list(streams.lines(source, "text")) == text.encode().splitlines()


def test_gzip_files_are_read_whatever_their_name(tmp_path):
    for name in ("plain", "a.GZ", "b.gz"):
        (tmp_path / name).write_bytes(gzip.compress(TEXT.encode()))
        corpus = read_text(str(tmp_path / name), str(tmp_path / name))
        assert list(corpus.sources()) == TEXT.splitlines()


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (TEXT.encode() * 100 + b"a\0b\n", 201),
        (TEXT.encode("utf-16-le"), 1),
        (JAPANESE.encode("utf-16-be"), 1),
        (TEXT.encode("utf-32-le"), 1),
    ],
)
def test_nul_bytes_raise(tmp_path, content, line):
    (tmp_path / "nul").write_bytes(content)
    message = rf"Expected UTF-8 text in .*/nul. Received: a NUL byte in line {line}, as in UTF-16"
    with pytest.raises(ValueError, match=message):
        read_text(str(tmp_path / "nul"), str(tmp_path / "nul"))
