"""Tests of a full disk during training: the error, the remaining files, and resumption."""

import shutil
import subprocess

import pytest
from comparisons import assert_all_equal

from trainer.model_dir import ModelDirectory
from trainer.training.checkpoints import Checkpoints, read_weights

PAGE = 4096


class SmallDisk:
    """A file system whose free space can be set."""

    def __init__(self, path):
        self.path = path
        path.mkdir()
        if not shutil.which("mount"):
            pytest.skip("No file system can be mounted here: the program mount is missing.")
        mounted = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", str(path)],
            capture_output=True,
            text=True,
        )
        if mounted.returncode:
            pytest.skip(f"No file system can be mounted here: {mounted.stderr.strip()}")
        # Reserve a page, because a tmpfs of size 0 has no limit.
        (path / "occupied").write_bytes(bytes(PAGE))

    def leave(self, free):
        """Changes the size, so that `free` bytes are available."""
        size = shutil.disk_usage(self.path).used + free
        subprocess.run(["mount", "-o", f"remount,size={size}", str(self.path)], check=True)

    def unmount(self):
        subprocess.run(["umount", "--lazy", str(self.path)], check=True)


@pytest.fixture(scope="module")
def disk(tmp_path_factory):
    made = SmallDisk(tmp_path_factory.mktemp("disk") / "small")
    yield made
    made.unmount()


def entries(directory):
    return sorted(entry.name for entry in directory.rglob("*") if "logs" not in entry.parts)


@pytest.mark.slow
def test_full_disk_exits_and_the_run_resumes(disk, small_run, monkeypatch):
    """The disk is full while model.keras or a checkpoint is written, or when the run starts."""
    directory = disk.path / "model"
    small_run(directory, train_steps=2)
    before, names = read_weights(directory / "checkpoints" / "step-000002"), entries(directory)
    for pages, expected in (
        (20, "Can't write {}/model.keras: "),
        (12, "Can't write {}/checkpoints/step-000004: "),
        (0, "Expected a model directory that can be written. Received: {} "),
    ):
        with monkeypatch.context() as patched:
            if "checkpoints" in expected:
                patched.setattr(ModelDirectory, "save_model", lambda *arguments: None)
            disk.leave(pages * PAGE)
            message = small_run.fails(directory, train_steps=4)
        assert message.startswith(f"trainer.train: {expected.format(directory)}")
        assert "No space left on device" in message
        assert pages == 0 or "to resume from step 2." in message
        # The previous checkpoint is unchanged, and there are no temporary files.
        assert_all_equal(
            read_weights(directory / "checkpoints" / "step-000002").values(), before.values()
        )
        assert entries(directory) == names
    disk.leave(64 << 20)
    small_run(directory, train_steps=4)
    assert Checkpoints(directory / "checkpoints").steps() == [2, 4]


@pytest.mark.slow
def test_full_disk_of_logs_does_not_stop_training(disk, small_run, tmp_path, caplog):
    disk.leave(64 << 20)
    (disk.path / "logs").mkdir()
    (tmp_path / "logs").symlink_to(disk.path / "logs")
    disk.leave(0)
    small_run(tmp_path, train_steps=2)
    warnings = [record.message for record in caplog.records if "TensorBoard" in record.message]
    assert len(warnings) == 1
    assert (
        f"Can't write TensorBoard logs to {tmp_path / 'logs'}. Training continues without them: "
        in warnings[0]
        and "No space left on device" in warnings[0]
    )
    assert Checkpoints(tmp_path / "checkpoints").steps() == [2]
