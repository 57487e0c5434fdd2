"""A decoder block one position at a time, with a position per row, as searches need it."""

from keras import ops

from t2t_relpos.layers import call_checks


class IncrementalDecoder:
    """Adds steps with a cache to a decoder block."""

    def start_cache(self, batch_size, max_length):
        """Returns an empty cache of `max_length` target positions for `step`."""
        call_checks.built(self)
        return self.self_attention.start_cache(batch_size, max_length)

    def project_encoded(self, encoded):
        """Returns keys and values of the source, `[B, N, S, H]`, for all steps."""
        call_checks.built(self)
        return {
            "key": self.cross_attention.project_key(encoded),
            "value": self.cross_attention.project_value(encoded),
        }

    def step(self, inputs, cache, position, context=None, encoder_mask=None):
        """Computes one target position per row, with the earlier ones from the cache.

        Args:
            inputs: `[rows, 1, D]`.
            cache: as `start_cache` and this method return it.
            position: int32 `[rows]`, a position per row.
            context: keys and values of the source, from `project_encoded`. None for a decoder-only
                block.
            encoder_mask: bool `[rows, S]`.

        Returns:
            (outputs `[rows, 1, D]`, the cache with this position written).
        """
        call_checks.built(self)
        inputs = ops.convert_to_tensor(inputs)
        residual = self.self_attention_residual
        outputs, cache = self.self_attention.step(residual.before(inputs), cache, position)
        x = residual.after(inputs, outputs)
        if context is not None:
            residual = self.cross_attention_residual
            outputs = self.cross_attention.attend_to(
                residual.before(x),
                context["key"],
                context["value"],
                encoder_mask[:, None, None, :],
                query_offset=position,
            )
            x = residual.after(x, outputs)
        return self._feed(x), cache
