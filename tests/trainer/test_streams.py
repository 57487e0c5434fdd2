import errno
import gzip
import io
import os

import pytest

from trainer import streams


@pytest.mark.parametrize(
    ("text", "count"), [(b"", 0), (b"\n", 1), (b"a", 1), (b"a\nb", 2), (b"a\n\nb\n", 3)]
)
def test_count_lines_starts_at_the_current_position(text, count):
    file = io.BytesIO(b"before\n" + text)
    file.readline()
    assert streams.count_lines(file) == count
    assert file.tell() == 7


def test_count_lines_of_a_pipe_returns_none():
    read, write = os.pipe()
    os.close(write)
    with open(read, "rb") as file:
        assert streams.count_lines(file) is None


def test_check_files_rejects_equal_files_and_ignores_devices(tmp_path):
    streams.check_files({"output": "/dev/null", "tokens": "/dev/null"})
    same = {"output": f"{tmp_path}/file", "tokens": f"{tmp_path}/./file"}
    message = "Expected --tokens and --output to be different files. Received: .*/file for both."
    with pytest.raises(ValueError, match=message):
        streams.check_files(same)
    message = "Expected --output without .gz, because outputs are plain text. Received: out.gz."
    with pytest.raises(ValueError, match=message):
        streams.check_files({"input": "in.gz", "output": "out.gz"})
    (tmp_path / "in").write_text("a\n")
    (tmp_path / "link").symlink_to(tmp_path / "in")
    with pytest.raises(ValueError, match="Expected --output and --input to be different"):
        streams.check_files({"input": f"{tmp_path}/in", "output": f"{tmp_path}/link"})


@pytest.mark.parametrize(
    ("start", "message"),
    [
        (gzip.compress(b"a", mtime=0), "Received: a gzip file. Convert it with: gunzip"),
        ("a\n".encode("utf-16"), "Expected UTF-8 text in the standard input. Received: UTF-16."),
    ],
)
def test_lines_of_other_formats_raise(start, message):
    with pytest.raises(ValueError, match=message):
        list(streams.lines(io.BytesIO(start), "-"))


def test_errors_of_reading_name_the_input():
    def read():
        yield b"a\n"
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    for path, name in (("-", "the standard input"), ("in", "in")):
        with pytest.raises(OSError, match="Input/output error") as caught:
            list(streams.lines(read(), path))
        assert caught.value.filename == name
