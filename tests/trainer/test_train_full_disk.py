"""Tests of a full disk during training: the error, the remaining files, and resumption."""

import shutil
import subprocess

import pytest
from comparisons import assert_all_equal

from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints, read_weights

PAGE = 4096


@pytest.fixture
def disk(tmp_path):
    """Returns the path of a small file system, or skips the test."""
    path = tmp_path / "small"
    path.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)]
    try:
        subprocess.run(mount, capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"No file system can be mounted here: {getattr(error, 'stderr', error)}")
    # Reserve a page, because a tmpfs of size 0 has no limit.
    (path / "occupied").write_bytes(bytes(PAGE))
    yield path
    subprocess.run(["umount", "--lazy", str(path)], check=True)


def leave(disk, free):
    """Changes the size of a file system, so that `free` bytes are available."""
    size = shutil.disk_usage(disk).used + free
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True)


def entries(directory):
    return sorted(entry.name for entry in directory.rglob("*") if "logs" not in entry.parts)


@pytest.mark.slow
def test_full_disk_exits_and_the_run_resumes(disk, small_run, monkeypatch):
    """The disk is full while model.keras or a checkpoint is written, or when the run starts."""
    directory = disk / "model"
    small_run(directory, train_steps=2)
    before, names = read_weights(directory / "checkpoints" / "step-000002"), entries(directory)
    for pages, expected in (
        (20, "Expected a file that can be read or written. Received: {}/model.keras "),
        (12, "Expected a file that can be read or written. Received: {}/checkpoints/step-000004 "),
        (0, "Expected a model directory that can be written. Received: {} "),
    ):
        with monkeypatch.context() as patched:
            if "checkpoints" in expected:
                patched.setattr(ModelDirectory, "save_model", lambda *arguments: None)
            leave(disk, pages * PAGE)
            message = small_run.fails(directory, train_steps=4)
        assert message.startswith(f"trainer.train: {expected.format(directory)}")
        assert "No space left on device" in message
        assert pages == 0 or "to resume from step 2." in message
        # The previous checkpoint is unchanged, and there are no temporary files.
        after = read_weights(directory / "checkpoints" / "step-000002")
        assert_all_equal(after.values(), before.values())
        assert entries(directory) == names
    leave(disk, 64 << 20)
    small_run(directory, train_steps=4)
    assert Checkpoints(directory / "checkpoints").steps() == [2, 4]


@pytest.mark.slow
def test_full_disk_of_logs_does_not_stop_training(disk, small_run, tmp_path, caplog):
    (disk / "logs").mkdir()
    (tmp_path / "logs").symlink_to(disk / "logs")
    leave(disk, 0)
    small_run(tmp_path, train_steps=2)
    (warning,) = [record.message for record in caplog.records if "TensorBoard" in record.message]
    logs = tmp_path / "logs"
    assert f"Can't write TensorBoard logs to {logs}. Training continues without them: " in warning
    assert "No space left on device" in warning
    assert Checkpoints(tmp_path / "checkpoints").steps() == [2]
