"""One variant trained with one seed, then evaluated on the dev and test sets.

`trainer.train` and `trainer.evaluate` do the work in child processes. Finished steps are not
repeated, so a trial that was killed resumes when it is run again.
"""

import dataclasses
import fcntl
import subprocess
import sys
from pathlib import Path

from examples.paper_tables.datasets import Dataset
from examples.paper_tables.variants import Variant
from trainer import atomic_files
from trainer.streams import write_line
from trainer.training.checkpoints import Checkpoints


class TrialError(Exception):
    """Error that stops a trial. If a child process failed, the message ends with its last lines."""


@dataclasses.dataclass(frozen=True)
class Trial:
    """A variant, a seed, and a folder in `parent` for the model, its translations and a log.

    `settings` are flags of `trainer.train` shared by all trials, with `train_steps`.
    """

    variant: Variant
    seed: int
    settings: dict[str, str | int | float | bool]
    dataset: Dataset
    parent: Path

    @property
    def folder(self) -> Path:
        return self.parent / f"{self.variant.name}-seed={self.seed}"

    @property
    def model_dir(self) -> Path:
        return self.folder / "model"

    @property
    def is_done(self) -> bool:
        """Whether all translations exist."""
        return all(self.translations(split).is_file() for split in self.dataset.eval_splits)

    def translations(self, split: str) -> Path:
        """Returns the path of a split's translations, one per line."""
        return self.folder / f"{split}.step-{self.settings['train_steps']}.txt"

    def training_command(self) -> list[str]:
        """Returns the command that trains the model or resumes its training."""
        flags = {"preset": self.variant.preset, "model_dir": self.model_dir}
        flags |= self.dataset.training_flags() | self.settings | self.variant.overrides
        return _make_command("trainer.train", flags | {"seed": self.seed})

    def run(self):
        """Trains and evaluates the model, without repeating finished steps.

        Raises:
            TrialError: if a child process fails.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        with open(self.folder / "lock", "w") as lock:
            # Child processes inherit the lock, so it outlives a parent that is killed.
            fcntl.flock(lock, fcntl.LOCK_EX)
            atomic_files.remove_leftovers(self.folder)
            if not self.is_done:
                self._train(lock)
                for split in self.dataset.eval_splits:
                    self._translate(split, lock)

    def _train(self, lock):
        steps = Checkpoints(self.model_dir / "checkpoints").steps()
        if steps and steps[-1] > self.settings["train_steps"]:
            raise TrialError(
                f"--train_steps must be at least {steps[-1]}, the last step in {self.model_dir}, "
                f"got {self.settings['train_steps']}. Increase it or choose another --output_dir."
            )
        write_line(f"Training {self.variant.label}, seed {self.seed}: {self.folder}")
        self._run(self.training_command(), lock)

    def _translate(self, split, lock):
        if self.translations(split).is_file():
            return
        with atomic_files.atomic_file(self.translations(split)) as temporary:
            flags = {"model_dir": self.model_dir, "metrics": "", "output": temporary}
            flags |= self.dataset.evaluation_flags(split)
            self._run(_make_command("trainer.evaluate", flags), lock)

    def _run(self, command, lock):
        """Runs a child process and waits for it."""
        log = self.folder / "log.txt"
        with open(log, "a") as output:
            output.write(" ".join(command) + "\n")
            output.flush()
            process = subprocess.Popen(
                command, stdout=output, stderr=subprocess.STDOUT, pass_fds=(lock.fileno(),)
            )
            try:
                process.wait()
            except BaseException as error:
                # The process saves its last checkpoint. The terminal has sent it SIGINT as well.
                if not isinstance(error, KeyboardInterrupt):
                    process.terminate()
                process.wait()
                raise
        if process.returncode:
            last_lines = "\n  ".join(log.read_text(errors="replace").splitlines()[-5:])
            raise TrialError(
                f"{command[2]} failed with exit status {process.returncode}. "
                f"Last lines of {log}:\n  {last_lines}"
            )


def _make_command(module, flags):
    return [sys.executable, "-m", module, *(_format_flag(*flag) for flag in flags.items())]


def _format_flag(name, value):
    return f"--{name}={str(value).lower() if isinstance(value, bool) else value}"
