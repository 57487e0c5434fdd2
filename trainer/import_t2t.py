r"""Imports a checkpoint of tensor2tensor into a model directory.

    python -m trainer.import_t2t --checkpoint=model.ckpt-250000 --hparams_set=transformer_relative \
      --vocab=vocab.translate_ende_wmt32k.32768.subwords --model_dir=runs/imported

All other commands can read the directory, for example to evaluate, export or fine-tune the model.
"""

import functools

from absl import app, flags

from trainer import entry_point


def define_flags(values: flags.FlagValues = flags.FLAGS):
    """Defines the flags of this program on `values`."""
    define = functools.partial(entry_point.define_flag, values)
    help_text = (
        "Path of a TensorFlow 1 checkpoint, without .index, or a directory, for the newest one in "
        "it."
    )
    define("checkpoint", str, help_text, required=True)
    define("hparams_set", str, "Name of the model's hparams set in tensor2tensor.", required=True)
    define("hparams", str, "Changes to the hparams set: key=value,key=value.", "")
    define("target_space_id", int, "Target space id of the problem; 0 for generic text.", 0)
    define("vocab", str, "Subword vocabulary file of the tensor2tensor problem.")
    define("vocab_size", int, "Instead of --vocab, for a model without tokenizer: number of ids.")
    define("model_dir", str, "Model directory to create.", required=True)


def _run(values):
    from trainer.t2t_checkpoints import find_checkpoint, import_checkpoint

    prefix = find_checkpoint(values.checkpoint)
    if prefix != values.checkpoint:
        print(f"Newest checkpoint of {values.checkpoint}: {prefix}")
    names = ("hparams_set", "hparams", "target_space_id", "vocab", "vocab_size")
    config = import_checkpoint(
        prefix, values.model_dir, **{name: values[name].value for name in names}
    )
    print(f"Imported {prefix}: {config}")
    origin = "as given" if values["target_space_id"].present else "the default; check it"
    print(f"target_space_id = {values.target_space_id} ({origin})")
    print(f"Wrote {values.model_dir}")


main = functools.partial(entry_point.run, "trainer.import_t2t", _run)


if __name__ == "__main__":
    define_flags()
    app.run(main)
