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

from . import atomic_files, entry_point
from .model_dir import ModelDirectory


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    define("model_dir", str, "Directory of the run.", required=True)
    define("last", int, "Average this number of the run's last checkpoints.", lower_bound=1)
    define("steps", list, "Instead of --last: steps, latest or best (dev BLEU), comma-separated.")
    define("output_dir", str, "Model directory to create.", required=True)


def mean_weights(paths: Sequence[Path]) -> dict:
    """Returns the mean weights of checkpoints, as arrays by key.

    Weights are summed in float64. States of seed generators are those of the last checkpoint.

    Raises:
        ValueError: if a checkpoint is missing or corrupt.

    Reference: tensor2tensor `utils.avg_checkpoints`.
    """
    import numpy as np

    from .training.checkpoints import read_weights

    sums = {}
    for path in paths:
        arrays = read_weights(path)
        for key, array in arrays.items():
            if np.issubdtype(array.dtype, np.floating):
                sums[key] = sums.get(key, 0.0) + np.float64(array)
    return arrays | {key: np.float32(total / len(paths)) for key, total in sums.items()}


def write_average(directory: ModelDirectory, paths: Sequence[Path], output_dir: str | os.PathLike):
    """Writes a model directory with the mean weights of several checkpoints, atomically.

    Its run.json has the settings of the run and lists the checkpoints under `averaged`.

    Raises:
        ValueError: if `output_dir` exists, or a checkpoint is missing or corrupt.
        OSError: if `output_dir` can't be written.
    """
    from .training.checkpoints import make_transformer

    output_dir = Path(output_dir)
    _check_new(output_dir)
    files = [directory.config_file, *directory.vocabulary_files]
    transformer = make_transformer(directory, mean_weights(paths))
    averaged = {
        "model_dir": str(directory.path),
        "checkpoints": [str(path.relative_to(directory.path)) for path in paths],
    }
    with atomic_files.atomic_directory(output_dir) as temporary:
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
    from .training import checkpoints

    if (values.last is None) == (not values.steps):
        received = "neither" if values.last is None else "both"
        raise ValueError(f"Expected either --last or --steps. Received: {received}.")
    directory = ModelDirectory.open(values.model_dir)
    if values.last is not None:
        paths = checkpoints.last_checkpoints(directory, values.last)
    else:
        paths = [checkpoints.find_checkpoint(directory, step.strip()) for step in values.steps]
    if len({path.name for path in paths}) < len(paths):
        raise ValueError(f"Expected different steps. Received: --steps={','.join(values.steps)}.")
    write_average(directory, paths, values.output_dir)
    names = ", ".join(path.name for path in paths)
    count = "1 checkpoint" if len(paths) == 1 else f"{len(paths)} checkpoints"
    print(f"Wrote the mean of {count} of {values.model_dir} to {values.output_dir}: {names}")


main = functools.partial(entry_point.run, "trainer.average", _run)


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=entry_point.parse_flags)
