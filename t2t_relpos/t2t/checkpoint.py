"""tensor2tensor's variables <-> the weights of a Transformer. Knows names and shapes, reads no file."""

import re

import keras
import numpy as np

# Not weights: the step, and slots of optimizers.
_NOT_WEIGHTS = re.compile(
    r"^(global_step|losses_avg/.*|.*/Adam(_1)?|.*/(beta[12]_power|Momentum|vr|vc|v|m)|training/.*"
    r"|.*(beta[12]_power|/ExponentialMovingAverage).*)$"
)
_BODY = "transformer/body"


def t2t_names(model):
    """tensor2tensor's name of every weight but the `[V, D]` tables.

    Args:
        model: a `Transformer` with tables shared by heads.

    Returns:
        A dict: name -> keras Variable.
    """
    names = {}
    config = model.config
    for side, layers, final in (
        ("encoder", model.encoder_layers, model.encoder_norm),
        ("decoder", model.decoder_layers, model.decoder_norm),
    ):
        for i, layer in enumerate(layers):
            names.update(_layer_names(f"{_BODY}/{side}/layer_{i}", layer, config))
        if final is not None:
            names.update(_norm_names(f"{_BODY}/{side}/layer_prepostprocess", final))
    if config.position == "learned":
        names[f"{_BODY}/inputs_positional_embedding"] = model.source_position.embeddings
        names[f"{_BODY}/targets_positional_embedding"] = model.target_position.embeddings
    if config.target_space_id is not None:
        names[f"{_BODY}/target_space_embedding/kernel"] = model.target_space_embedding
    return names


def _layer_names(prefix, layer, config):
    norm = "layer_prepostprocess" if config.normalize_first else "layer_postprocess"
    names = {}
    sublayers = {"self_attention": "self_attention", "encdec_attention": "cross_attention"}
    for theirs, ours in sublayers.items():
        if hasattr(layer, ours):
            names.update(_attention_names(f"{prefix}/{theirs}/multihead_attention", getattr(layer, ours)))
            residual = getattr(layer, f"{ours}_residual")
            names.update(_norm_names(f"{prefix}/{theirs}/{norm}", residual.norm))
    for conv, dense in (("conv1", layer.feed_forward.inner), ("conv2", layer.feed_forward.outer)):
        names[f"{prefix}/ffn/{conv}/kernel"] = dense.kernel
        names[f"{prefix}/ffn/{conv}/bias"] = dense.bias
    names.update(_norm_names(f"{prefix}/ffn/{norm}", layer.feed_forward_residual.norm))
    return names


def _attention_names(prefix, attention):
    names = {
        f"{prefix}/q/kernel": attention.query_dense.kernel,
        f"{prefix}/k/kernel": attention.key_dense.kernel,
        f"{prefix}/v/kernel": attention.value_dense.kernel,
        f"{prefix}/output_transform/kernel": attention.output_dense.kernel,
    }
    tables = {"keys": attention.key_embedding, "values": attention.value_embedding}
    for name, embedding in tables.items():
        if embedding is not None:
            path = f"dot_product_attention_relative/relative_positions_{name}/embeddings"
            names[f"{prefix}/{path}"] = embedding.table
    return names


def _norm_names(prefix, norm):
    return {
        f"{prefix}/layer_norm/layer_norm_scale": norm.gamma,
        f"{prefix}/layer_norm/layer_norm_bias": norm.beta,
    }


def embedding_names(model):
    """The `[V, D]` tables: scope in tensor2tensor's checkpoint -> keras Variable."""
    config = model.config
    scope = f"transformer/symbol_modality_{config.vocab_size}_{config.hidden_dim}"
    if config.tie_embeddings:
        return {f"{scope}/shared": model.source_embedding.embeddings}
    return {
        f"{scope}/input_emb": model.source_embedding.embeddings,
        f"{scope}/target_emb": model.target_embedding.embeddings,
        f"{scope}/softmax": model.output_embedding.embeddings,
    }


def shard_sizes(vocab_size, num_shards=16):
    """Rows of each shard of a table: the first `vocab_size % num_shards` have one more.

    >>> shard_sizes(37)
    [3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    return [vocab_size // num_shards + (i < vocab_size % num_shards) for i in range(num_shards)]


def expected_shapes(model, num_shards=16):
    """A dict: every name that a checkpoint of this model has -> shape."""
    shapes = {name: tuple(variable.shape) for name, variable in t2t_names(model).items()}
    for scope, variable in embedding_names(model).items():
        for i, rows in enumerate(shard_sizes(variable.shape[0], num_shards)):
            shapes[f"{scope}/weights_{i}"] = (rows, variable.shape[1])
    return shapes


def is_weight(name):
    """Whether a variable of a checkpoint is a weight, not the step or an optimizer's slot."""
    return not _NOT_WEIGHTS.match(name)


def load_t2t_weights(model, arrays, num_shards=16):
    """Sets the weights of a Transformer from tensor2tensor's variables.

    Args:
        model: a `Transformer`, for instance of `config_from_hparams`.
        arrays: a dict: name -> array. The step and optimizers' slots are left out.
        num_shards: t2t's `symbol_modality_num_shards`.

    Raises:
        ValueError: if a variable is missing, is one too many, or has another
            shape; the text names each, both shapes and the hparam to look at.
            The model is then as it was.
    """
    arrays = {name: np.asarray(array) for name, array in arrays.items() if is_weight(name)}
    check_shapes(
        {name: array.shape for name, array in arrays.items()}, expected_shapes(model, num_shards)
    )
    for name, variable in t2t_names(model).items():
        variable.assign(arrays[name])
    for scope, variable in embedding_names(model).items():
        shards = [arrays[f"{scope}/weights_{i}"] for i in range(num_shards)]
        variable.assign(np.concatenate(shards, axis=0))


def t2t_weights(model, num_shards=16):
    """A Transformer's weights as tensor2tensor's variables: a dict name -> array.

    Raises:
        ValueError: for what t2t has no variables for: tables per head, one of
            the two tables, or K = 0.
    """
    _check_expressible(model.config)
    arrays = {name: _numpy(variable) for name, variable in t2t_names(model).items()}
    for scope, variable in embedding_names(model).items():
        ends = np.cumsum(shard_sizes(variable.shape[0], num_shards))
        for i, shard in enumerate(np.split(_numpy(variable), ends[:-1])):
            arrays[f"{scope}/weights_{i}"] = shard
    return arrays


def _numpy(variable):
    return np.array(keras.ops.convert_to_numpy(keras.ops.convert_to_tensor(variable)))


def _check_expressible(config):
    if not config.relative:
        return
    for name in ("share_heads", "use_key_table", "use_value_table"):
        if not getattr(config, name):
            raise ValueError(
                f"Expected {name}=True: tensor2tensor has no variables for anything else. "
                f"Received: {name}=False."
            )
    if config.max_relative_position == 0:
        raise ValueError(
            "Expected max_relative_position of at least 1: tensor2tensor refuses 0. Received: 0."
        )


# Part of a variable's name -> what decides its presence or shape.
_HPARAM_OF = (
    ("symbol_modality", "the vocabulary, hidden_size, symbol_modality_num_shards and shared_embedding_and_softmax_weights"),
    ("target_space_embedding", "use_target_space_embedding"),
    ("positional_embedding", "pos and max_length"),
    ("relative_positions", "self_attention_type, max_relative_position and num_heads"),
    ("layer_prepostprocess", "layer_preprocess_sequence and num_hidden_layers"),
    ("layer_postprocess", "layer_postprocess_sequence and num_hidden_layers"),
    ("/ffn/", "filter_size, hidden_size and num_hidden_layers"),
    ("multihead_attention", "hidden_size and num_hidden_layers"),
)


def check_shapes(found, expected):
    """Raises a ValueError that names every difference between two dicts name -> shape."""
    problems = []
    for name in sorted(expected.keys() - found.keys()):
        problems.append(f"missing: {name}, expected shape {list(expected[name])}{_hint(name)}")
    for name in sorted(found.keys() - expected.keys()):
        problems.append(f"one too many: {name}, received shape {list(found[name])}{_hint(name)}")
    for name in sorted(expected.keys() & found.keys()):
        if tuple(expected[name]) != tuple(found[name]):
            problems.append(
                f"another shape: {name}, expected {list(expected[name])}, "
                f"received {list(found[name])}{_hint(name)}"
            )
    if problems:
        more = f"\n  and {len(problems) - 12} more" if len(problems) > 12 else ""
        raise ValueError(
            "Expected a checkpoint with the variables that the hparams describe. Received one that "
            "differs:\n  " + "\n  ".join(problems[:12]) + more
        )


def _hint(name):
    for part, hparams in _HPARAM_OF:
        if part in name:
            return f" (look at {hparams})"
    return ""
