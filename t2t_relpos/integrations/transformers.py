"""Relative attention in models of transformers.

`list_families` returns the models. `replace_attention` and the other functions that take a model
require PyTorch. `from_transformers` also runs without PyTorch and transformers.
"""

import numpy as np

from t2t_relpos.integrations import families
from t2t_relpos.integrations.families import Family, register_family
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention

__all__ = [
    "Family",
    "from_transformers",
    "list_families",
    "register_family",
    "replace_attention",
    "replaced_modules",
    "restore_attention",
]


def replace_attention(model, *, flash_attention=None, verify=True):
    """Lets `attend` compute the relative attention of a model of transformers.

    Outputs and gradients stay the same. Memory is then linear in length where transformers needs
    `[T, T, H]`. Weights, names of parameters, hooks and adapters stay where they are, because only
    the classes of modules are exchanged. So `save_pretrained`, `from_pretrained` and PEFT work as
    before. Replacing twice changes nothing but `flash_attention`.

    When a family of models is first exchanged in a process, a small encoder with random weights is
    compared before and after the exchange: outputs and gradients on the CPU, in float64, or for
    Inkling in float32. So a version of transformers that computes something else is found before
    the model is changed.

    Args:
        model: a `torch.nn.Module` that contains modules of a family of `list_families`, for
            example w2v-BERT 2.0 with `position_embeddings_type="relative_key"`.
        flash_attention: True for memory linear in length at any length, and for the fused kernel on
            NVIDIA GPUs. Default: None, by length.
        verify: False skips the comparison. Default: True.

    Returns:
        The number of attention modules that `attend` computes.

    Raises:
        ValueError: if `model` is not a module, or has no such attention; or if a module is
            compiled, is wrapped by FSDP2, has a `forward` of its own, as `module.forward =
            torch.compile(module.forward)` sets it, or is of a subclass that overrides methods of
            attention. Nothing is exchanged then.
        RuntimeError: if the small encoder of a family gives other numbers after the exchange.
            Nothing is exchanged then.
        ImportError: if Keras has another backend than PyTorch.

    Example:
    >>> from t2t_relpos.integrations.transformers import replace_attention
    >>> def make_model(path):
    ...     from transformers import Wav2Vec2BertForCTC
    ...     model = Wav2Vec2BertForCTC.from_pretrained(path)
    ...     replace_attention(model)
    ...     return model
    """
    exchange = _exchange()
    exchanges = exchange.find_exchanges(model)
    if not exchanges:
        raise ValueError(
            f"Expected a model with the relative attention of {_known_families()}. Received: a "
            f"{type(model).__name__} with {exchange.attention_names(model)}."
        )
    if verify:
        from t2t_relpos.integrations.comparison import compare_family

        for family in exchange.families_of(exchanges).values():
            compare_family(family)
    return exchange.exchange_classes(exchanges, flash_attention=flash_attention)


def restore_attention(model):
    """Lets transformers compute the attention that `replace_attention` has replaced.

    Args:
        model: a `torch.nn.Module`.

    Returns:
        The number of attention modules that transformers computes again.

    Raises:
        ValueError: as `replace_attention`, except that a model without relative attention is
            accepted.
        ImportError: as `replace_attention`.
    """
    exchange = _exchange()
    return exchange.exchange_classes(exchange.find_exchanges(model, restore=True))


def replaced_modules(model):
    """Returns the attention modules of a model that `attend` computes, a dict by name.

    The text form of such a module says so, too: "attention by t2t_relpos".

    Args:
        model: a `torch.nn.Module`.

    Returns:
        A dict, empty if no attention is replaced.

    Raises:
        ValueError: if `model` is not a module.
        ImportError: as `replace_attention`.
    """
    exchange = _exchange()
    exchange.check_module(model)
    return {name: x for name, x in model.named_modules() if exchange.is_exchanged_attention(x)}


def list_families():
    """Returns the families of models that `replace_attention` knows, and which are installed.

    Returns:
        A dict: for each name of a family, an empty string, or why its classes can't be imported.
        An older transformers lacks newer families.

    Raises:
        ImportError: as `replace_attention`.

    Example:
    >>> from t2t_relpos.integrations.transformers import list_families
    >>> def print_families():
    ...     for name, error in list_families().items():
    ...         print(name, error or "installed")
    """
    return {
        name: families.import_error(family)
        for name, family in families.registered_families().items()
    }


def _known_families():
    """Returns the families and their conditions, for an error."""
    found, missing = [], []
    for name, family in families.registered_families().items():
        if families.import_error(family):
            missing.append(name)
        else:
            found.append(f"{name} ({family.condition})" if family.condition else name)
    text = "one of these: " + ", ".join(found)
    return f"{text} (not in the installed transformers: {', '.join(missing)})" if missing else text


def _exchange():
    """Returns the module that exchanges classes, which requires PyTorch."""
    # Refuses other backends of Keras.
    import t2t_relpos.integrations.torch  # noqa: F401
    from t2t_relpos.integrations import exchange

    return exchange


# Projections of query, key, value and output.
_CONFORMER = "linear_q", "linear_k", "linear_v", "linear_out"
_ENCODER = "q_proj", "k_proj", "v_proj", "out_proj"


def from_transformers(module_or_state, *, max_relative_position=None, key_table=None, **kwargs):
    """Returns a Keras layer with the weights of an attention module of transformers' speech models.

    The modules are `Wav2Vec2BertSelfAttention`, `SeamlessM4Tv2ConformerSelfAttention`,
    `VitsAttention`, and `SpeechT5Attention` of the encoder. It runs on all backends.

    Args:
        module_or_state: the module, or its state as NumPy arrays by name, for example from
            `safetensors.numpy.load_file`, without the prefix of the module. A state needs neither
            PyTorch nor transformers.
        max_relative_position: (left, right) of w2v-BERT 2.0 and SeamlessM4T v2 only. A state
            requires it. It is (64, 8) in the published models. Default: that of the module.
        key_table: the array `[2M, H]` of SpeechT5's encoder only, `embed_positions.pe_k.weight`,
            for the distances (M - 1, M). Default: None, for the other models.
        **kwargs: further arguments of `RelativeMultiHeadAttention`, for example `name`. Default of
            `dropout`: the rate of the module, or 0.0 for a state.

    Returns:
        A built `RelativeMultiHeadAttention`. The tables of VITS get a row of zeros at both ends.

    Raises:
        ValueError: if a required argument or a weight is missing, the state has other names, or an
            argument of another model is given. LoRA, pruning, parametrizations and quantization
            rename weights.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.integrations.transformers import from_transformers
    >>> x = np.ones((1, 5, 8), "float32")
    >>> state = {f"linear_{name}.weight": np.eye(8) for name in ("q", "k", "v", "out")}
    >>> state |= {f"linear_{name}.bias": np.zeros(8) for name in ("q", "k", "v", "out")}
    >>> state |= {"distance_embedding.weight": np.ones((4, 2))}
    >>> layer = from_transformers(state, max_relative_position=(2, 1))
    >>> tuple(layer(x, x).shape), layer.num_heads
    ((1, 5, 8), 4)
    """
    state = module_or_state
    if hasattr(state, "state_dict"):
        # The state of a quantized module has values that are not tensors.
        tensors = {name: x for name, x in state.state_dict().items() if hasattr(x, "float")}
        state = {name: x.float().cpu().numpy() for name, x in tensors.items()}
        rate = module_or_state.dropout
        kwargs.setdefault("dropout", getattr(rate, "p", rate))
        left = getattr(module_or_state, "left_max_position_embeddings", None)
        if max_relative_position is None and left is not None:
            max_relative_position = left, module_or_state.right_max_position_embeddings
    names, distances, tables = _tables(state, key_table)
    if distances is not None and max_relative_position is not None:
        raise ValueError(
            "Expected `max_relative_position` for w2v-BERT 2.0 and SeamlessM4T v2 only. Received: "
            f"{max_relative_position}, with the tables of VITS or SpeechT5, whose rows give the "
            f"distances {distances}. Leave it out."
        )
    depth, weights = tables["key"].shape[-1], [_weights(state, name) for name in names]
    _check_names(state, names)
    width = weights[0][0].shape[1]
    layer = RelativeMultiHeadAttention(
        weights[0][0].shape[0] // depth,
        depth,
        max_relative_position=max_relative_position if distances is None else distances,
        use_value_table="value" in tables,
        use_bias=len(weights[0]) > 1,
        **kwargs,
    )
    layer.build((None, None, width), (None, None, width))
    rows = layer.key_embedding.table.shape[0]
    if rows != len(tables["key"]):
        raise ValueError(
            f"Expected max_relative_position=(left, right) with left + right + 1 = "
            f"{len(tables['key'])}, the rows of `distance_embedding`. Received: "
            f"{max_relative_position}."
        )
    denses = layer.query_dense, layer.key_dense, layer.value_dense, layer.output_dense
    for dense, (matrix, *bias) in zip(denses, weights, strict=True):
        arrays = [matrix.T, *bias]
        dense.set_weights([x.reshape(v.shape) for x, v in zip(arrays, dense.weights, strict=True)])
    for name, table in tables.items():
        getattr(layer, f"{name}_embedding").set_weights([table])
    layer.built = True
    return layer


def _tables(state, key_table):
    """Returns (names of projections, distances or None, tables by name) of a state."""
    if key_table is not None:
        for name in ("distance_embedding.weight", "emb_rel_k"):
            if name in state:
                raise ValueError(
                    "Expected `key_table` for SpeechT5's encoder only. Received: one, and a state "
                    f"with a table of its own, `{name}`. Leave `key_table` out."
                )
    if "distance_embedding.weight" in state:
        return _CONFORMER, None, {"key": np.asarray(state["distance_embedding.weight"])}
    if "emb_rel_k" in state:
        tables = {
            name: np.pad(np.asarray(state[f"emb_rel_{name[0]}"])[0], [(1, 1), (0, 0)])
            for name in ("key", "value")
        }
        return _ENCODER, len(tables["key"]) // 2, tables
    if key_table is None:
        raise ValueError(
            "Expected `distance_embedding.weight` or `emb_rel_k` in the state, or `key_table`, the "
            "table `embed_positions.pe_k.weight` of SpeechT5's encoder. Received: neither, and "
            f"{sorted(state)}. Remove LoRA with `merge_and_unload`, and the prefix of the names."
        )
    right = len(key_table) // 2
    return _ENCODER, (right - 1, right), {"key": np.asarray(key_table)[::-1]}


def _weights(state, name):
    """Returns the matrix `[out, in]` of a projection, and its bias if it has one."""
    if f"{name}.weight" not in state:
        raise ValueError(
            f"Expected `{name}.weight` in the state. Received: {sorted(state)}. Remove LoRA with "
            "`merge_and_unload`, and the prefix of the names."
        )
    names = f"{name}.weight", f"{name}.bias"
    return [np.asarray(state[x]) for x in names if x in state]


def _check_names(state, projections):
    """Raises ValueError if a state has weights that the layer would not compute with."""
    known = {f"{name}.{weight}" for name in projections for weight in ("weight", "bias")}
    known |= {"distance_embedding.weight", "emb_rel_k", "emb_rel_v"}
    if unknown := sorted(set(state) - known):
        raise ValueError(
            f"Expected the weights and biases of {', '.join(projections)}, and the tables. "
            f"Received in addition: {unknown}. Remove adapters, pruning, parametrizations and "
            "quantization first."
        )
