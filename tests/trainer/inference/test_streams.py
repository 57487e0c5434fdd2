import io
import os

import pytest

from trainer.inference import streams


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


def test_only_regular_and_new_files_can_be_renamed(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "file").touch()
    expected = {
        "-": False,
        "/dev/null": False,
        tmp_path: False,
        tmp_path / "pipe": False,
        tmp_path / "file": True,
        tmp_path / "new": True,
    }
    assert {path: streams.can_be_renamed(path) for path in expected} == expected


def test_check_files_rejects_equal_files_and_ignores_devices(tmp_path):
    streams.check_files({"output": "/dev/null", "tokens": "/dev/null"})
    same = {"output": f"{tmp_path}/file", "tokens": f"{tmp_path}/./file"}
    message = "Expected --tokens and --output to be different files. Received: .*/file for both."
    with pytest.raises(ValueError, match=message):
        streams.check_files(same)
    message = "Expected --output without .gz, because outputs are plain text. Received: out.gz."
    with pytest.raises(ValueError, match=message):
        streams.check_files({"input": "in.gz", "output": "out.gz"})
