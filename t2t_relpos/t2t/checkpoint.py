"""tensor2tensor's variables <-> the weights of a Transformer. Reads no file."""

import numpy as np

from t2t_relpos.t2t.differences import check_shapes
from t2t_relpos.t2t.variable_scopes import weights_of
from t2t_relpos.t2t.weight_names import embedding_names, expected_shapes, shard_sizes, t2t_names


def load_t2t_weights(model, arrays, num_shards=16):
    """Sets the weights of a Transformer from tensor2tensor's variables.

    Args:
        model: a `Transformer`, for instance of `config_from_hparams`.
        arrays: a dict: name -> array. The step and optimizers' slots are left
            out. Names with doubled scopes
            (`transformer/parallel_0_4/transformer/transformer/body/…`) are
            those of the same variables without.
        num_shards: t2t's `symbol_modality_num_shards`.

    Raises:
        ValueError: if a variable is missing, unexpected, or has another
            shape; the text names each, both shapes and the hparam to look at.
            Or if one is not of floating-point numbers. The model is then as it
            was.
    """
    _check_expressible(model.config)
    arrays = {name: np.asarray(array) for name, array in weights_of(arrays).items()}
    check_shapes(
        {name: array.shape for name, array in arrays.items()}, expected_shapes(model, num_shards)
    )
    for name, array in arrays.items():
        if not np.issubdtype(array.dtype, np.floating):
            raise ValueError(
                f"Expected variables of float32. Received: {name} of dtype {array.dtype} "
                "(look at weight_dtype)."
            )
    for name, variable in t2t_names(model).items():
        variable.assign(arrays[name])
    for scope, variable in embedding_names(model).items():
        shards = [arrays[f"{scope}/weights_{i}"] for i in range(num_shards)]
        variable.assign(np.concatenate(shards, axis=0))


def t2t_weights(model, num_shards=16):
    """A Transformer's weights as tensor2tensor's variables.

    Args:
        model: a `Transformer`.
        num_shards: t2t's `symbol_modality_num_shards`.

    Returns:
        A dict: name -> array, without the step.

    Raises:
        ValueError: for what t2t has no variables for: tables per head, one of
            the two tables, relative cross-attention, or K = 0.
    """
    _check_expressible(model.config)
    arrays = {name: _numpy(variable) for name, variable in t2t_names(model).items()}
    for scope, variable in embedding_names(model).items():
        ends = np.cumsum(shard_sizes(variable.shape[0], num_shards))
        for i, shard in enumerate(np.split(_numpy(variable), ends[:-1])):
            arrays[f"{scope}/weights_{i}"] = shard
    return arrays


def _numpy(variable):
    return np.array(variable.numpy())


def _check_expressible(config):
    if not config.relative:
        return
    for name in ("share_heads", "use_key_table", "use_value_table"):
        if not getattr(config, name):
            raise ValueError(
                f"Expected {name}=True: tensor2tensor has no variables for anything else. "
                f"Received: {name}=False."
            )
    if config.relative_cross_attention:
        raise ValueError(
            "Expected relative_cross_attention=False: tensor2tensor has no relative positions "
            "between decoder and encoder. Received: relative_cross_attention=True."
        )
    if config.max_relative_position == 0:
        raise ValueError(
            "Expected max_relative_position of at least 1: tensor2tensor refuses 0. Received: 0."
        )
