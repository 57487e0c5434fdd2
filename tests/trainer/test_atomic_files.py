"""Tests of files and directories that appear when they are complete."""

import contextlib
import errno
import os
import threading
from pathlib import Path

import pytest

from trainer import atomic_files


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


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


def test_files_are_flushed_before_they_are_renamed(tmp_path, monkeypatch):
    calls = []
    flush, replace, rename = os.fsync, os.replace, Path.rename

    def record(call, name_of):
        def recorded(*arguments):
            calls.append(name_of(*arguments))
            return call(*arguments)

        return recorded

    monkeypatch.setattr(os, "fsync", record(flush, lambda d: os.path.basename(_path(d))))
    monkeypatch.setattr(os, "replace", record(replace, lambda *_: "replace"))
    monkeypatch.setattr(Path, "rename", record(rename, lambda *_: "rename"))
    atomic_files.write_text(tmp_path / "a", "text")
    assert calls == ["a", "replace", tmp_path.name]
    calls.clear()
    with atomic_files.atomic_directory(tmp_path / "d") as temporary:
        (temporary / "file").touch()
    assert calls == ["file", "new", "rename", tmp_path.name]


def _path(descriptor):
    return os.readlink(f"/proc/self/fd/{descriptor}")


@pytest.mark.parametrize("target", ["folder/file", "new", "link to folder/file"])
def test_files_are_written_through_links(tmp_path, target):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / "file").write_text("old")
    (tmp_path / "link to folder").symlink_to(tmp_path / "folder")
    (tmp_path / "first").symlink_to(target)  # relative to the link
    (tmp_path / "second").symlink_to(tmp_path / "first")
    atomic_files.write_text(tmp_path / "second", "new")
    assert (tmp_path / "second").is_symlink() and (tmp_path / "first").is_symlink()
    assert (tmp_path / target).read_text() == "new"


@pytest.mark.parametrize("path", ["-", "/dev/stdout"])
def test_standard_output_is_written_at_its_position(tmp_path, path):
    """As with a standard output that is appended to a log."""
    with open(tmp_path / "log", "w") as log, contextlib.redirect_stdout(log):
        print("before")
        atomic_files.check_writable(path)
        atomic_files.write_text(path, "text\n")
        print("after")
    assert (tmp_path / "log").read_text() == "before\ntext\nafter\n"


def test_pipes_are_written(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "link").symlink_to("pipe")
    received = []
    reader = threading.Thread(target=lambda: received.append((tmp_path / "pipe").read_text()))
    reader.start()
    atomic_files.check_writable(tmp_path / "link")  # must not open the pipe
    atomic_files.write_text(tmp_path / "link", "text")
    reader.join(10)
    assert received == ["text"] and (tmp_path / "pipe").is_fifo()


def test_mount_points_are_written_in_place(tmp_path, monkeypatch):
    def refuse(*paths):
        raise OSError(errno.EBUSY, os.strerror(errno.EBUSY))

    (tmp_path / "mounted").write_text("old")
    monkeypatch.setattr(os, "replace", refuse)
    atomic_files.write_text(tmp_path / "mounted", "new")
    assert (tmp_path / "mounted").read_text() == "new"


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no full device")
def test_errors_of_an_output_file_name_it():
    with pytest.raises(OSError, match="No space left") as caught:
        with atomic_files.output_file("/dev/full") as file:
            file.write(b"line\n" * 10**5)
    assert caught.value.filename == "/dev/full"
