import os
import time

import pytest

from trainer import atomic_files


def names(directory):
    return sorted(entry.name for entry in directory.iterdir())


def test_atomic_file_appears_when_the_block_ends(tmp_path):
    with atomic_files.atomic_file(tmp_path / "a.keras") as temporary:
        assert temporary.suffix == ".keras" and temporary.parent.parent == tmp_path
        temporary.write_text("new")
        assert not (tmp_path / "a.keras").exists()
    assert (tmp_path / "a.keras").read_text() == "new"
    assert names(tmp_path) == ["a.keras"]


def test_atomic_file_is_unchanged_after_an_error(tmp_path):
    (tmp_path / "a").write_text("old")
    with (
        pytest.raises(RuntimeError, match="stop"),
        atomic_files.atomic_file(tmp_path / "a") as temporary,
    ):
        temporary.write_text("new")
        raise RuntimeError("stop")
    assert (tmp_path / "a").read_text() == "old"
    assert names(tmp_path) == ["a"]


def test_write_text_replaces_a_file(tmp_path):
    for text in ("old", "größer"):
        atomic_files.write_text(tmp_path / "a", text)
    assert (tmp_path / "a").read_bytes() == "größer".encode()


def test_atomic_directory_replaces_a_directory_when_the_block_ends(tmp_path):
    for content in ("old", "new"):
        with atomic_files.atomic_directory(tmp_path / "sub" / "d") as temporary:
            (temporary / content).mkdir()
            (temporary / content / "file").write_text(content)
    assert names(tmp_path / "sub") == ["d"]
    assert names(tmp_path / "sub" / "d") == ["new"]
    assert (tmp_path / "sub" / "d").stat().st_mode & 0o777 == 0o755


def test_atomic_directory_is_unchanged_after_an_error(tmp_path):
    (tmp_path / "d").mkdir()
    with (
        pytest.raises(RuntimeError, match="stop"),
        atomic_files.atomic_directory(tmp_path / "d") as temporary,
    ):
        (temporary / "file").write_text("new")
        raise RuntimeError("stop")
    assert names(tmp_path) == ["d"] and names(tmp_path / "d") == []


def test_remove_directory_removes_the_content(tmp_path):
    (tmp_path / "d" / "e").mkdir(parents=True)
    atomic_files.remove_directory(tmp_path / "d")
    assert names(tmp_path) == []


def test_remove_leftovers_keeps_other_entries(tmp_path):
    for name in (".writing-a-x", "writing", ".other"):
        (tmp_path / name).mkdir()
    atomic_files.remove_leftovers(tmp_path)
    assert names(tmp_path) == [".other", "writing"]


def test_write_errors_of_a_full_disk_are_short():
    message = r"Received: f \(No space left on device\). Free space.$"
    with (
        pytest.raises(ValueError, match=message),
        atomic_files.explaining_write_errors("a file", "f", "Free space.", RuntimeError),
    ):
        raise RuntimeError("{{function_node SaveV2}} f; No space left on device [Op:SaveV2]")


def test_temporary_directories_of_killed_processes_are_removed_after_a_day(tmp_path):
    for name, hours in ((".writing-d-old", 25), (".writing-d-new", 23), (".writing-e-old", 25)):
        (tmp_path / name).mkdir()
        seconds = time.time() - hours * 3600
        os.utime(tmp_path / name, (seconds, seconds))
    with atomic_files.atomic_directory(tmp_path / "d"):
        pass
    assert names(tmp_path) == [".writing-d-new", ".writing-e-old", "d"]


def test_write_errors_name_the_file_and_not_the_temporary_one(tmp_path):
    with (
        pytest.raises(OSError, match="the disk is full") as raised,
        atomic_files.atomic_file(tmp_path / "a"),
    ):
        raise OSError("the disk is full")
    assert raised.value.filename == str(tmp_path / "a")
    with pytest.raises(FileNotFoundError) as raised, atomic_files.atomic_file(tmp_path / "b" / "c"):
        pass
    assert raised.value.filename == str(tmp_path / "b" / "c")
