"""Shows what a trained model does with a sentence, and what it has learned about distance.

    python -m trainer.visualize --model_dir=runs/NAME --source="A dog runs." --output=page.html
    python -m trainer.visualize --model_dir=runs/NAME --plots=FOLDER

The page holds the attention of every layer and head, what content and relative position give to its logits, and the learned tables
over distance; it needs no network. The plots are PNGs of learning curves and of the tables' norms, and need matplotlib.
"""

import logging
import os
import sys
from pathlib import Path

# TensorFlow's start-up notes would stand between the lines that are for the reader.
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

from absl import app, flags

from trainer import atomic_files, weights
from trainer.data.token_names import token_names
from trainer.model_dir import ModelDirectory
from trainer.visualization import matplotlib_figures, png_plots
from trainer.visualization.attention_maps import attention_maps, tables
from trainer.visualization.learning_curves import learning_curves
from trainer.visualization.page import page
from trainer.visualization.page_data import page_data
from trainer.visualization.sentence_pair import sentence_pair


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""

    def define(kind, *args, **kwargs):
        kind(*args, flag_values=values, **kwargs)

    define(flags.DEFINE_string, "model_dir", None, "Directory of a trained model.")
    define(
        flags.DEFINE_string,
        "checkpoint",
        None,
        "Of --model_dir: a step, 'latest', or 'best' on dev. Default: its model.keras.",
    )
    define(flags.DEFINE_string, "source", None, "The sentence.")
    define(flags.DEFINE_string, "target", None, "Its translation. Default: the model's own.")
    define(flags.DEFINE_string, "output", None, "File for the page, HTML.")
    define(
        flags.DEFINE_string,
        "plots",
        None,
        "Folder for PNGs of learning curves and of the tables' norms.",
    )


def write_page(
    directory: ModelDirectory,
    transformer,
    source: str,
    target: str | None,
    output: str | os.PathLike,
):
    """Writes the page of a sentence pair, whole or not at all.

    Args:
        directory: of the model.
        transformer: its Transformer.
        source: a sentence.
        target: its translation; None for the model's own.
        output: the HTML file.

    Raises:
        ValueError: for a sentence without words or too long, a model without a vocabulary, or a file that can't be written.
    """
    names = token_names(directory, transformer.config.vocab_size).names
    pair = sentence_pair(transformer, directory.load_tokenizer(), source, target)
    maps = attention_maps(transformer, pair.source_ids, pair.target_ids)
    text = page(page_data(transformer.config, pair, names, maps, str(directory.path)))
    try:
        atomic_files.write_text(output, text)
    except OSError as error:
        raise ValueError(
            f"Expected a file that can be written. Received: {output} ({error.strerror}). Choose another --output."
        ) from error
    print(f"Wrote {output} ({len(text.encode()) / 1e6:.1f} MB): {pair.source} -> {pair.target}")


def _write_plots(directory, transformer, folder):
    try:
        files, missing = png_plots.write_plots(
            Path(folder), learning_curves(directory), tables(transformer)
        )
    except OSError as error:
        raise ValueError(
            f"Expected a folder that can be written. Received: {folder} ({error.strerror}). Choose another --plots."
        ) from error
    for line in (*(f"Wrote {file}" for file in files), *missing):
        print(line)


def _check(values):
    if not values.model_dir:
        raise ValueError("Expected --model_dir. Received: none.")
    if values.output is None and values.plots is None:
        raise ValueError(
            "Expected --source and --output for a page, or --plots for plots. Received: neither. Give one of them."
        )
    for name, other in (("source", "output"), ("output", "source"), ("target", "source")):
        if values[name].value is not None and values[other].value is None:
            raise ValueError(
                f"Expected --{other} with --{name}. Received: --{name} alone. Give --{other} too."
            )
    if values.plots is not None:
        matplotlib_figures.check_matplotlib()


def _run(values):
    _check(values)
    directory = ModelDirectory.open(values.model_dir)
    if values.checkpoint is None:
        transformer = directory.load_model()
    else:
        transformer = weights.load_transformer(
            directory, weights.find_checkpoint(directory, values.checkpoint)
        )
    if values.output is not None:
        write_page(directory, transformer, values.source, values.target, values.output)
    if values.plots is not None:
        _write_plots(directory, transformer, values.plots)


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` holds what was not a flag."""
    if len(argv) > 1:
        raise app.UsageError(f"Expected flags only. Received: {argv[1]!r}.")
    try:
        _run(values)
    except ValueError as error:
        sys.exit(f"trainer.visualize: {error}")


if __name__ == "__main__":
    define_flags()
    # TensorBoard would say that there is no other file after the last.
    logging.getLogger("tensorboard").setLevel(logging.WARNING)
    app.run(main)
