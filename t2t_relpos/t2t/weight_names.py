"""Names and shapes of the tensor2tensor variables of a `Transformer`."""

_BODY = "transformer/body"


def t2t_names(model):
    """Returns tensor2tensor's names of all weights except the `[V, D]` embedding tables.

    Args:
        model: a `Transformer` with tables shared by heads.

    Returns:
        A dict that maps names to Keras variables or `KernelMatrix` objects.
    """
    names = {}
    config = model.config
    for stack, layers, final_norm in (
        ("encoder", model.encoder_layers, model.encoder_norm),
        ("decoder", model.decoder_layers, model.decoder_norm),
    ):
        for i, layer in enumerate(layers):
            names.update(_layer_names(f"{_BODY}/{stack}/layer_{i}", layer, config))
        if final_norm is not None:
            names.update(_norm_names(f"{_BODY}/{stack}/layer_prepostprocess", final_norm))
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
    """Returns a dict that maps tensor2tensor scopes to the `[V, D]` embedding tables."""
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
