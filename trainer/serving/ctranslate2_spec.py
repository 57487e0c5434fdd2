"""Converts a Transformer to CTranslate2's specification of a model.

The computation of CTranslate2 is that of its files `src/layers/transformer.cc`, `attention.cc` and
`common.cc`.
"""

import numpy as np
from ctranslate2.specs import transformer_spec

from t2t_relpos.layers.position_encodings import sinusoids
from trainer.data.token_ids import PAD_ID
from trainer.data.token_names import TokenNames

# Number of sinusoidal positions: twice CTranslate2's default limit of a sentence.
MOST_POSITIONS = 2048
# A logit whose exponential is 0.
NEVER = -1e9
# Width of a feed-forward network that adds zeros.
INERT_WIDTH = 8


def build(model, tokens: TokenNames) -> transformer_spec.TransformerSpec:
    """Returns a Transformer as a validated specification without quantization.

    Args:
        model: a `t2t_relpos.models.Transformer` that passes `ctranslate2_model.check_expressible`.
        tokens: the names of its ids.
    """
    encoder = _stack(transformer_spec.TransformerEncoderSpec, model.config, model.encoder_layers)
    decoder = _stack(transformer_spec.TransformerDecoderSpec, model.config, model.decoder_layers)
    _set_embeddings(encoder, decoder, model)
    if model.source_position is not None:
        encoder.position_encodings.encodings = _encodings(model.source_position, model.config)
        # The decoder repeats its last learned position. The encoder's input is limited instead.
        last = _encodings(model.target_position, model.config)
        beyond = max(MOST_POSITIONS - len(last), 0)
        decoder.position_encodings.encodings = np.pad(last, [(0, beyond), (0, 0)], mode="edge")
    if model.config.normalize_first:
        _set_norm(encoder.layer_norm, model.encoder_norm)
        _set_norm(decoder.layer_norm, model.decoder_norm)
    spec = transformer_spec.TransformerSpec(encoder, decoder)
    spec.register_source_vocabulary(tokens.names)
    spec.register_target_vocabulary(tokens.names)
    _set_config(spec.config, model.config, tokens)
    spec.validate()
    return spec


def _set_config(spec_config, config, tokens):
    spec_config.unk_token = tokens.unknown
    spec_config.eos_token = tokens.eos
    spec_config.bos_token = spec_config.decoder_start_token = tokens.pad
    spec_config.add_source_eos = True
    spec_config.layer_norm_epsilon = config.layer_norm_epsilon


def _stack(spec_class, config, layers):
    """Returns the specification of an encoder or decoder with the weights of its layers."""
    # CTranslate2 adds sinusoids if the first layer has neither tables nor position encodings.
    # Models without positions therefore get tables of zeros. For relative positions with
    # sinusoids, a first layer without tables is added that returns its input.
    with_tables = config.position not in ("sinusoidal", "learned")
    inert = config.position == "relative+sinusoidal"
    stack = spec_class(
        len(layers) + inert,
        config.num_heads,
        pre_norm=config.normalize_first,
        relative_position=with_tables and not inert,
    )
    if inert:
        _set_inert(stack.layer[0], config.hidden_dim)
        stack.layer[1:] = [type(stack.layer[0])(relative_position=True) for _ in layers]
    for spec, layer in zip(stack.layer[inert:], layers, strict=True):
        _set_attention(
            spec.self_attention, layer.self_attention, layer.self_attention_residual, with_tables
        )
        if hasattr(layer, "cross_attention"):
            _set_attention(spec.attention, layer.cross_attention, layer.cross_attention_residual)
        _set_linear(spec.ffn.linear_0, layer.feed_forward.inner)
        _set_linear(spec.ffn.linear_1, layer.feed_forward.outer)
        _set_norm(spec.ffn.layer_norm, layer.feed_forward_residual.norm)
    return stack


def _set_attention(spec, attention, residual, with_tables=False):
    kernels = [
        np.asarray(dense.matrix).T
        for dense in (attention.query_dense, attention.key_dense, attention.value_dense)
    ]
    # Self-attention has one matrix for query, key and value; cross-attention has two.
    num_first = 3 if len(spec.linear) == 2 else 1
    spec.linear[0].weight = np.concatenate(kernels[:num_first])
    if num_first == 1:
        spec.linear[1].weight = np.concatenate(kernels[1:])
    spec.linear[-1].weight = np.asarray(attention.output_dense.matrix).T
    _set_norm(spec.layer_norm, residual.norm)
    if with_tables:
        spec.relative_position_keys = _table(attention.key_embedding, attention)
        spec.relative_position_values = _table(attention.value_embedding, attention)


def _table(embedding, attention):
    """Returns a table `[2K + 1, H]`; zeros if the layer has none."""
    rows = 2 * (attention.max_relative_position or 0) + 1
    if embedding is None:
        return np.zeros((rows, attention.key_dim), "float32")
    return _array(embedding.table).reshape(rows, attention.key_dim)


def _set_inert(spec, width):
    """Makes a pre-norm layer return its input: its sub-layers add zeros."""
    attentions = [spec.self_attention] + ([spec.attention] if hasattr(spec, "attention") else [])
    for attention in attentions:
        _set_unit_norm(attention.layer_norm, width)
        rows = (3, 1) if len(attention.linear) == 2 else (1, 2, 1)
        for linear, count in zip(attention.linear, rows, strict=True):
            linear.weight = np.zeros((count * width, width), "float32")
    _set_unit_norm(spec.ffn.layer_norm, width)
    spec.ffn.linear_0.weight = np.zeros((INERT_WIDTH, width), "float32")
    spec.ffn.linear_1.weight = np.zeros((width, INERT_WIDTH), "float32")


def _set_embeddings(encoder, decoder, model):
    """Sets the three embedding tables. Padding, the first decoder input, has zeros."""
    config = model.config
    source, target, output = (
        _without_padding(embedding.embeddings)
        for embedding in (model.source_embedding, model.target_embedding, model.output_embedding)
    )
    if config.target_space_id is not None:
        # The vector is added after scaling, so the table is scaled here.
        space = _array(model.target_space_embedding)[config.target_space_id]
        source = source * np.float32(config.hidden_dim**0.5) + space
        encoder.scale_embeddings = False
    encoder.embeddings[0].weight = source
    decoder.embeddings.weight = target
    decoder.projection.weight = output
    bias = np.zeros(config.vocab_size, "float32")
    bias[PAD_ID] = NEVER
    decoder.projection.bias = bias


def _encodings(position, config):
    """Returns the vectors of all positions, `[P, D]`."""
    if config.position == "learned":
        return _array(position.embeddings)
    return _array(sinusoids(np.arange(MOST_POSITIONS), config.hidden_dim))


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
