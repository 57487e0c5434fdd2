"""Tests of files that are not plain UTF-8 text."""

import bz2
import gzip
import io
import lzma
import tarfile

import pytest

from trainer.data.text_files import check_format, read_text

TEXT = "A dog runs.\nEin Hund läuft.\n"
JAPANESE = "犬が走っています。\n猫は眠っています。\n" * 3


@pytest.mark.parametrize("text", ["", "a", TEXT, JAPANESE, "\ufeffa\n", "a\0b\n" + TEXT * 9])
def test_text_in_utf_8_and_in_8_bits_passes(text):
    check_format(text.encode(), "file")
    check_format(text.encode("latin-1", errors="ignore"), "file")


def tar_archive():
    """Returns a tar archive with a text file."""
    file = io.BytesIO()
    with tarfile.open(fileobj=file, mode="w") as archive:
        entry = tarfile.TarInfo("text")
        entry.size = len(TEXT.encode())
        archive.addfile(entry, io.BytesIO(TEXT.encode()))
    return file.getvalue()


@pytest.mark.parametrize(
    ("start", "received"),
    [
        pytest.param(
            tar_archive(), "a tar archive. Convert it: tar -xOf 'my file' > 'my file'.txt", id="tar"
        ),
        (
            gzip.compress(b"a", mtime=0),
            "a gzip file. Convert it: gunzip < 'my file' > 'my file'.txt",
        ),
        (bz2.compress(b"a"), "a bzip2 file. Convert it: bunzip2 < "),
        (lzma.compress(b"a"), "an xz file. Convert it: xz -dc "),
        (b"\x28\xb5\x2f\xfd\x04", "a zstd file. Convert it: zstd -dc "),
        (b"PK\x03\x04\x14", "a zip file. Convert it: unzip -p "),
    ],
)
def test_compressed_files_raise(start, received):
    with pytest.raises(ValueError, match=f"Expected text in my file. Received: {received}"):
        check_format(start, "my file")


@pytest.mark.parametrize("text", [TEXT, JAPANESE, "a\n"])
@pytest.mark.parametrize(
    ("encoding", "name"),
    [
        ("utf-16", "UTF-16"),
        ("utf-16-le", "UTF-16LE"),
        ("utf-16-be", "UTF-16BE"),
        ("utf-32", "UTF-32"),
        ("utf-32-le", "UTF-32LE"),
        ("utf-32-be", "UTF-32BE"),
    ],
)
def test_wide_encodings_raise(text, encoding, name):
    command = f"iconv -f {name} -t UTF-8 file > file.utf8"
    message = f"Expected UTF-8 in file. Received: {name}. Convert it: {command}"
    with pytest.raises(ValueError, match=message):
        check_format(text.encode(encoding), "file")


def test_gzip_files_are_read_whatever_their_name(tmp_path):
    for name in ("plain", "a.GZ", "b.gz"):
        (tmp_path / name).write_bytes(gzip.compress(TEXT.encode()))
        corpus = read_text(str(tmp_path / name), str(tmp_path / name))
        assert list(corpus.sources()) == TEXT.splitlines()
    (tmp_path / "my text").write_bytes(gzip.compress(TEXT.encode("latin-1")))
    file = f"'{tmp_path}/my text'"
    command = f"gunzip < {file} > {file}.txt && iconv -f ISO-8859-1 -t UTF-8 {file}.txt > "
    with pytest.raises(ValueError, match=command):
        read_text(str(tmp_path / "my text"), str(tmp_path / "b.gz"))


def test_nul_bytes_raise(tmp_path):
    (tmp_path / "nul").write_bytes(TEXT.encode() * 100 + b"a\0b\n")
    message = r"Expected text in .*/nul. Received: a NUL byte in line 201. Remove it: tr -d '\\0' <"
    with pytest.raises(ValueError, match=message):
        read_text(str(tmp_path / "nul"), str(tmp_path / "nul"))


def test_compressed_tar_archives_raise(tmp_path):
    (tmp_path / "a.tar.gz").write_bytes(gzip.compress(tar_archive()))
    with pytest.raises(ValueError, match="Received: a tar archive. Convert it: tar -xOf "):
        read_text(str(tmp_path / "a.tar.gz"), str(tmp_path / "a.tar.gz"))
