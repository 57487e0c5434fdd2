r"""Imports a checkpoint of tensor2tensor into a model directory.

    python -m trainer.import_t2t --checkpoint=model.ckpt-250000 --hparams_set=transformer_relative \
      --vocab=vocab.translate_ende_wmt32k.32768.subwords --model_dir=runs/imported

All other commands can read the directory, for example to evaluate, export or fine-tune the model.
"""

import functools
import os
import re

from absl import app, flags

from . import entry_point
from .model_dir import LANGUAGE_MODEL, TRANSLATION, ModelDirectory
from .recipes import training_settings
from .streams import write_line

_RELATIVE_V2_TABLE = "_relative_v2/key_relative_embeddings"
_SOURCE_TABLE = re.compile(r"symbol_modality_(\d+)_\d+/input_emb/weights_0$")


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
    help_text = "Vocabulary file of the inputs, if --vocab is that of the targets only."
    define("source_vocab", str, help_text)
    define("vocab_size", int, "Instead of --vocab, for a model without tokenizer: number of ids.")
    help_text = "Whether it is a model without inputs. Default: whether it has no encoder."
    define("language_model", bool, help_text)
    define("model_dir", str, "Model directory to create.", required=True)


def find_checkpoint(path: str) -> str:
    """Returns the prefix of a TF1 checkpoint.

    Args:
        path: a prefix; or the output directory of tensor2tensor or its file `checkpoint`, for the
            newest checkpoint there.

    Raises:
        ValueError: if the directory has no checkpoint.
    """
    import tensorflow as tf

    is_state_file = os.path.basename(path) == "checkpoint" and os.path.isfile(path)
    directory = (os.path.dirname(path) or os.curdir) if is_state_file else path
    if not os.path.isdir(directory):
        return path
    state = tf.train.get_checkpoint_state(directory)
    # The file may have absolute paths, although the directory was moved.
    recorded = os.path.basename(state.model_checkpoint_path) if state else ""
    names = [name.removesuffix(".index") for name in os.listdir(directory)]
    names = [name for name in names if os.path.isfile(os.path.join(directory, f"{name}.index"))]
    if not names:
        raise ValueError(
            "Expected a directory with TF1 checkpoints, whose names end in .index and .data-... . "
            f"Received: {path!r}, which has none. Give the output directory of tensor2tensor."
        )
    newest = recorded if recorded in names else max(names, key=_step_of)
    return os.path.join(directory, newest)


def _step_of(name):
    step = re.search(r"-(\d+)$", name)
    return int(step[1]) if step else -1


def read_checkpoint(prefix: str) -> dict:
    """Returns all variables of a TF1 checkpoint, as arrays by name.

    Args:
        prefix: the path without `.index` or `.data-00000-of-00001`.

    Raises:
        ValueError: if the checkpoint is missing or corrupt.
    """
    import tensorflow as tf

    if not tf.io.gfile.exists(f"{prefix}.index"):
        has_extension = prefix.endswith((".index", ".meta")) or ".data-" in prefix
        hint = " Leave out the file extension." if has_extension else ""
        raise ValueError(
            "Expected the prefix of a TF1 checkpoint with the files PREFIX.index and "
            f"PREFIX.data-... . Received: {prefix!r}, but {os.path.basename(prefix)}.index does "
            f"not exist.{hint}"
        )
    try:
        reader = tf.train.load_checkpoint(prefix)
        return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}
    except (tf.errors.OpError, IndexError, ValueError, RuntimeError) as error:
        raise ValueError(
            f"Expected a readable TF1 checkpoint. Received: {prefix!r}, which is truncated, "
            f"corrupt or not a checkpoint ({error}). Copy the original files again."
        ) from error


def write_checkpoint(model, prefix: str, num_shards: int = 16):
    """Writes a model's weights as a TF1 checkpoint with tensor2tensor's names.

    Args:
        model: a `Transformer` or a `CausalLM` of `t2t_relpos.models`.
        prefix: the path without `.index`.
        num_shards: tensor2tensor's `symbol_modality_num_shards`.

    Raises:
        ValueError: if the model has an option that tensor2tensor does not support.
    """
    import numpy as np
    import tensorflow as tf

    from t2t_relpos.t2t import t2t_weights

    arrays = {**t2t_weights(model, num_shards), "global_step": np.array(0, "int64")}
    with tf.Graph().as_default(), tf.compat.v1.Session() as session:
        variables = [
            tf.compat.v1.get_variable(name, initializer=array, use_resource=False)
            for name, array in arrays.items()
        ]
        session.run(tf.compat.v1.variables_initializer(variables))
        tf.compat.v1.train.Saver(variables).save(
            session, prefix, write_meta_graph=False, write_state=False
        )


def import_checkpoint(
    prefix: str,
    model_dir: str,
    hparams_set: str,
    hparams: str = "",
    target_space_id: int = 0,
    vocab: str | None = None,
    vocab_size: int | None = None,
    *,
    source_vocab: str | None = None,
    language_model: bool | None = None,
):
    """Reads a checkpoint into a new model directory. If it raises, nothing is written.

    Args:
        prefix: path of the checkpoint without `.index`, or its directory; see `find_checkpoint`.
        model_dir: directory to create; may exist if it holds no model.
        hparams_set: name of an hparams set of tensor2tensor, such as "transformer_relative".
        hparams: changes to the hparams set, `"key=value,key=value"`.
        target_space_id: target space id of the problem; 0 for plain text problems.
        vocab: file of tensor2tensor's subword vocabulary.
        vocab_size: instead of `vocab`, the size of the vocabulary.
        source_vocab: file of the vocabulary of the inputs, if `vocab` is that of the targets only.
        language_model: whether it is a model without inputs. Default: whether the checkpoint has no
            encoder.

    Returns:
        The architecture, a `TransformerConfig`.

    Raises:
        ValueError: if hparams are unknown or unsupported, if checkpoint or vocabulary can't be
            read, if variables do not fit the hparams, or if the directory holds a model.
    """
    import keras

    from t2t_relpos.models import CausalLM, Transformer
    from t2t_relpos.t2t import load_t2t_weights, parse_hparams

    if (vocab is None) == (vocab_size is None):
        received = "neither" if vocab is None else "both"
        raise ValueError(f"Expected either --vocab or --vocab_size. Received: {received}.")
    if source_vocab is not None and vocab is None:
        raise ValueError(
            "Expected --vocab, the vocabulary of the targets, with --source_vocab. Received: "
            "--vocab_size. Give the file instead, or leave --source_vocab out."
        )
    prefix = find_checkpoint(prefix)
    values = parse_hparams(hparams_set, hparams)
    tokenizers = None if vocab is None else _tokenizers(vocab, source_vocab)
    size = vocab_size if tokenizers is None else tokenizers.target.vocab_size
    existing = ModelDirectory(model_dir)
    if existing.is_configured:
        raise ValueError(
            f"Expected a --model_dir that holds no model yet. Received: {model_dir}, which has a "
            f"{existing.config_file.name}."
        )
    arrays = read_checkpoint(prefix)
    config, kind = _architecture(values, arrays, size, target_space_id, language_model)
    if tokenizers is not None:
        _check_source(tokenizers, config, kind)
    keras.utils.set_random_seed(0)
    model = Transformer(config) if kind == TRANSLATION else CausalLM(config=config)
    load_t2t_weights(model, arrays, values["symbol_modality_num_shards"])
    _write(ModelDirectory.create(model_dir), model, tokenizers, values, kind)
    return config


def _tokenizers(vocab, source_vocab):
    """Returns the `Tokenizers` of the vocabulary files."""
    from .data.subword_tokenizer import SubwordTokenizer
    from .data.tokenizer import Tokenizers

    target = SubwordTokenizer.from_file(vocab)
    if source_vocab is None:
        return Tokenizers.shared(target)
    return Tokenizers(SubwordTokenizer.from_file(source_vocab), target)


def _check_source(tokenizers, config, kind):
    """Raises ValueError if the vocabulary of the inputs does not fit the model."""
    if kind == LANGUAGE_MODEL and not tokenizers.is_shared:
        raise ValueError(
            "Expected no --source_vocab with a language model, which has no inputs. Received: one. "
            "Leave it out."
        )
    size, found = config.num_source_ids, tokenizers.source.vocab_size
    if size != found and config.tie_embeddings:
        raise ValueError(
            f"Expected no other vocabulary of the inputs: the checkpoint has one table of {size} "
            f"ids for inputs and targets. Received: one of {found} ids. Leave --source_vocab out."
        )
    if size != found:
        raise ValueError(
            f"Expected a vocabulary of the inputs of {size} ids, as in the checkpoint. Received: "
            f"one of {found} ids. Give its file with --source_vocab, or import the model without "
            "vocabularies: --vocab_size with the number of ids of the targets."
        )


def _architecture(hparams, arrays, vocab_size, target_space_id, language_model):
    """Returns the `TransformerConfig` of a checkpoint and its kind of model.

    Sets `max_relative_position` of `hparams` from the tables if no value was given.
    """
    from t2t_relpos.t2t import config_from_hparams, is_language_model

    found = is_language_model(arrays)
    language_model = found if language_model is None else language_model
    if language_model != found:
        names = {True: "without encoder", False: "with an encoder"}
        raise ValueError(
            f"Expected a checkpoint of a model {names[language_model]}, because "
            f"language_model={language_model}. Received: one {names[found]}. Leave language_model "
            "out."
        )
    # lmx_relative has the value 0, which tensor2tensor refuses: every training has overridden it.
    if hparams["max_relative_position"] == 0:
        tables = (a for name, a in arrays.items() if name.endswith(_RELATIVE_V2_TABLE))
        if (table := next(tables, None)) is not None:
            hparams["max_relative_position"] = length = table.shape[-2]
            write_line(f"max_relative_position = {length} (the length of the checkpoint's tables)")
    source_sizes = (int(match[1]) for match in map(_SOURCE_TABLE.search, arrays) if match)
    config = config_from_hparams(
        hparams,
        vocab_size,
        target_space_id,
        language_model=language_model,
        source_vocab_size=next(source_sizes, None),
    )
    return config, LANGUAGE_MODEL if language_model else TRANSLATION


def _write(directory, model, tokenizers, hparams, model_kind):
    directory.save_model(model)
    directory.write_run({**training_settings(hparams), "t2t_hparams": hparams})
    if tokenizers is not None:
        directory.save_tokenizers(tokenizers)
    # Written last, because its existence marks the directory as complete.
    directory.write_config(model.config.to_dict(), tokenizers, model_kind)


def _run(values):
    prefix = find_checkpoint(values.checkpoint)
    if prefix != values.checkpoint:
        write_line(f"Newest checkpoint of {values.checkpoint}: {prefix}")
    names = "hparams_set hparams target_space_id vocab vocab_size source_vocab language_model"
    config = import_checkpoint(
        prefix, values.model_dir, **{name: values[name].value for name in names.split()}
    )
    kind = ModelDirectory.open(values.model_dir).kind
    print(f"Imported {prefix} (model: {kind}): {config}")
    if kind == TRANSLATION:
        origin = "as given" if values["target_space_id"].present else "the default; check it"
        print(f"target_space_id = {values.target_space_id} ({origin})")
    print(f"Wrote {values.model_dir}")


main = functools.partial(entry_point.run, "trainer.import_t2t", _run)


if __name__ == "__main__":
    define_flags()
    app.run(main, flags_parser=entry_point.parse_flags)
