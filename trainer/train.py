r"""Trains a Transformer.

    python -m trainer.train --preset=tiny --model_dir=runs/first \
        --train_source=train.en --train_target=train.de

The same command resumes from the last checkpoint. After Ctrl-C, SIGTERM or SIGHUP, the run writes a
checkpoint and ends. `--dry_run` reports settings, batches and memory without training.
"""

import os
import signal
import sys

from absl import app, flags

from trainer import config, entry_point, standard_streams
from trainer.allocator import keep_freed_memory
from trainer.config import RunConfig
from trainer.quiet_start import import_tensorflow


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`: the settings of a run, and --dry_run."""
    config.define_flags(values)
    help_text = (
        "Print settings, parameters, batches and memory, then exit without training. No files are "
        "created."
    )
    entry_point.define_flag(values, "dry_run", bool, help_text, False)


def train(config: RunConfig):
    """Trains a model, or resumes its training.

    Lines that can't be printed do not end training.

    Raises:
        SystemExit: with a message, if the settings, the data or the model directory are invalid,
            a write fails, or the loss is not finite; with a code, if a signal ended the run.
    """
    import_tensorflow()
    with standard_streams.as_logs("stdout", "stderr"):
        _train(config)


def _train(config):
    from trainer.training.checkpoints import CheckpointError
    from trainer.training.nan_stop import NotFiniteError
    from trainer.training.training_run import TrainingRun
    from trainer.training.worker_group import WorkerLostError

    try:
        run = TrainingRun(config)
        if run.worker_group.is_chief:
            print(run.describe(), flush=True)
            print(_progress(run.step, run.config.train_steps), flush=True)
    except (ValueError, OSError, WorkerLostError) as error:
        sys.exit(f"trainer.train: {error}")
    try:
        run.fit()
    except (CheckpointError, NotFiniteError, WorkerLostError) as error:
        sys.exit(f"trainer.train: {error}")
    except KeyboardInterrupt:
        _stop(run, signal.SIGINT)
    finally:
        run.directory.unlock()
    if run.signal is not None:
        _stop(run, run.signal)
    if run.worker_group.is_chief:
        print(run.summary())


def dry_run(config: RunConfig):
    """Prints the settings, batches and memory of a run without training.

    Raises:
        SystemExit: with a message, if the settings, the data or the model directory are invalid.
    """
    try:
        import_tensorflow()
        from trainer.training.forecast import forecast

        with standard_streams.as_logs("stdout"):
            print(forecast(config))
    except (ValueError, OSError) as error:
        sys.exit(f"trainer.train: {error}")


def _progress(step, last):
    if step < last:
        return f"Training from step {step} to {last}."
    return f"Training is already complete: step {step} of {last}."


def _stop(run, received):
    print(f"\ntrainer.train: interrupted. {run.how_to_resume()}", file=sys.stderr)
    # The exit status by which shells report a signal.
    sys.exit(128 + received)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` is the command line without them."""
    entry_point.reject_arguments(argv)
    standard_streams.prepare()
    try:
        settings = RunConfig.from_flags(values)
        settings.resolve()  # Reports errors now, because importing TensorFlow takes seconds.
    except ValueError as error:
        sys.exit(f"trainer.train: {error}")
    try:
        (dry_run if values["dry_run"].value else train)(settings)
    except KeyboardInterrupt:
        print("\ntrainer.train: interrupted. Rerun the same command.", file=sys.stderr)
        sys.exit(128 + signal.SIGINT)


if __name__ == "__main__":
    keep_freed_memory()
    # TensorFlow enables oneDNN by default on some processors only, but large matrix products are
    # faster with it on the others too.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    define_flags()
    app.run(main)
