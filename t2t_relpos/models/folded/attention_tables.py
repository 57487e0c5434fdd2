"""Relative-position tables of folded attentions."""

from keras import ops

NAMES = ("key_table", "value_table")


def has_tables(attention):
    """Returns whether an attention has a relative-position table."""
    return any(name in attention for name in NAMES)


def table_rows(attention, ids):
    """Returns a dict of the rows `ids` of each table: `[S, H]`, or `[N, S, H]` per head."""
    return {name: ops.take(attention[name], ids, axis=-2) for name in NAMES if name in attention}
