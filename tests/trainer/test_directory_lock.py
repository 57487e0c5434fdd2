import os
import shutil

import pytest

from trainer.model_dir import DirectoryLock


@pytest.mark.parametrize("change", ["deleted", "replaced by another run", "replaced by a file"])
def test_release_of_a_deleted_directory_does_not_raise(tmp_path, change):
    directory = tmp_path / "run"
    directory.mkdir()
    lock = DirectoryLock(directory)
    shutil.rmtree(directory)
    if change == "replaced by another run":
        directory.mkdir()
        other = DirectoryLock(directory)
    elif change == "replaced by a file":
        directory.touch()
    lock.release()
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(lock._descriptor)
    if change == "replaced by another run":
        assert (directory / ".lock").exists()
        other.release()
        assert not directory.exists()
