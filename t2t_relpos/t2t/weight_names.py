"""Names and shapes of the tensor2tensor variables of a `Transformer` or a `CausalLM`.

Last: which variables of a checkpoint are weights, and their names without doubled scopes.
"""

import re

from t2t_relpos.layers.t2t_variants import RelativeMultiHeadAttentionV2
from t2t_relpos.models.causal_lm import CausalLM

_BODY = "transformer/body"
# Variables that are neither weights nor optimizer slots: the global step, running losses, and the
# counters of optimizers and of loss scaling.
_COUNTERS = re.compile(
    r"global_step|(losses_avg|train_stats|training)/.*"
    r"|beta[12]_power(_\d+)?|(current_)?loss_scale|(num_)?good_steps|bad_steps"
)
# If tensor2tensor is imported before tf.disable_v2_behavior(), Keras layers create its kernels.
# Keras prefixes variable names with all open scopes, including the replica's, and numbers scopes
# that are opened twice:
# transformer/parallel_0_4/transformer/transformer/body/decoder/layer_0_1/ffn/conv1/kernel.
_DOUBLED_SCOPE = re.compile(
    r"(?:while/)?transformer/parallel_\d+(?:_\d+)?/transformer/(?=transformer/)"
)
_COUNTED_LAYER = re.compile(r"/layer_(\d+)_\d+/")


def is_language_model(names):
    """Returns whether variables are those of a model without encoder.

    Args:
        names: names of the variables of a tensor2tensor Transformer.

    Example:
    >>> from t2t_relpos.t2t import is_language_model
    >>> is_language_model(["transformer/body/decoder/layer_0/ffn/conv1/bias"])
    True
    """
    return not any(f"{_BODY}/encoder/" in name for name in names)


def t2t_names(model):
    """Returns tensor2tensor's names of all weights except the `[V, D]` embedding tables.

    Args:
        model: a `Transformer` or a `CausalLM`.

    Returns:
        A dict that maps names to Keras variables or `KernelMatrix` objects.
    """
    if isinstance(model, CausalLM):
        stacks = [("decoder", model.blocks, model.norm)]
        positions = {"targets": model.position}
    else:
        stacks = [
            ("encoder", model.encoder_layers, model.encoder_norm),
            ("decoder", model.decoder_layers, model.decoder_norm),
        ]
        positions = {"inputs": model.source_position, "targets": model.target_position}
    names, config = {}, model.config
    for stack, layers, final_norm in stacks:
        for i, layer in enumerate(layers):
            names.update(_layer_names(f"{_BODY}/{stack}/layer_{i}", layer, config))
        if final_norm is not None:
            names.update(_norm_names(f"{_BODY}/{stack}/layer_prepostprocess", final_norm))
    if config.added_position == "learned":
        for name, position in positions.items():
            names[f"{_BODY}/{name}_positional_embedding"] = position.embeddings
    if config.target_space_id is not None and not isinstance(model, CausalLM):
        names[f"{_BODY}/target_space_embedding/kernel"] = model.target_space_embedding
    return names


def _layer_names(prefix, layer, config):
    norm = "layer_prepostprocess" if config.normalize_first else "layer_postprocess"
    names = {}
    sublayers = {"self_attention": "self_attention", "encdec_attention": "cross_attention"}
    for t2t_name, attribute in sublayers.items():
        if getattr(layer, attribute) is not None:
            names.update(
                _attention_names(
                    f"{prefix}/{t2t_name}/multihead_attention", getattr(layer, attribute)
                )
            )
            residual = getattr(layer, f"{attribute}_residual")
            names.update(_norm_names(f"{prefix}/{t2t_name}/{norm}", residual.norm))
    for conv, dense in (("conv1", layer.feed_forward.inner), ("conv2", layer.feed_forward.outer)):
        names[f"{prefix}/ffn/{conv}/kernel"] = dense.kernel
        names[f"{prefix}/ffn/{conv}/bias"] = dense.bias
    names.update(_norm_names(f"{prefix}/ffn/{norm}", layer.feed_forward_residual.norm))
    return names


def _attention_names(prefix, attention):
    names = {
        f"{prefix}/q/kernel": attention.query_dense.matrix,
        f"{prefix}/k/kernel": attention.key_dense.matrix,
        f"{prefix}/v/kernel": attention.value_dense.matrix,
        f"{prefix}/output_transform/kernel": attention.output_dense.matrix,
    }
    tables = {"key": attention.key_embedding, "value": attention.value_embedding}
    for name, embedding in tables.items():
        if embedding is None:
            continue
        if isinstance(attention, RelativeMultiHeadAttentionV2):
            path = f"dot_product_self_attention_relative_v2/{name}_relative_embeddings"
            names[f"{prefix}/{path}"] = embedding
        else:
            path = f"dot_product_attention_relative/relative_positions_{name}s/embeddings"
            names[f"{prefix}/{path}"] = embedding.table
    return names


def _norm_names(prefix, norm):
    return {
        f"{prefix}/layer_norm/layer_norm_scale": norm.gamma,
        f"{prefix}/layer_norm/layer_norm_bias": norm.beta,
    }


def embedding_names(model):
    """Returns a dict that maps tensor2tensor scopes to the `[V, D]` embedding tables."""
    config = model.config
    width = config.hidden_dim
    scope = f"transformer/symbol_modality_{config.vocab_size}_{width}"
    if config.tie_embeddings:
        return {f"{scope}/shared": model.output_embedding.embeddings}
    if isinstance(model, CausalLM):
        tables = {f"{scope}/target_emb": model.embedding}
    else:
        source_scope = f"transformer/symbol_modality_{config.num_source_ids}_{width}"
        tables = {
            f"{source_scope}/input_emb": model.source_embedding,
            f"{scope}/target_emb": model.target_embedding,
        }
    tables[f"{scope}/softmax"] = model.output_embedding
    return {name: table.embeddings for name, table in tables.items()}


def shard_sizes(vocab_size, num_shards=16):
    """Returns the number of rows of each shard of an embedding table.

    The first `vocab_size % num_shards` shards have one row more.

    >>> from t2t_relpos.t2t.weight_names import shard_sizes
    >>> shard_sizes(37)
    [3, 3, 3, 3, 3, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2, 2]
    """
    return [vocab_size // num_shards + (i < vocab_size % num_shards) for i in range(num_shards)]


def expected_shapes(model, num_shards=16):
    """Returns a dict that maps all variable names in a checkpoint of `model` to shapes."""
    shapes = {name: tuple(variable.shape) for name, variable in t2t_names(model).items()}
    for scope, variable in embedding_names(model).items():
        for i, rows in enumerate(shard_sizes(variable.shape[0], num_shards)):
            shapes[f"{scope}/weights_{i}"] = (rows, variable.shape[1])
    return shapes


def canonical_weights(arrays):
    """Returns the weights among a checkpoint's variables, under the names of `t2t_names`.

    The global step, running losses and optimizer slots are left out. A slot has the name of its
    variable as prefix (`NAME/Adam`) or is under `training/`.

    Args:
        arrays: a dict that maps variable names to arrays.

    Returns:
        A dict that maps weight names to arrays.

    Raises:
        ValueError: if several variables correspond to the same weight.

    Example:
    >>> from t2t_relpos.t2t.weight_names import canonical_weights
    >>> canonical_weights({"global_step": 7, "body/v/kernel": 2, "body/v/kernel/Adam": 3})
    {'body/v/kernel': 2}
    """
    weights, original = {}, {}
    for name, array in arrays.items():
        is_slot = name.rpartition("/")[0] in arrays
        if is_slot or _COUNTERS.fullmatch(name):
            continue
        canonical = canonical_name(name)
        if canonical in weights:
            raise ValueError(
                f"Expected one variable for each weight. Received two for {canonical}: "
                f"{original[canonical]} and {name}. Separate weights for each replica are not "
                "supported."
            )
        weights[canonical], original[canonical] = array, name
    return weights


def canonical_name(name):
    """Returns a variable's name without doubled scopes.

    >>> from t2t_relpos.t2t.weight_names import canonical_name
    >>> scope = "transformer/parallel_0_4/transformer/transformer/body"
    >>> canonical_name(f"{scope}/decoder/layer_0_1/ffn/conv1/bias")
    'transformer/body/decoder/layer_0/ffn/conv1/bias'
    """
    scope = _DOUBLED_SCOPE.match(name)
    return _COUNTED_LAYER.sub(r"/layer_\1/", name[scope.end() :]) if scope else name
