"""Converts tensor2tensor hparams to a `TransformerConfig`."""

from t2t_relpos.hparams_sets import UNSUPPORTED_UNLESS
from t2t_relpos.models.config import TransformerConfig

_ATTENTIONS = {
    "dot_product": "",
    "dot_product_relative": "relative",
    "dot_product_relative_v2": "relative_v2",
}
_ADDED = {"timing": "sinusoidal", "emb": "learned", None: ""}
# With bfloat16, variables are encoded (see `decode_eighth_power`).
_WEIGHT_DTYPES = ("float32", "bfloat16")
_NORMALIZE_FIRST = {("n", "da"): True, ("none", "dan"): False}


def config_from_hparams(
    hparams, vocab_size, target_space_id=0, *, language_model=False, source_vocab_size=None
):
    """Returns the architecture that hparams describe.

    Args:
        hparams: a dict as returned by `parse_hparams`.
        vocab_size: number of ids in the vocabulary, including padding and end of sentence.
        target_space_id: row of the target space embedding that is added to the encoder inputs.
            Default: 0, t2t's id of plain text problems. Not used by a language model.
        language_model: whether the problem has no inputs, so that the model is a `CausalLM`.
            Default: False.
        source_vocab_size: number of ids of the inputs. If it differs from `vocab_size`, t2t shares
            no tables, whatever the hparams say. Default: None, `vocab_size`.

    Returns:
        A `TransformerConfig`.

    Raises:
        ValueError: if an hparam requires an unsupported feature. The message names the hparam
            and the supported values.

    Example:
    >>> from t2t_relpos.t2t import config_from_hparams
    >>> from t2t_relpos.t2t import parse_hparams
    >>> config = config_from_hparams(parse_hparams("transformer_relative_tiny"), vocab_size=8000)
    >>> config.position, config.max_relative_position, config.hidden_dim
    ('relative', 20, 128)
    >>> hparams = parse_hparams("lmx_relative", "max_relative_position=512")
    >>> config_from_hparams(hparams, vocab_size=8000, language_model=True).position
    'relative_v2+sinusoidal'
    """
    _check_supported(hparams, language_model)
    layers = hparams["num_hidden_layers"]
    v2 = hparams["self_attention_type"] == "dot_product_relative_v2"
    target_space = hparams["use_target_space_embedding"] and not language_model
    one_vocabulary = source_vocab_size in (None, vocab_size)
    return TransformerConfig(
        vocab_size=vocab_size,
        num_encoder_layers=hparams["num_encoder_layers"] or layers,
        num_decoder_layers=hparams["num_decoder_layers"] or layers,
        hidden_dim=hparams["hidden_size"],
        intermediate_dim=hparams["filter_size"],
        num_heads=hparams["num_heads"],
        position=_position(hparams),
        max_relative_position=hparams["max_relative_position"],
        # In dot_product_relative, heads always share both tables.
        share_heads=hparams["heads_share_relative_embedding"] if v2 else True,
        use_value_table=hparams["add_relative_to_values"] if v2 else True,
        normalize_first=_NORMALIZE_FIRST[_norm(hparams)],
        tie_embeddings=hparams["shared_embedding_and_softmax_weights"] and one_vocabulary,
        dropout=hparams["layer_prepostprocess_dropout"],
        attention_dropout=hparams["attention_dropout"],
        activation_dropout=hparams["relu_dropout"],
        layer_norm_epsilon=hparams["norm_epsilon"],
        # 0 means no limit. Only learned positions need one.
        max_length=hparams["max_length"] or TransformerConfig.max_length,
        target_space_id=target_space_id if target_space else None,
        key_dim=_head_dim(hparams, "attention_key_channels"),
        value_dim=_head_dim(hparams, "attention_value_channels"),
        source_vocab_size=None if one_vocabulary else source_vocab_size,
    )


def _position(hparams):
    parts = _ATTENTIONS[hparams["self_attention_type"]], _ADDED[_pos(hparams)]
    return "+".join(filter(None, parts)) or "none"


def _pos(hparams):
    """Returns the position encoding. The set lmx_relative_nopos has "none" instead of None."""
    return None if hparams["pos"] == "none" else hparams["pos"]


def _norm(hparams):
    return hparams["layer_preprocess_sequence"], hparams["layer_postprocess_sequence"]


def _head_dim(hparams, key):
    """Returns the channels per head, or None for the default, the hidden size."""
    channels, num_heads = hparams[key], hparams["num_heads"]
    if channels % num_heads:
        raise ValueError(
            f"Expected num_heads to divide {key}. Received: num_heads={num_heads}, "
            f"{key}={channels}."
        )
    return channels // num_heads or None


def _check_supported(hparams, language_model):
    """Raises ValueError if hparams require a feature that is not supported."""
    if language_model:
        # The transformation of inputs, which a language model does not have.
        bottom = {key: value for key, value in hparams["bottom"].items() if key != "inputs"}
        hparams = {**hparams, "bottom": bottom}
    # Only the sets of models with memory have memory_type.
    required = {**UNSUPPORTED_UNLESS, "memory_type": None}
    messages = [
        _unsupported(key, hparams.get(key), [only])
        for key, only in required.items()
        if hparams.get(key) != only
    ]
    for key, known in (
        ("self_attention_type", _ATTENTIONS),
        ("pos", _ADDED),
        ("weight_dtype", _WEIGHT_DTYPES),
    ):
        value = _pos(hparams) if key == "pos" else hparams[key]
        if value not in known:
            messages.append(_unsupported(key, value, known))
    if _norm(hparams) not in _NORMALIZE_FIRST:
        keys = "layer_preprocess_sequence and layer_postprocess_sequence"
        messages.append(_unsupported(keys, _norm(hparams), _NORMALIZE_FIRST))
    if hparams["shared_embedding"] and not hparams["shared_embedding_and_softmax_weights"]:
        messages.append(
            _unsupported("shared_embedding without shared softmax weights", True, [False])
        )
    if messages:
        raise ValueError(" ".join(messages))
    _check_positions(hparams, language_model)


def _check_positions(hparams, language_model):
    attention = hparams["self_attention_type"]
    if attention == "dot_product_relative_v2" and not language_model:
        raise ValueError(
            f"Expected another self_attention_type for a model with encoder. Received: "
            f"{attention!r}, which tensor2tensor leaves undefined for keys after the query. "
            "Language models support it (language_model=True)."
        )
    if _ATTENTIONS[attention] and hparams["max_relative_position"] <= 0:
        raise ValueError(
            f"Expected max_relative_position to be at least 1 with {attention!r}. Received: "
            f"{hparams['max_relative_position']!r}. Pass the value of the training as "
            "max_relative_position=K in the hparams."
        )
    if hparams["pos"] == "emb" and hparams["max_length"] <= 0:
        raise ValueError(
            "Expected max_length to be at least 1 with pos='emb'. Received: "
            f"{hparams['max_length']!r}."
        )


def _unsupported(key, value, supported):
    return (
        f"Expected {key} to be {' or '.join(map(repr, supported))}. Other values are not "
        f"supported. Received: {value!r}."
    )
