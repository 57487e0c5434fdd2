"""Trains a Transformer.

    python -m trainer.train --preset=tiny --model_dir=runs/first \
        --train_source=train.en --train_target=train.de

The same command resumes from the last checkpoint. Ctrl-C and SIGTERM write a checkpoint before they
end the run. `--dry_run` reports what would be trained, and trains nothing.
"""

import os
import signal
import sys

from absl import app, flags

from trainer import config, entry_point
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
    entry_point.define_flag(values, "dry_run", bool, help_text, False)


def train(config: RunConfig):
    """Trains a model, or resumes its training.

    Raises:
        SystemExit: with a message, if the settings, the data or the model directory are wrong, the
            disk fails, or the loss is not a number; with a code, if a signal ended the run.
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
        run.close()
    if run.signal is not None:
        _stop(run, run.signal)
    if run.worker_group.is_chief:
        print(run.summary())


def dry_run(config: RunConfig):
    """Reports what `train` would do.

    Raises:
        SystemExit: with a message, if the settings, the data or the model directory are wrong.
    """
    try:
        config.resolve()
        import_tensorflow()
        from trainer.training.forecast import forecast

        print(forecast(config))
    except (ValueError, OSError) as error:
        sys.exit(f"trainer.train: {error}")


def _progress(step, last):
    if step < last:
        return f"Training from step {step} to {last}."
    return f"The run is complete: step {step} of {last}. Nothing is trained."


def _stop(run, received):
    steps = run.checkpoints.steps()
    step = steps[-1] if steps else 0
    message = f"\ntrainer.train: stopped. The same command resumes from step {step}."
    print(message, file=sys.stderr)
    # As shells report a program that a signal ended.
    sys.exit(128 + received)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` is the command line without them."""
    entry_point.refuse_arguments(argv)
    try:
        settings = RunConfig.from_flags(values)
    except ValueError as error:
        sys.exit(f"trainer.train: {error}")
    (dry_run if values["dry_run"].value else train)(settings)


if __name__ == "__main__":
    keep_freed_memory()
    # By default, TensorFlow uses oneDNN on some processors only. It makes large matrix products
    # faster on the others too.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    define_flags()
    app.run(main)
