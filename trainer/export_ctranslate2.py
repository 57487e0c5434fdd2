"""Exports a trained model for CTranslate2.

    python -m trainer.export_ctranslate2 --model_dir=runs/NAME --output_dir=ctranslate2/NAME

Requires the package ctranslate2: pip install '.[ctranslate2]'.
"""

import functools

from absl import app, flags

from trainer import entry_point


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    define("model_dir", str, "Model directory to export.", required=True)
    define("output_dir", str, "Directory to create.", required=True)
    help_text = (
        "Type of the weights: none, int8, int8_float32, int8_float16, int8_bfloat16, int16, "
        "float16, bfloat16, float32."
    )
    define("quantization", str, help_text, "none")
    define("force", bool, "Replace an existing CTranslate2 model in --output_dir.", False)


def _run(values):
    from trainer.serving import ctranslate2_model

    ctranslate2_model.write(values.model_dir, values.output_dir, values.quantization, values.force)
    print(f"Wrote {values.output_dir}")


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` is the command line without them."""
    entry_point.run("trainer.export_ctranslate2", _run, argv, values)


if __name__ == "__main__":
    define_flags()
    app.run(main)
