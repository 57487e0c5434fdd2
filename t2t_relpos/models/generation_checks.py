"""Checks of the arguments of `generate`."""

import numpy as np
from keras import ops

from t2t_relpos.decoding.constraints import checked_stop_ids


def as_ids(source):
    """Returns `source` as a NumPy array of rank 2. Raises ValueError if it has another rank."""
    expected = "Expected `source` to be int ids of shape [batch, length]"
    if isinstance(source, dict):
        raise ValueError(f"{expected}. Received: a dict. Pass the ids of the source only.")
    try:
        source = np.asarray(ops.convert_to_numpy(ops.convert_to_tensor(source)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{expected}, padded with 0. Received: a {type(source).__name__} that can't be "
            "converted to a tensor, for example because its rows have different lengths. Pad them "
            "with keras.utils.pad_sequences(source, padding='post')."
        ) from error
    if source.ndim != 2:
        raise ValueError(f"{expected}. Received: shape {source.shape}.")
    return source


def check_lengths(source_length, max_length, num_positions):
    """Raises ValueError if sources or outputs are longer than the learned positions.

    Args:
        source_length: S.
        max_length: largest number of ids of an output.
        num_positions: the number of learned positions, or None if lengths have no limit.
    """
    if num_positions is not None and max(source_length, max_length) > num_positions:
        raise ValueError(
            f"Expected sources and outputs of at most {num_positions} ids, the learned positions "
            f"of the model. Received: sources of {source_length} ids, max_length={max_length}. "
            "Pass a smaller `max_length`, split the sources, or train a model with a larger "
            "`TransformerConfig.max_length`."
        )


def check_min_length(sampler, max_length):
    """Raises ValueError if a sampler's `min_length` is above the largest length of outputs."""
    min_length = sampler.constraints["min_length"]
    if min_length > max_length:
        raise ValueError(
            "Expected `max_length` of at least the sampler's `min_length`. Received: "
            f"max_length={max_length}, min_length={min_length}."
        )


def stop_ids(stop_token_ids, vocab_size):
    """Returns the ids that end an output as a tuple, or None for "auto".

    Raises:
        ValueError: if they are neither "auto" nor None nor ids in [1, vocab_size).
    """
    if isinstance(stop_token_ids, str) and stop_token_ids == "auto":
        return None
    found = checked_stop_ids(() if stop_token_ids is None else stop_token_ids, 0)
    if found and found[-1] >= vocab_size:
        raise ValueError(
            f"Expected `stop_token_ids` in [1, {vocab_size}), the vocabulary of the model. "
            f"Received: {stop_token_ids!r}."
        )
    return found


def check_prompts(source, max_length, stop_token_ids):
    """Raises ValueError if prompts are longer than outputs, or an id follows padding or an end.

    Args:
        source: int ids `[B, S]`, an array.
        max_length: largest number of ids of an output.
        stop_token_ids: tuple of the ids that end an output.
    """
    length = source.shape[1]
    if length > max_length:
        raise ValueError(
            f"Expected `max_length` of at least {length}, because outputs start with the "
            f"{length} ids of `source`. Received: {max_length}."
        )
    ends = np.isin(source[:, :-1], (0, *stop_token_ids))
    rows = np.flatnonzero((ends & (source[:, 1:] != 0)).any(axis=1))
    if rows.size:
        names = " or ".join(map(str, stop_token_ids))
        after = f", and nothing but padding after id {names}, the end of a text" if names else ""
        raise ValueError(
            f"Expected prompts with padding (0) at their end only{after}. Received: prompt "
            f"{rows[0]} is {source[rows[0]].tolist()}. Pad prompts with "
            "keras.utils.pad_sequences(source, padding='post'), and remove ends from within them."
        )


def hashable_settings(sampler):
    """Returns the settings of a sampler with their types, because 1 and 1.0 have the same hash.

    Raises:
        ValueError: if one of them is not hashable.
    """
    settings = sampler.settings()
    for name, value in settings:
        try:
            hash(value)
        except TypeError as error:
            raise ValueError(
                "Expected hashable attributes of a sampler, because each new setting compiles a "
                f"search. Received: {type(sampler).__name__}.{name} is a {type(value).__name__}. "
                "Use a tuple instead of a list or an array."
            ) from error
    return tuple((name, type(value), value) for name, value in settings)
