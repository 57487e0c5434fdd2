"""Argument checks of `attend` and `attend_locally`."""

from t2t_relpos import _checks


def check_masks(**values):
    """Raises ValueError if a mask is of a float dtype. None is allowed."""
    for name, mask in values.items():
        _checks.boolean(name, mask)


def check_tables(key_table, value_table, num_heads, *, odd):
    """Raises ValueError if a table has the wrong rank, number of heads or number of rows.

    Both tables must have the same number of rows.

    Args:
        key_table: a tensor or None.
        value_table: a tensor or None.
        num_heads: N.
        odd: whether the number of rows must be odd, `2K + 1`.
    """
    present = {"key_table": key_table, "value_table": value_table}
    shapes = {name: tuple(x.shape) for name, x in present.items() if x is not None}
    # While PyTorch traces a model, sizes are tensors.
    if not all(isinstance(size, int) for shape in shapes.values() for size in shape):
        return
    for name, shape in shapes.items():
        has_rank = len(shape) == 2 or (len(shape) == 3 and shape[0] == num_heads)
        if not has_rank or (odd and shape[-2] % 2 == 0):
            rows = "2 * max_relative_position + 1" if odd else "R"
            raise ValueError(
                f"Expected `{name}` of shape [{rows}, depth] for all heads, or "
                f"[{num_heads}, {rows}, depth] with a table for each head. Received: shape {shape}."
            )
    if len({shape[-2] for shape in shapes.values()}) > 1:
        raise ValueError(
            "Expected `key_table` and `value_table` with the same number of rows, one for each "
            f"relative id. Received: shapes {shapes['key_table']} and {shapes['value_table']}."
        )


def check_relative_ids(ids, key_table, value_table):
    """Raises ValueError if ids have the wrong dtype or rank, or known ids are not table rows."""
    if ids is None:
        return
    _checks.integers("`relative_ids`", ids)
    if len(ids.shape) not in (2, 3):
        raise ValueError(
            "Expected `relative_ids` of shape [T, S] or [B, T, S]. Received: shape "
            f"{tuple(ids.shape)}."
        )
    table = value_table if key_table is None else key_table
    if table is None or not isinstance(table.shape[-2], int):
        return
    low, high = _checks.known_range(ids)
    if low is not None and not 0 <= low <= high < table.shape[-2]:
        raise ValueError(
            f"Expected `relative_ids` in [0, {table.shape[-2]}), the rows of the tables. "
            f"Received: ids from {low} to {high}."
        )


def check_window(length_q, length_k, window):
    """Raises ValueError if known lengths differ, or the window is not a positive integer."""
    _checks.positive_int("window", window)
    if _checks.differ(length_q, length_k):
        raise ValueError(
            "Expected as many queries as keys: `attend_locally` is for self-attention. Received: "
            f"{length_q} queries and {length_k} keys. Use `attend` with `mask=window_mask(...)`."
        )
