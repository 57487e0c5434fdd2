"""One row of a table with one seed: trained, and the dev and test sets translated, by processes that may be killed at any time.

A trial's folder holds its model directory, `model`, the translations of each split, and how long it has trained. What is there is not done
again; a training that was stopped is gone on with by `trainer.train` itself.
"""

import collections
import contextlib
import dataclasses
import fcntl
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from examples.paper_tables.datasets import Sentences
from examples.paper_tables.variants import Row
from trainer import atomic_files
from trainer.training.checkpoints import Checkpoints

# How much of the training time may be missing from the table after a kill.
_NOTED_EVERY = 10.0


class TrialError(Exception):
    """A trial can't go on; where a process failed, the message has its last lines."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """One row with one seed.

    Args:
        row: what is trained.
        seed: of its weights, its dropout and the order of its data.
        settings: of `trainer.train`, the same for all rows; `train_steps` among them.
        sentences: what it is trained and tested on.
        parent: folder of all trials.
    """

    row: Row
    seed: int
    settings: dict[str, str | int | float | bool]
    sentences: Sentences
    parent: Path

    @property
    def folder(self) -> Path:
        """Where it is."""
        return self.parent / f"{self.row.name}-seed={self.seed}"

    @property
    def model_dir(self) -> Path:
        """The model directory."""
        return self.folder / "model"

    @property
    def seconds(self) -> float:
        """How long it has trained, over all processes that did."""
        return (
            json.loads(self._time_file.read_text())["seconds"] if self._time_file.is_file() else 0.0
        )

    def translations(self, split: str) -> Path:
        """The file of a split's translations, which is there once they are made."""
        return self.folder / f"{split}.step-{self.settings['train_steps']}.txt"

    @property
    def is_done(self) -> bool:
        """Whether there is nothing left to do."""
        return all(self.translations(split).is_file() for split in self.sentences.splits[1:])

    def training_command(self) -> list[str]:
        """The command that trains it, or goes on with it."""
        settings = {
            "preset": self.row.preset,
            "model_dir": self.model_dir,
            **self.sentences.training_flags(),
        }
        return _command(
            "trainer.train", settings | self.settings | self.row.changes | {"seed": self.seed}
        )

    def run(self, wait: bool = True) -> bool:
        """Does what is left to do.

        Args:
            wait: whether to wait where another process is at it.

        Returns:
            Whether it is done: False where another process is at it, without `wait`.

        Raises:
            TrialError: where a process fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with self._alone(wait) as lock:
            if lock is None:
                return False
            if not self.is_done:
                self._finish(lock)
            return True

    def _finish(self, lock):
        self._check_step()
        print(f"Training {self.row.label}, seed {self.seed}: {self.folder}", flush=True)
        self._run(self.training_command(), lock, self._note_seconds)
        for split in self.sentences.splits[1:]:
            if not self.translations(split).is_file():
                self._translate(split, lock)

    def _check_step(self):
        """The translations that are made are those of the last step."""
        steps = Checkpoints(self.model_dir / "checkpoints").steps()
        if steps and steps[-1] > self.settings["train_steps"]:
            raise TrialError(
                f"Expected train_steps of at least {steps[-1]}, which {self.model_dir} has reached. Received: "
                f"{self.settings['train_steps']}. Give more, or another --output_dir."
            )

    def _translate(self, split, lock):
        with atomic_files.whole_file(self.translations(split)) as aside:
            settings = {"model_dir": self.model_dir, "metrics": "", "output": aside}
            self._run(
                _command("trainer.evaluate", settings | self.sentences.evaluation_flags(split)),
                lock,
            )

    @contextlib.contextmanager
    def _alone(self, wait) -> Iterator[int | None]:
        """Holds the folder's lock, which its processes inherit: one that outlives this one keeps others away. None: they have it."""
        with open(self.folder / "lock", "w") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if not wait:
                    yield None
                    return
                print(f"Another process is at {self.folder}: waiting for it.", flush=True)
                fcntl.flock(file, fcntl.LOCK_EX)
            atomic_files.remove_leftovers(self.folder)
            yield file.fileno()

    def _run(self, command, lock, note=lambda seconds: None):
        """Runs a process to its end, which is asked to stop where this one is."""
        log = self.folder / "log.txt"
        before, started = self.seconds, time.monotonic()
        with open(log, "a") as output:
            output.write(" ".join(command) + "\n")
            output.flush()
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, pass_fds=(lock,)
            )
            with _stopping(process):
                while process.poll() is None:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        process.wait(_NOTED_EVERY)
                    note(before + time.monotonic() - started)
        if process.returncode:
            last = "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
            raise TrialError(
                f"Expected {command[2]} to succeed. Received: exit status {process.returncode}, and in {log}:\n  {last}"
            )

    @property
    def _time_file(self):
        return self.folder / "time.json"

    def _note_seconds(self, seconds):
        atomic_files.write_text(self._time_file, json.dumps({"seconds": seconds}))


def run_all(trials: Sequence[Trial]) -> Iterator[Trial]:
    """Runs trials and gives each as soon as it is done, those that other processes are at last.

    Raises:
        TrialError: where a process fails.
    """
    left = collections.deque(trials)
    tried = 0
    while left:
        trial = left.popleft()
        if trial.run(wait=tried > len(left)):
            tried = 0
            yield trial
        else:
            tried += 1
            left.append(trial)


@contextlib.contextmanager
def _stopping(process):
    """Lets a process end by itself, with a last checkpoint, where this one is told to."""
    try:
        yield
    except KeyboardInterrupt:
        # The terminal has sent it the same.
        process.wait()
        raise
    except BaseException:
        process.terminate()
        process.wait()
        raise


def _command(module, settings):
    return [
        sys.executable,
        "-m",
        module,
        *(f"--{name}={_text(value)}" for name, value in settings.items()),
    ]


def _text(value):
    return str(value).lower() if isinstance(value, bool) else str(value)
