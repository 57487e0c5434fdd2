"""Repeats and reorders the rows of a decoding state, a nested dict of tensors `[rows, ...]`.

The entry under `"context"` is the same for all beams of a sentence and never changes. The entry
under `"sentences"` has tensors `[B, ...]`, which searches neither repeat nor reorder.
"""

import keras
from keras import ops


def repeat_rows(state, times):
    """Repeats each row: `[B, ...]` -> `[B * times, ...]`, except under `"sentences"`."""
    if isinstance(times, int) and times == 1:
        return state
    return _map_rows(lambda x: ops.repeat(x, times, axis=0), state)


def gather_rows(state, index):
    """Returns the rows `index`, int `[rows]`, of all tensors except those under `"sentences"`."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.decoding import _tensorflow_state_rows

        return _map_rows(lambda x: _tensorflow_state_rows.gather_rows(x, index), state)
    return _map_rows(lambda x: ops.take(x, index, axis=0), state)


def _map_rows(function, state):
    return {
        name: value if name == "sentences" else keras.tree.map_structure(function, value)
        for name, value in state.items()
    }


def take_beams(x, index):
    """Returns `x[b, index[b, i]]` `[B, n, ...]` for x `[B, k, ...]` and int index `[B, n]`."""
    if keras.backend.backend() == "tensorflow":
        from t2t_relpos.decoding import _tensorflow_state_rows

        return _tensorflow_state_rows.take_beams(x, index)
    index = ops.reshape(index, (*ops.shape(index), *(1 for _ in x.shape[2:])))
    return ops.take_along_axis(x, index, axis=1)


def split_context(state):
    """Returns the entry `"context"` (or None) and a dict of the other entries."""
    rest = {name: value for name, value in state.items() if name != "context"}
    return state.get("context"), rest


def join_context(context, rest):
    """Returns the state that `split_context` split."""
    return rest if context is None else {**rest, "context": context}
