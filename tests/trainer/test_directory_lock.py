import errno
import shutil

import filelock
import pytest

from trainer.model_dir import ModelDirectory


@pytest.mark.parametrize(
    "change", ["none", "deleted", "written", "replaced by another run", "replaced by a file"]
)
def test_unlock_removes_an_empty_directory_that_no_other_run_uses(tmp_path, change):
    directory = ModelDirectory.create(tmp_path / "run", lock=True)
    path, other = directory.path, None
    if change == "written":
        directory.config_file.touch()
    elif change != "none":
        shutil.rmtree(path)
    if change == "replaced by another run":
        other = ModelDirectory.create(path, lock=True)
    elif change == "replaced by a file":
        path.touch()
    directory.unlock()
    if other is not None:
        assert [file.name for file in path.iterdir()] == [".lock"]
        with pytest.raises(ValueError, match="that no other process is using"):
            ModelDirectory.create(path, lock=True)
        other.unlock()
    assert path.exists() == change.startswith(("written", "replaced by a file"))


@pytest.mark.parametrize("number", [errno.ENOLCK, errno.EOPNOTSUPP])
def test_file_systems_without_locks_are_used(tmp_path, monkeypatch, caplog, number):
    def refuse(lock):
        raise OSError(number, "No locks available")

    monkeypatch.setattr(filelock.FileLock, "acquire", refuse)
    ModelDirectory.create(tmp_path, lock=True).unlock()
    assert f"{tmp_path} can't be locked: No locks available" in caplog.text
