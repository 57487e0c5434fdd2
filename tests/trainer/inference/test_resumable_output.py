import hashlib
import json

import pytest

from trainer.inference import resumable_output as module
from trainer.inference.resumable_output import HashedLines, resumable_output

SETTINGS = {"beam_size": 4, "alpha": None}
TEXT = [b"one\n", b"two\r\n", b"three\n", b"four\n", b"five"]


class Interrupted(Exception):
    pass


@pytest.fixture(autouse=True)
def _record_without_delay(monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_ENTRIES", 0.0)


def write(paths, text, stop_before=None, settings=SETTINGS, window=2, **options):
    """Writes each line once to the first file and twice to the second, and records each window.

    Returns the number of lines that earlier calls have written.
    """
    lines = HashedLines(text)
    with resumable_output(paths, settings, lines, **options) as output:
        for number, line in enumerate(lines, start=output.lines_done + 1):
            if number == stop_before:
                raise Interrupted
            for times, file in enumerate(output.files, start=1):
                file.write(line * times + b"\n")
            if number % window == 0:
                output.record_progress(number, lines.digest())
    return output.lines_done


def test_digest_includes_line_ends():
    lines = HashedLines([b"ein\n", b"Hund"])
    assert list(lines) == [b"ein", b"Hund"]
    assert lines.digest() == hashlib.sha256(b"ein\nHund").hexdigest()


def interrupt(*arguments, **options):
    with pytest.raises(Interrupted):
        write(*arguments, **options)


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_resume_continues_after_the_last_window(tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    paths[0].write_text("of an earlier run\n")
    interrupt(paths, TEXT, stop_before=4)
    assert names(tmp_path) == ["a", "a.partial", "a.partial.log", "b.partial"]
    assert paths[0].read_text() == "of an earlier run\n"
    assert write(paths, TEXT) == 2
    assert names(tmp_path) == ["a", "b"]
    assert paths[0].read_bytes() == b"one\ntwo\nthree\nfour\nfive\n"
    assert paths[1].read_bytes() == b"oneone\ntwotwo\nthreethree\nfourfour\nfivefive\n"
    assert write(paths, TEXT[:1]) == 0
    assert paths[0].read_bytes() == b"one\n"


def test_resume_accepts_additional_input_lines(tmp_path):
    interrupt([tmp_path / "a"], TEXT[:4], stop_before=3)
    assert write([tmp_path / "a"], TEXT) == 2
    assert (tmp_path / "a").read_bytes().count(b"\n") == 5


def test_resume_rewrites_incomplete_lines(tmp_path):
    interrupt([tmp_path / "a"], TEXT, stop_before=3)
    with open(tmp_path / "a.partial", "ab") as file:
        file.write(b"thr")
    with open(tmp_path / "a.partial.log", "ab") as file:
        file.write(b'{"lines": 4, "dig')
    interrupt([tmp_path / "a"], TEXT, stop_before=5)
    assert [
        json.loads(line).get("lines")
        for line in (tmp_path / "a.partial.log").read_text().splitlines()
    ] == [None, 2, 4]
    assert write([tmp_path / "a"], TEXT) == 4
    assert (tmp_path / "a").read_bytes() == b"one\ntwo\nthree\nfour\nfive\n"


@pytest.mark.parametrize("change", ["short file", "missing file", "empty log", "fewer files"])
def test_unusable_partial_files_are_overwritten(change, tmp_path):
    paths = [tmp_path / "a", tmp_path / "b"]
    interrupt(paths, TEXT, stop_before=4)
    if change == "short file":
        (tmp_path / "b.partial").write_bytes(b"oneone\n")
    elif change == "missing file":
        (tmp_path / "a.partial").unlink()
    elif change == "empty log":
        (tmp_path / "a.partial.log").write_bytes(b"")
    else:
        paths = paths[:1]
    assert write(paths, TEXT) == 0
    assert paths[0].read_bytes() == b"one\ntwo\nthree\nfour\nfive\n"


def test_failure_before_the_first_window_leaves_no_partial_files(tmp_path):
    (tmp_path / "a").write_text("of an earlier run\n")
    interrupt([tmp_path / "a"], TEXT, stop_before=2)
    assert names(tmp_path) == ["a"] and (tmp_path / "a").read_text() == "of an earlier run\n"


def test_failure_of_a_resumed_run_keeps_partial_files(tmp_path):
    interrupt([tmp_path / "a"], TEXT, stop_before=3)
    interrupt([tmp_path / "a"], TEXT, stop_before=3)
    assert write([tmp_path / "a"], TEXT) == 2


def test_resume_with_other_settings_raises(tmp_path):
    interrupt([tmp_path / "a"], TEXT, stop_before=3)
    message = (
        r"Expected the options of the interrupted run that wrote .*/a\.partial: beam_size=4\. "
        r"Received: beam_size=2\. Use the same options to resume, or --noresume to start over\."
    )
    with pytest.raises(ValueError, match=message):
        write([tmp_path / "a"], TEXT, settings=SETTINGS | {"beam_size": 2})
    assert write([tmp_path / "a"], TEXT) == 2


@pytest.mark.parametrize(
    ("text", "received"),
    [
        ([b"one\n", b"2\n", *TEXT[2:]], "different lines"),
        (TEXT[:1], "an input of 1 lines"),
        ([], "an input of 0 lines"),
    ],
)
def test_resume_with_another_input_raises(text, received, tmp_path):
    interrupt([tmp_path / "a"], TEXT, stop_before=4)
    message = (
        r"Expected an input that starts with the 2 lines whose translations are in .*/a\.partial\. "
        rf"Received: {received}\. Use the same input to resume, or"
    )
    with pytest.raises(ValueError, match=message):
        write([tmp_path / "a"], text)
    assert write([tmp_path / "a"], text, resume=False) == 0
    assert (tmp_path / "a").read_bytes().count(b"\n") == len(text)


def test_two_writers_of_one_file_raise(tmp_path):
    message = (
        "Expected an --output that no other process is writing. Received: .*/a. Choose another one."
    )
    with resumable_output([tmp_path / "a"], SETTINGS, HashedLines([])) as output:
        with pytest.raises(ValueError, match=message):
            write([tmp_path / "a"], TEXT)
        output.files[0].write(b"mine\n")
    assert (tmp_path / "a").read_bytes() == b"mine\n"


def test_output_through_a_symbolic_link_keeps_the_link(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "folder/a")
    write([tmp_path / "link"], TEXT[:1])
    assert (tmp_path / "link").is_symlink() and (tmp_path / "folder/a").read_bytes() == b"one\n"


def test_log_entries_are_at_least_one_second_apart(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SECONDS_BETWEEN_ENTRIES", 1.0)
    now = iter([7.0, 7.0, 7.5, 8.25, 8.25, 9.0])
    monkeypatch.setattr(module.time, "monotonic", lambda: next(now))
    with (
        pytest.raises(Interrupted),
        resumable_output([tmp_path / "a"], SETTINGS, HashedLines([])) as output,
    ):
        for number in (2, 4, 6, 8):
            output.record_progress(number, "")
        raise Interrupted
    assert [
        json.loads(line).get("lines")
        for line in (tmp_path / "a.partial.log").read_text().splitlines()
    ] == [None, 2, 6]
