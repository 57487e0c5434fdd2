"""Averages the weights of several checkpoints and writes them to a new model directory.

    python -m trainer.average --model_dir=runs/big --last=20 --output_dir=runs/big-average

The new directory works with all other commands, such as `trainer.evaluate`, `trainer.export` and
`trainer.train --init_from`.
"""

import functools
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from absl import app, flags

from trainer import atomic_files, entry_point
from trainer.model_dir import TRANSLATION, ModelDirectory


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    define("model_dir", str, "Directory of the run.", required=True)
    define("last", int, "Average this number of the run's last checkpoints.", lower_bound=1)
    define("steps", list, "Instead of --last: steps, latest or best (dev BLEU), comma-separated.")
    define("output_dir", str, "Model directory to create.", required=True)


def mean_weights(directory: ModelDirectory, paths: Sequence[Path]):
    """Returns the Transformer with the mean weights of several checkpoints.

    Weights are summed in float64. States of seed generators are those of the last checkpoint.

    Args:
        directory: model directory of the run.
        paths: folders of the checkpoints.

    Raises:
        ValueError: if a checkpoint is missing or corrupt, or has another architecture.

    Reference: tensor2tensor `utils.avg_checkpoints`.
    """
    import numpy as np

    from trainer.training.checkpoints import load_transformer, restore_transformer

    transformer = load_transformer(directory, paths[0])
    weights = [
        variable
        for variable in transformer.variables
        if np.issubdtype(np.dtype(variable.dtype), np.floating)
    ]
    sums = [np.zeros(weight.shape) for weight in weights]
    for path in paths:
        restore_transformer(transformer, path)
        for total, weight in zip(sums, weights):
            total += weight.numpy()
    for total, weight in zip(sums, weights):
        weight.assign(total / len(paths))
    return transformer


def write_average(directory: ModelDirectory, paths: Sequence[Path], output_dir: str | os.PathLike):
    """Writes a model directory with the mean weights of several checkpoints, atomically.

    Its run.json has the settings of the run and lists the checkpoints under `averaged`.

    Args:
        directory: the run's model directory.
        paths: folders of the checkpoints.
        output_dir: the model directory to write.

    Raises:
        ValueError: if `output_dir` exists or can't be written, or a checkpoint is missing or
            corrupt.
    """
    output_dir = Path(output_dir)
    _check_new(output_dir)
    files = [directory.config_file, *directory.vocabulary_files]
    transformer = mean_weights(directory, paths)
    averaged = {
        "model_dir": str(directory.path),
        "checkpoints": [str(path.relative_to(directory.path)) for path in paths],
    }
    with (
        atomic_files.explaining_write_errors("an --output_dir", output_dir, "Choose another one."),
        atomic_files.atomic_directory(output_dir) as temporary,
    ):
        average = ModelDirectory(temporary)
        for file in files:
            shutil.copyfile(file, temporary / file.name)
        average.save_model(transformer)
        average.write_run(directory.read_run() | {"averaged": averaged})
        _check_new(output_dir)  # Another process may have created it since.


def _check_new(output_dir):
    if output_dir.exists():
        raise ValueError(
            f"Expected an --output_dir that does not exist. Received: {output_dir}, which exists. "
            "Choose another."
        )


def _run(values):
    from trainer.training import checkpoints

    if (values.last is None) == (not values.steps):
        received = "neither" if values.last is None else "both"
        raise ValueError(f"Expected either --last or --steps. Received: {received}.")
    directory = ModelDirectory.open(values.model_dir, TRANSLATION)
    if values.last is not None:
        paths = checkpoints.last_checkpoints(directory, values.last)
    else:
        paths = [checkpoints.find_checkpoint(directory, step.strip()) for step in values.steps]
    if len({path.name for path in paths}) < len(paths):
        raise ValueError(f"Expected different steps. Received: --steps={','.join(values.steps)}.")
    write_average(directory, paths, values.output_dir)
    names = ", ".join(path.name for path in paths)
    print(
        f"Wrote the mean of {len(paths)} checkpoints of {values.model_dir} to "
        f"{values.output_dir}: {names}"
    )


main = functools.partial(entry_point.run, "trainer.average", _run)


if __name__ == "__main__":
    define_flags()
    app.run(main)
