"""Attention with the relative positions of Transformer-XL, which several families have.

Scores are `scale * ((q + u)·k + (q + v)·p[i - j])`. The vectors p are a projection of sinusoids,
and u and v are parameters. `attend` takes p as a key table with a row for each distance.
"""

import torch

from t2t_relpos.integrations.families.attention import attend_heads, mask_arguments

# A group of heads has queries of at most this many entries.
LARGEST_GROUP = 2**19


def attend_transformer_xl(module, projected, positions, biases, masks, **options):
    """Returns (outputs `[B, T, N * H]`, weights or None) of an attention module.

    Args:
        module: the module, see `attend_heads`.
        projected: queries `[B, T, N * H]`, keys and values `[B, S, N * H]`. The last query is at
            the position of the last key.
        positions: p, `[2S - 1, N * H]`, for the distances i - j of query i and key j from S - 1
            down to 1 - S, the order of transformers. An axis of size 1 may come first.
        biases: u and v, `[N, H]`.
        masks: arguments of `attend`, see `key_or_pair_mask`.
        **options: those of `attend_heads`, except for `relative_query`.

    Reference: Dai et al. 2019, section 3.3.
    """
    query, key, value = projected
    u, v = (x.flatten() for x in biases)
    positions = positions.view(positions.shape[-2], -1)
    tensors = query + u, key, value, query + v, positions
    width = _heads_of_group(query, options["head_dim"]) * options["head_dim"]
    results = []
    for group in zip(*(x.split(width, dim=-1) for x in tensors), strict=True):
        *of_heads, relative_query, rows = group
        # The order of rows is that of `attend`: j - i in ascending order.
        table = rows.unflatten(-1, (-1, options["head_dim"])).transpose(0, 1)
        results.append(
            attend_heads(
                module,
                of_heads,
                (table,),
                key.shape[1] - 1,
                masks,
                relative_query=relative_query,
                **options,
            )
        )
    if len(results) == 1:
        return results[0]
    outputs, weights = zip(*results, strict=True)
    weights = None if weights[0] is None else torch.cat(weights, dim=1)
    return torch.cat(outputs, dim=-1), weights


def _heads_of_group(query, head_dim):
    """Returns how many heads are computed at once. On a CPU, few need less memory and time.

    A graph takes all lengths, so it has one group.
    """
    heads = query.shape[-1] // head_dim
    if query.device.type != "cpu" or torch.compiler.is_compiling():
        return heads
    # Two heads of depth 192 are faster together, in FastSpeech2-Conformer.
    size = query.shape[0] * query.shape[1] * min(head_dim, 128)
    return min(heads, max(1, LARGEST_GROUP // max(1, size)))


def is_exported():
    """Returns whether a program of unknown lengths is made, by `torch.export` or `torch.jit.trace`.

    The distances of `attend` are known numbers, so transformers computes attention in programs.
    """
    return torch.compiler.is_exporting() or torch.jit.is_tracing()


def key_or_pair_mask(attention_mask, batch_size):
    """Returns the result of `mask_arguments`, with a mask of keys in place of one of pairs.

    Encoders make a mask `[B, 1, T, T]` of a padding mask: query and key are no padding, or the key
    is none. Its diagonal is the padding mask. Queries that are padding then attend to the keys that
    are none. Other masks, and masks in a graph, whose values are unknown, stay as they are.
    """
    masks = mask_arguments(attention_mask, batch_size)
    mask = None if masks is None else masks.get("mask")
    if mask is None or mask.shape[1] != 1 or mask.shape[2] != mask.shape[3]:
        return masks
    if torch.compiler.is_compiling():
        return masks
    is_key = mask[:, 0].diagonal(dim1=1, dim2=2)
    if ((mask[:, 0] == is_key[:, None]) | ~is_key[:, :, None]).all():
        return {"key_mask": is_key.expand(batch_size, -1)}
    return masks
