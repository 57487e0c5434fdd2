"""Imports a checkpoint of tensor2tensor into a model directory.

    python -m trainer.import_t2t --checkpoint=model.ckpt-250000 --hparams_set=transformer_relative \
      --vocab=vocab.translate_ende_wmt32k.32768.subwords --model_dir=runs/imported

The model can then be evaluated, exported and fine-tuned like one that was trained here.
"""

import functools

from absl import app, flags

from trainer import entry_point


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    define("checkpoint", str, "Checkpoint of TensorFlow 1: its path without .index.", required=True)
    define("hparams_set", str, "tensor2tensor's hparams set of the model.", required=True)
    define("hparams", str, "Changes to the set: key=value,key=value.", "")
    define("target_space_id", int, "Target space id of the problem. Generic text has 0.", 0)
    define("vocab", str, "tensor2tensor's subword vocabulary of the problem.")
    define(
        "vocab_size", int, "Instead of --vocab, for a model without tokenizer: its number of ids."
    )
    define("model_dir", str, "Model directory to create.", required=True)


def _run(values):
    from trainer.t2t_checkpoints import import_checkpoint

    names = ("hparams_set", "hparams", "target_space_id", "vocab", "vocab_size")
    config = import_checkpoint(
        values.checkpoint, values.model_dir, **{name: values[name].value for name in names}
    )
    print(f"Imported {values.checkpoint}: {config}")
    print(f"The model is in {values.model_dir}.")


def main(argv: list[str], values: flags.FlagValues = flags.FLAGS):
    """Runs the program with parsed flags; `argv` is the command line without them."""
    entry_point.run("trainer.import_t2t", _run, argv, values, errors=(ValueError, OSError))


if __name__ == "__main__":
    define_flags()
    app.run(main)
