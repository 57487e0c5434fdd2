"""Converts a Transformer to a model specification of CTranslate2.

CTranslate2 computes its layers in `src/layers/transformer.cc`, `attention.cc` and `common.cc`.
"""

import keras
import numpy as np
from ctranslate2.specs import transformer_spec

from t2t_relpos.attention.band import Distances
from t2t_relpos.backend.keras_private import sublayers
from t2t_relpos.layers.embeddings import sinusoids

from ..data.tokenizer import EOS_ID, PAD_ID

# Number of positions: twice CTranslate2's default maximum length of a sentence.
_MAX_POSITIONS = 2048
# A logit whose exponential is 0.
_MASKED_LOGIT = -1e9
# Inner width of a feed-forward network of zeros.
_ZERO_WIDTH = 8


def build(
    model, source_names: list[str], target_names: list[str], unk_id: int
) -> transformer_spec.TransformerSpec:
    """Returns the validated specification of a `Transformer`, without quantization.

    The names of the token ids of each side must be unique.

    Raises:
        ValueError: if CTranslate2 does not support the architecture.
    """
    _check_supported(model.config)
    encoder = _stack(transformer_spec.TransformerEncoderSpec, model.config, model.encoder_layers)
    decoder = _stack(transformer_spec.TransformerDecoderSpec, model.config, model.decoder_layers)
    _set_embeddings(encoder, decoder, model)
    if model.source_position is not None:
        encoder.position_encodings.encodings = _encodings(model.source_position, model.config)
        # Outputs may be longer than a learned table, so its last row is repeated.
        encodings = _encodings(model.target_position, model.config)
        missing = max(_MAX_POSITIONS - len(encodings), 0)
        encodings = np.pad(encodings, [(0, missing), (0, 0)], mode="edge")
        decoder.position_encodings.encodings = encodings
    if model.config.normalize_first:
        _set_norm(encoder.layer_norm, model.encoder_norm)
        _set_norm(decoder.layer_norm, model.decoder_norm)
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    # CTranslate2 has one name of each special token for both vocabularies.
    special = {i: target_names[i] for i in (PAD_ID, EOS_ID, unk_id)}
    spec.register_source_vocabulary([special.get(i, name) for i, name in enumerate(source_names)])
    spec.register_target_vocabulary(target_names)
    spec.config.unk_token = special[unk_id]
    spec.config.eos_token = special[EOS_ID]
    spec.config.bos_token = spec.config.decoder_start_token = special[PAD_ID]
    spec.config.add_source_eos = True
    spec.config.layer_norm_epsilon = _epsilon(model)
    spec.validate()
    return spec


def _check_supported(config):
    has_tables = config.relative and (config.use_key_table or config.use_value_table)
    if has_tables and not config.share_heads and config.num_heads > 1:
        raise ValueError(
            "Expected relative positions that all heads share, since CTranslate2 has one table "
            f"for all heads of a layer. Received: share_heads=False with {config.num_heads} heads. "
            "Presets such as tiny and shaw_big share them."
        )
    if config.relative_cross_attention:
        raise ValueError(
            "Expected cross-attention without relative positions, since CTranslate2 does not "
            "support them there. Received: relative_cross_attention=True."
        )
    if config.position == "relative+learned":
        raise ValueError(
            "Expected either relative or learned positions, since CTranslate2 adds no learned "
            "positions to layers with relative ones. Received: position='relative+learned'."
        )
    if config.key_dim is not None or config.value_dim is not None:
        raise ValueError(
            "Expected attention heads of the model's width divided by their number, since "
            f"CTranslate2 has no other sizes. Received: key_dim={config.key_dim}, "
            f"value_dim={config.value_dim}."
        )
    if config.position == "relative+sinusoidal" and not config.normalize_first:
        raise ValueError(
            "Expected either relative positions or sinusoids in a post-norm model, since "
            "CTranslate2 adds no sinusoids if the first layer has relative positions. Received: "
            "position='relative+sinusoidal', normalize_first=False."
        )


def _epsilon(model):
    """Returns the epsilon of all normalizations. Raises ValueError if they differ."""
    norms = (x for x in sublayers(model) if isinstance(x, keras.layers.LayerNormalization))
    epsilons = sorted({norm.epsilon for norm in norms})
    if len(epsilons) != 1:
        raise ValueError(
            "Expected one epsilon of all layer normalizations, since CTranslate2 has one value for "
            f"a model. Received: {', '.join(map(str, epsilons))}."
        )
    return epsilons[0]


def _stack(spec_class, config, layers):
    """Returns the specification of an encoder or decoder with the weights of its layers."""
    # CTranslate2 adds sinusoids unless the first layer has tables or there are position encodings.
    # Models without positions therefore get tables of zeros. For relative positions with
    # sinusoids, an identity layer without tables is added before the first layer.
    with_tables = config.position not in ("sinusoidal", "learned")
    has_identity = config.position == "relative+sinusoidal"
    stack = spec_class(
        len(layers) + has_identity,
        config.num_heads,
        pre_norm=config.normalize_first,
        relative_position=with_tables and not has_identity,
    )
    if has_identity:
        _set_identity(stack.layer[0], config.hidden_dim)
        stack.layer[1:] = [type(stack.layer[0])(relative_position=True) for _ in layers]
    for spec, layer in zip(stack.layer[has_identity:], layers, strict=True):
        attention, residual = layer.self_attention, layer.self_attention_residual
        _set_attention(spec.self_attention, attention, residual, with_tables=with_tables)
        if layer.cross_attention is not None:
            _set_attention(spec.attention, layer.cross_attention, layer.cross_attention_residual)
        _set_linear(spec.ffn.linear_0, layer.feed_forward.inner)
        _set_linear(spec.ffn.linear_1, layer.feed_forward.outer)
        _set_norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)
    return stack


def _set_attention(spec, attention, residual, *, with_tables=False):
    kernels = [
        np.asarray(dense.matrix).T
        for dense in (attention.query_dense, attention.key_dense, attention.value_dense)
    ]
    # Self-attention has one matrix for query, key and value. Cross-attention has one for the query
    # and one for key and value.
    if len(spec.linear) == 2:
        spec.linear[0].weight = np.concatenate(kernels)
    else:
        spec.linear[0].weight = kernels[0]
        spec.linear[1].weight = np.concatenate(kernels[1:])
    spec.linear[-1].weight = np.asarray(attention.output_dense.matrix).T
    _set_norm(spec.layer_norm, residual.norm)
    if with_tables:
        spec.relative_position_keys = _table(attention.key_embedding, attention)
        spec.relative_position_values = _table(attention.value_embedding, attention)


def _table(embedding, attention):
    """Returns a table `[2K + 1, H]`, of zeros if the layer has none.

    CTranslate2 has one distance K. The table of two distances is extended to the larger one with
    copies of its first or last row, which represents all larger distances.
    """
    left, right = Distances.of(attention.max_relative_position or 0)
    max_distance = max(left, right)
    if embedding is None:
        return np.zeros((2 * max_distance + 1, attention.key_dim), "float32")
    table = _array(embedding.table).reshape(left + right + 1, attention.key_dim)
    return np.pad(table, [(max_distance - left, max_distance - right), (0, 0)], mode="edge")


def _set_identity(spec, width):
    """Makes a pre-norm layer return its input: its sublayers add zeros."""
    attentions = [spec.self_attention] + ([spec.attention] if hasattr(spec, "attention") else [])
    for attention in attentions:
        _set_unit_norm(attention.layer_norm, width)
        rows = (3, 1) if len(attention.linear) == 2 else (1, 2, 1)
        for linear, count in zip(attention.linear, rows, strict=True):
            linear.weight = np.zeros((count * width, width), "float32")
    _set_unit_norm(spec.ffn.layer_norm, width)
    spec.ffn.linear_0.weight = np.zeros((_ZERO_WIDTH, width), "float32")
    spec.ffn.linear_1.weight = np.zeros((width, _ZERO_WIDTH), "float32")


def _set_embeddings(encoder, decoder, model):
    """Sets the three embedding tables. Padding, also the first decoder input, has a zero row."""
    config = model.config
    source, target, output = (
        _without_padding(embedding.embeddings)
        for embedding in (model.source_embedding, model.target_embedding, model.output_embedding)
    )
    if config.target_space_id is not None:
        # The vector is added to scaled embeddings, so the table is scaled here.
        space = _array(model.target_space_embedding)[config.target_space_id]
        source = source * np.float32(config.hidden_dim**0.5) + space
        encoder.scale_embeddings = False
    encoder.embeddings[0].weight = source
    decoder.embeddings.weight = target
    decoder.projection.weight = output
    bias = np.zeros(config.vocab_size, "float32")
    bias[PAD_ID] = _MASKED_LOGIT
    decoder.projection.bias = bias


def _encodings(position, config):
    """Returns the encodings of all positions, `[P, D]`."""
    if config.position == "learned":
        return _array(position.embeddings)
    return _array(sinusoids(np.arange(_MAX_POSITIONS), config.hidden_dim))


def _without_padding(embeddings):
    table = _array(embeddings).copy()
    table[PAD_ID] = 0
    return table


def _set_linear(spec, dense):
    spec.weight = _array(dense.kernel).T
    if dense.bias is not None:
        spec.bias = _array(dense.bias)


def _set_norm(spec, norm):
    spec.gamma, spec.beta = _array(norm.gamma), _array(norm.beta)


def _set_unit_norm(spec, width):
    spec.gamma, spec.beta = np.ones(width, "float32"), np.zeros(width, "float32")


def _array(variable):
    return np.asarray(variable, "float32")
