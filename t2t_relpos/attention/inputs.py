"""The arguments of one call of `attend`."""

import dataclasses
from typing import Any

from keras import ops

from t2t_relpos.attention.masks import causal_mask, combine_masks, key_padding_mask
from t2t_relpos.attention.relative_ids import relative_ids


@dataclasses.dataclass(frozen=True)
class AttentionInputs:
    """Arguments of `attend` with the defaults resolved. All implementations take them."""

    query: Any
    key: Any
    value: Any
    key_table: Any
    value_table: Any
    mask: Any
    key_mask: Any
    causal: bool
    query_offset: Any
    relative_ids: Any
    dropout: Any

    @property
    def lengths(self):
        """(T, S), ints or scalar tensors."""
        return ops.shape(self.query)[2], ops.shape(self.key)[2]

    @property
    def num_ids(self):
        """Number of table rows R. None without tables."""
        table = self.value_table if self.key_table is None else self.key_table
        return None if table is None else table.shape[-2]

    @property
    def max_relative_position(self):
        """Clipping distance K. None without tables."""
        return None if self.num_ids is None else (self.num_ids - 1) // 2

    def combined_mask(self):
        """Returns the conjunction of all masks, broadcastable to `[B, N, T, S]`, or None."""
        return combine_masks(
            self.mask,
            None if self.key_mask is None else key_padding_mask(self.key_mask),
            causal_mask(*self.lengths, self.query_offset) if self.causal else None,
        )

    def pair_ids(self):
        """Returns the relative ids `[T, S]` or `[B, T, S]`."""
        if self.relative_ids is not None:
            return self.relative_ids
        return relative_ids(*self.lengths, self.max_relative_position, self.query_offset)
