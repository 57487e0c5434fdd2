r"""Trains a Transformer.

    python -m trainer.train --preset=tiny --model_dir=runs/first \
        --train_source=train.en --train_target=train.de

The same command resumes from the last checkpoint. After Ctrl-C, SIGTERM or SIGHUP, the run writes a
checkpoint and ends; before its first step, it ends at once. `--dry_run` reports settings, batches
and memory of weights without training, and downloads nothing.
"""

import os

from absl import app, flags

from . import config, entry_point, errors
from .config import RunConfig
from .streams import write_line

_NAME = "trainer.train"


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`: the settings of a run, and --dry_run."""
    config.define_flags(values)
    help_text = (
        "Print settings, parameters, batches and memory of weights, then exit without training. "
        "No files are created, and nothing is downloaded."
    )
    entry_point.define_flag(values, "dry_run", bool, help_text, False)


def train(config: RunConfig):
    """Trains a model, or resumes its training.

    Lines that can't be printed are lost, and do not end training.

    Raises:
        SystemExit: with a message, if the settings, the data or the model directory are invalid,
            a write fails, or the loss is not finite; with a code, if a signal ended the run.
    """
    entry_point.import_tensorflow()
    from .training.callbacks import NotFiniteError
    from .training.strategy import WorkerLostError
    from .training.training_run import TrainingRun

    with errors.errors_as_exit_codes(_NAME, (ValueError, WorkerLostError), _how_to_rerun):
        run = TrainingRun(config)
        workers, progress = run.worker_group, _progress(run.step, run.config.train_steps)
        if workers.is_chief:
            write_line(f"{run.describe()}\n{progress}")
        else:
            worker = f"Worker {workers.index} of {workers.size}"
            write_line(f"{worker}: {progress} Worker 0 prints the progress.")
    known = NotFiniteError, WorkerLostError
    with errors.errors_as_exit_codes(_NAME, known, run.how_to_resume):
        try:
            end = lambda received: errors.end_at_once(_NAME, received, run.how_to_resume())
            run.fit(end)
        finally:
            run.directory.unlock()
        if run.signal is not None:
            errors.exit_interrupted(_NAME, run.signal, run.how_to_resume())
    if run.worker_group.is_chief:
        write_line(run.summary())


def dry_run(config: RunConfig):
    """Prints the settings, batches and bytes of the weights of a run without training.

    Raises:
        SystemExit: with a message, if the settings, the data or the model directory are invalid, or
            the standard output can't be written.
    """
    with errors.errors_as_exit_codes(_NAME, remedy=_how_to_rerun):
        entry_point.import_tensorflow()
        from .training.dry_run import forecast

        print(forecast(config))


def _how_to_rerun():
    return "Rerun the same command."


def _progress(step, last):
    if step < last:
        return f"Training from step {step} to {last}."
    return f"Training is already complete: step {step} of {last}."


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` is the command line without them."""
    entry_point.reject_arguments(argv)
    with errors.errors_as_exit_codes(_NAME):
        settings = RunConfig.from_flags(values)
        settings.resolve()  # Reports errors now, because importing TensorFlow takes seconds.
    with errors.errors_as_exit_codes(_NAME, (), _how_to_rerun):
        (dry_run if values["dry_run"].value else train)(settings)


if __name__ == "__main__":
    # TensorFlow enables oneDNN by default on some processors only, but large matrix products are
    # faster with it on the others too.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    define_flags()
    app.run(main, flags_parser=entry_point.parse_flags)
