"""The relative tables of an attention layer, and attention with them."""

from keras import ops

from t2t_relpos.attention.attend import attend
from t2t_relpos.layers.clone_initializer import clone_initializer
from t2t_relpos.layers.relative_position_embedding import RelativePositionEmbedding


class RelativeTables:
    """Mixin that adds relative tables for keys and values to a `MultiHeadBase`.

    The layer has to set `max_relative_position`, `use_key_table`, `use_value_table`, `share_heads`
    and `table_initializer`.
    """

    def _build_tables(self):
        """Creates `key_embedding` and `value_embedding`, or None for a table that is off."""
        self.key_embedding = self._table("key_embedding", self.use_key_table, self.key_dim)
        self.value_embedding = self._table("value_embedding", self.use_value_table, self.value_dim)

    def _table(self, name, enabled, depth):
        if not enabled:
            return None
        embedding = RelativePositionEmbedding(
            self.max_relative_position,
            depth,
            num_heads=None if self.share_heads else self.num_heads,
            embeddings_initializer=clone_initializer(self.table_initializer),
            dtype=self.dtype_policy,
            trainable=self.trainable,
            name=name,
        )
        embedding.build()
        return embedding

    def _table_values(self):
        """Returns the tables of keys and values as tensors, or None for a table that is off."""
        tables = (self.key_embedding, self.value_embedding)
        return [None if t is None else ops.convert_to_tensor(t.table) for t in tables]

    def attend(self, query, key, value, **kwargs):
        """Returns the results of `attention.attend` with the tables of this layer.

        Args:
            query: `[B, N, T, H]`, from `project_query`.
            key: `[B, N, S, H]`, from `project_key`.
            value: `[B, N, S, Hv]`, from `project_value`.
            **kwargs: the keyword arguments of `attention.attend`, such as `mask` and `causal`.

        Returns:
            (outputs `[B, N, T, Hv]`, weights `[B, N, T, S]`, or None without `return_weights`).
        """
        # A decoding step bypasses Keras's `__call__`, so variables are not cast to the compute
        # dtype.
        tables = (None if t is None else ops.cast(t, query.dtype) for t in self._table_values())
        return attend(query, key, value, *tables, **kwargs)
