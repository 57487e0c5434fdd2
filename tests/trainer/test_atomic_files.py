import errno
import os
import threading
import time
from pathlib import Path

import pytest

from trainer import atomic_files


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def write_bytes(path, text):
    with atomic_files.output_file(path) as file:
        file.write(text.encode())


WRITERS = {"text": atomic_files.write_text, "bytes": write_bytes}
each_writer = pytest.mark.parametrize("write", WRITERS.values(), ids=WRITERS)


def test_atomic_file_appears_when_the_block_ends(tmp_path):
    for text in ("old", "größer"):
        with atomic_files.atomic_file(tmp_path / "a.keras") as temporary:
            assert temporary.suffix == ".keras" and temporary.parent.parent == tmp_path
            temporary.write_text(text)
            assert text == "größer" or not (tmp_path / "a.keras").exists()
        assert (tmp_path / "a.keras").read_text() == text
    assert names(tmp_path) == ["a.keras"]


@pytest.mark.parametrize("write", [atomic_files.atomic_file, atomic_files.output_file])
def test_file_is_unchanged_after_an_error(tmp_path, write):
    (tmp_path / "a").write_text("old")
    with pytest.raises(OSError, match="full") as raised, write(tmp_path / "a") as given:
        given.write_bytes(b"new") if isinstance(given, Path) else given.write(b"new")
        raise OSError("the disk is full")
    assert raised.value.filename == str(tmp_path / "a")
    with pytest.raises(OSError, match="unread") as raised, write(tmp_path / "a"):
        raise OSError(errno.EIO, "unread", "the input")
    assert raised.value.filename == "the input"
    assert (tmp_path / "a").read_text() == "old" and names(tmp_path) == ["a"]
    with pytest.raises(FileNotFoundError) as raised, write(tmp_path / "b" / "c"):
        pass
    assert raised.value.filename == str(tmp_path / "b" / "c")


def test_directory_appears_when_the_block_ends(tmp_path):
    for content in ("old", "new"):
        with atomic_files.atomic_directory(tmp_path / "sub" / "d") as temporary:
            (temporary / content).mkdir()
            (temporary / content / "file").write_text(content)
    assert names(tmp_path / "sub") == ["d"] and names(tmp_path / "sub" / "d") == ["new"]
    assert (tmp_path / "sub" / "d").stat().st_mode & 0o777 == 0o755
    atomic_files.remove_directory(tmp_path / "sub" / "d")
    assert names(tmp_path / "sub") == []


def test_directory_is_unchanged_after_an_error(tmp_path):
    (tmp_path / "d").mkdir()
    with pytest.raises(OSError, match="No such") as raised:
        with atomic_files.atomic_directory(tmp_path / "d") as temporary:
            (temporary / "file").write_text("new")
            (tmp_path / "source").read_text()
    assert raised.value.filename == str(tmp_path / "source")
    assert names(tmp_path) == ["d"] and names(tmp_path / "d") == []


def test_directory_is_replaced_through_a_link(tmp_path):
    (tmp_path / "d").mkdir()
    (tmp_path / "link").symlink_to("d")
    (tmp_path / "file").touch()
    with atomic_files.atomic_directory(tmp_path / "link") as temporary:
        (temporary / "new").touch()
    assert (tmp_path / "link").is_symlink() and names(tmp_path / "d") == ["new"]
    with pytest.raises(NotADirectoryError), atomic_files.atomic_directory(tmp_path / "file"):
        pass
    assert names(tmp_path) == ["d", "file", "link"]


def test_temporary_directories_of_killed_processes_are_removed_after_a_day(tmp_path):
    """The time of a directory is that of its last new entry, not of what is written to it."""
    for name, hours in (("d-dead", 25), ("d-alive", 1), ("e-dead", 25)):
        folder = tmp_path / f".writing-{name}"
        folder.mkdir()
        (folder / "d").touch()
        for path, age in ((folder / "d", hours), (folder, 25)):
            os.utime(path, (time.time() - age * 3600,) * 2)
    atomic_files.write_text(tmp_path / "d", "text")
    assert names(tmp_path) == [".writing-d-alive", ".writing-e-dead", "d"]
    (tmp_path / ".other").mkdir()
    atomic_files.remove_leftovers(tmp_path)
    assert names(tmp_path) == [".other", "d"]


@each_writer
@pytest.mark.parametrize("target", ["folder/file", "new", "link to folder/file"])
def test_files_are_written_through_links(tmp_path, write, target):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")
    (tmp_path / "link to folder").symlink_to(tmp_path / "folder")
    (tmp_path / "first").symlink_to(target)  # relative to the link
    (tmp_path / "second").symlink_to(tmp_path / "first")
    write(tmp_path / "second", "new")
    assert (tmp_path / "second").is_symlink() and (tmp_path / "first").is_symlink()
    assert (tmp_path / target).read_text() == "new"


@each_writer
@pytest.mark.parametrize("folder", ["/proc/self/fd", "/dev/fd"])
def test_descriptors_are_written_at_their_position(tmp_path, write, folder):
    """As with /dev/stdout, and the standard output appended to a log."""
    with open(tmp_path / "log", "w") as log:
        log.write("before\n")
        log.flush()
        path = f"{folder}/{log.fileno()}"
        atomic_files.check_writable(path)
        write(path, "text\n")
        log.write("after\n")
    assert (tmp_path / "log").read_text() == "before\ntext\nafter\n"


@each_writer
def test_pipes_are_written(tmp_path, write):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    atomic_files.check_writable(tmp_path / "link")  # must not open the pipe
    write(tmp_path / "link", "text")
    reader.join(10)
    assert received == ["text"] and (tmp_path / "pipe").is_fifo()


def test_pipe_receives_data_when_it_is_flushed(tmp_path):
    reader, writer = os.pipe()
    with atomic_files.output_file(f"/proc/self/fd/{writer}") as file:
        file.write(b"one")
        file.flush()
        assert os.read(reader, 9) == b"one"
    os.close(reader)
    os.close(writer)


def test_streams_are_recognized_by_name():
    """Links in /dev may be missing. None of these paths is opened."""
    for path in ("/dev/stdout", "/dev/stderr", "/dev/fd/1", "/proc/self/fd/1"):
        assert atomic_files.is_stream(path)
    assert atomic_files.is_stream("/dev/null") and not atomic_files.is_stream(__file__)


@pytest.mark.parametrize("state", ["closed", "read-only"])
def test_descriptors_that_can_not_be_written_raise(tmp_path, state):
    (tmp_path / "file").touch()
    with open(tmp_path / "file") as file:
        path = f"/proc/self/fd/{file.fileno()}"
        if state == "closed":
            file.close()
        with pytest.raises(OSError, match="Bad file descriptor"):
            write_bytes(path, "text")


def test_mount_points_are_written_in_place(tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    (tmp_path / "mounted").write_text("old")
    monkeypatch.setattr(os, "replace", refuse)
    atomic_files.write_text(tmp_path / "mounted", "new")
    assert (tmp_path / "mounted").read_text() == "new"


def test_longest_names_are_written(tmp_path):
    path = Path(tmp_path, "ä" * 127)
    atomic_files.write_text(path, "text")
    assert names(tmp_path) == [path.name]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device")
def test_errors_of_an_output_file_name_it():
    with pytest.raises(OSError, match="No space left") as caught:
        with atomic_files.output_file("/dev/full") as file:
            file.write(b"line\n" * 10**5)
    assert caught.value.filename == "/dev/full"
