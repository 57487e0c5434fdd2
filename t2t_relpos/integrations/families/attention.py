"""What the attention of several families has in common: its call of `attend`, and masks."""

import functools

import torch

from t2t_relpos.attention.attend import attend
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.integrations.exchange import is_exchanged


def attend_heads(module, projected, tables, distances, masks, *, chunks=None, **options):
    """Returns (outputs `[B, T, N * H]`, weights or None) of an attention module.

    Args:
        module: the module. `module.training` turns dropout on, and the attribute `flash_attention`
            selects memory that is linear in length.
        projected: queries, keys and values `[B, T, N * H]`.
        tables: (key table, ) or (key table, value table).
        distances: `max_relative_position` of `attend`.
        masks: arguments of `attend`, see `mask_arguments`.
        chunks: (frames of a chunk, chunks on the left that a frame attends to, or -1 for all).
            Default: None, no chunks.
        **options: `head_dim`; `scale` of the queries; `dropout`, the rate in training;
            `return_weights`; and `relative_query`, queries `[B, T, N * H]` of the key table. Its
            default is None, `projected[0]`.
    """
    split = functools.partial(_split_heads, head_dim=options["head_dim"])
    query, key, value = map(split, projected)
    relative_query = options.get("relative_query")
    if relative_query is not None:
        masks = masks | {"relative_query": split(relative_query) * options["scale"]}
    rate = options["dropout"] if module.training else 0
    linear_memory = getattr(module, "flash_attention", None)
    attend_all = functools.partial(
        attend,
        key_table=tables[0],
        value_table=tables[1] if len(tables) > 1 else None,
        max_relative_position=distances,
        dropout=AttentionDropout(rate) if rate else None,
        return_weights=options["return_weights"],
        rematerialize=linear_memory or (False if module.training else None),
    )
    run = attend_all if chunks is None else functools.partial(_attend_in_chunks, attend_all, chunks)
    outputs, weights = run(query * options["scale"], key, value, **masks)
    return outputs.transpose(1, 2).flatten(2), weights


def returns_weights(module, asked=None):
    """Returns whether a call returns weights. `asked` is its `output_attentions`, or None."""
    return bool(module.config.output_attentions if asked is None else asked)


def has_exchanged_layers(encoder):
    """Returns whether the layers of an encoder and their `self_attn` are exchanged."""
    return all(is_exchanged(layer) and is_exchanged(layer.self_attn) for layer in encoder.layers)


def _split_heads(x, head_dim):
    return x.unflatten(-1, (-1, head_dim)).transpose(1, 2)


def _attend_in_chunks(attend_all, chunks, query, key, value, key_mask=None):
    """Returns the results of `attend` for keys in the chunk of a query and the chunks before it."""
    (size, left), length = chunks, query.shape[2]
    if attend_all.keywords["return_weights"] and length > size:
        chunk = torch.arange(length, device=query.device) // size
        before = chunk[:, None] - chunk
        mask = (before >= 0) & (before <= (left if left >= 0 else length))
        return attend_all(query, key, value, mask=mask, key_mask=key_mask)
    outputs, weights = [], None
    for start in range(0, length, size):
        queries = slice(start, start + size)
        keys = slice(max(start - left * size, 0) if left >= 0 else 0, start + size)
        masks = {} if key_mask is None else {"key_mask": key_mask[:, keys]}
        x, weights = attend_all(query[:, :, queries], key[:, :, keys], value[:, :, keys], **masks)
        outputs.append(x)
    # Weights are returned of a single chunk only.
    return torch.cat(outputs, dim=2), weights


def mask_arguments(attention_mask, batch_size):
    """Returns the arguments of `attend` for a mask, or None if `attend` has no such mask.

    It has masks `[B, 1, 1, S]` and `[B, 1, T, S]` that are bool, or float of 0 and the minimum of a
    dtype, unless torch.compile hides the values.
    """
    if attention_mask is None:
        return {}
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.ndim != 4:
        return None
    if attention_mask.dtype != torch.bool:
        attention_mask = _as_bool(attention_mask)
    if attention_mask is None or attention_mask.shape[1:3] != (1, 1):
        return None if attention_mask is None else {"mask": attention_mask}
    return {"key_mask": attention_mask[:, 0, 0].expand(batch_size, -1)}


def _as_bool(mask):
    """Returns a mask of 0 and the minimum as bool, True = attend. None: it has other values."""
    if torch.compiler.is_compiling() or not mask.is_floating_point():
        return None
    # The minimum of bfloat16 is above that of float32.
    lowest = max(torch.finfo(dtype).min for dtype in (mask.dtype, torch.bfloat16))
    attended = mask == 0
    return attended if (attended | (mask <= lowest)).all() else None


def key_mask(padding_mask, hidden_states):
    """Returns a padding mask `[B, S]` in the form `[B, 1, 1, S]`, which encoders hand on.

    In a graph, it is not None: encoders would make a float mask there, whose values `_as_bool`
    can't read.
    """
    if padding_mask is None and torch.compiler.is_compiling():
        padding_mask = hidden_states.new_ones(hidden_states.shape[:2], dtype=torch.bool)
    if padding_mask is None or padding_mask.ndim != 2:
        return padding_mask
    return padding_mask.to(hidden_states.device, torch.bool)[:, None, None, :]
