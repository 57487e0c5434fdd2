"""Trains a Transformer.

    python -m trainer.train --preset=tiny --model_dir=runs/first \
        --train_source=train.en --train_target=train.de

The same command resumes from the last checkpoint; Ctrl-C and SIGTERM write one before they end it.
`--dry_run` says what would be trained, and does not.
"""

import os
import signal
import sys

from absl import app, flags

from trainer import config
from trainer.allocator import keep_freed_memory
from trainer.config import RunConfig
from trainer.quiet_start import import_tensorflow


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`: the settings of a run, and --dry_run."""
    config.define_flags(values)
    help_text = (
        "Only say what would be trained: settings, parameters, batches and memory. No files are "
        "created."
    )
    flags.DEFINE_bool("dry_run", False, help_text, flag_values=values)


def train(config: RunConfig):
    """Trains a model as the settings say, or continues training it.

    Raises:
        SystemExit: with a message, for everything that is wrong with the settings, the data or the
            model directory, where the disk fails or the loss is not a number; with a code, where a
            signal ended the run.
    """
    try:
        config.resolve()
    except ValueError as error:
        sys.exit(f"trainer.train: {error}")
    # Not before the settings are known to be right.
    import_tensorflow()
    from trainer.training.checkpoints import CheckpointError
    from trainer.training.nan_stop import NotFiniteError
    from trainer.training.training_run import TrainingRun
    from trainer.training.worker_group import WorkerLostError

    try:
        run = TrainingRun(config)
        if run.worker_group.is_chief:
            print(run.describe(), flush=True)
            last = run.config.train_steps
            print(
                f"Training from step {run.step} to {last}."
                if run.step < last
                else f"The run is complete: step {run.step} of {last}. Nothing is trained.",
                flush=True,
            )
    except (ValueError, OSError, WorkerLostError) as error:
        sys.exit(f"trainer.train: {error}")
    try:
        run.fit()
    except (CheckpointError, NotFiniteError, WorkerLostError) as error:
        sys.exit(f"trainer.train: {error}")
    except KeyboardInterrupt:
        _stop(run, signal.SIGINT)
    finally:
        run.close()
    if run.signal is not None:
        _stop(run, run.signal)
    if run.worker_group.is_chief:
        print(run.summary())


def dry_run(config: RunConfig):
    """Says what `train` would do.

    Raises:
        SystemExit: with a message, for everything that is wrong with the settings, the data or the
            model directory.
    """
    try:
        config.resolve()
        import_tensorflow()
        from trainer.training.forecast import forecast

        print(forecast(config))
    except (ValueError, OSError) as error:
        sys.exit(f"trainer.train: {error}")


def _stop(run, received):
    saved = run.checkpoints.steps()
    print(
        "\ntrainer.train: stopped. The same command resumes from step "
        f"{saved[-1] if saved else 0}.",
        file=sys.stderr,
    )
    # As shells report a program that a signal ended.
    sys.exit(128 + received)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds what was not a flag."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    try:
        settings = RunConfig.from_flags(values)
    except ValueError as error:
        sys.exit(f"trainer.train: {error}")
    (dry_run if values["dry_run"].value else train)(settings)


def run():
    """Runs the program with the flags of the command line."""
    keep_freed_memory()
    # TensorFlow, not loaded yet, uses oneDNN by itself on some processors only; on others it makes
    # large products much faster as well.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    define_flags()
    app.run(main)


if __name__ == "__main__":
    run()
