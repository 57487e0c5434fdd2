"""Steps of a decoder block for one position of each hypothesis, for searches."""

from keras import ops

from t2t_relpos.layers import call_checks


class IncrementalDecoder:
    """Mixin with decoding steps, using a cache, for a decoder block."""

    def start_cache(self, batch_size, max_length):
        """Returns an empty cache for `step`.

        Args:
            batch_size: number of sequences or hypotheses, an int or a scalar tensor.
            max_length: number of target positions, an int or a scalar tensor.

        Returns:
            A dict of keys and values, as `RelativeMultiHeadAttention.start_cache` returns it.

        Raises:
            ValueError: if the layer is not built.
        """
        call_checks.built(self)
        return self.self_attention.start_cache(batch_size, max_length)

    def project_encoded(self, encoded):
        """Returns the keys and values of the encoder outputs, for `step`.

        Args:
            encoded: `[B, S, D]`, outputs of the encoder.

        Returns:
            A dict of keys and values `[B, N, S, H]`.

        Raises:
            ValueError: if the layer is not built, or has no attention to an encoder.
        """
        call_checks.built(self)
        if self.cross_attention is None:
            raise ValueError(
                "Expected a block with attention to an encoder. Received: "
                f"{self.name}, which was built without `encoder_sequence`. Call `step` without "
                "`context`."
            )
        return {
            "key": self.cross_attention.project_key(encoded),
            "value": self.cross_attention.project_value(encoded),
        }

    def step(self, inputs, cache, position, context=None, encoder_mask=None):
        """Returns the outputs of one target position per hypothesis.

        Args:
            inputs: `[B, 1, D]`.
            cache: the cache that `start_cache` or this method returned.
            position: the position, an int, a scalar tensor, or int `[B]` for each hypothesis.
            context: keys and values of the encoder, from `project_encoded`. Default: None, for a
                decoder-only block.
            encoder_mask: bool `[B, S]`, True = attend. Default: None, all True.

        Returns:
            (outputs `[B, 1, D]`, the cache with this position written).

        Raises:
            ValueError: if the layer is not built, `context` is missing for a block with attention
                to an encoder or given to one without, an argument has the wrong shape or dtype, or
                a position is outside the cache. In a compiled graph, which can't raise an error,
                the outputs of such a position are NaN.
        """
        call_checks.built(self)
        self._check_context(context)
        # Keras casts the arguments of `call`, but not those of other methods.
        inputs = ops.cast(ops.convert_to_tensor(inputs), self.compute_dtype)
        residual = self.self_attention_residual
        outputs, cache = self.self_attention.step(residual.before(inputs), cache, position)
        x = residual.after(inputs, outputs)
        if context is not None:
            residual = self.cross_attention_residual
            outputs = self.cross_attention.attend_to(
                residual.before(x),
                context["key"],
                context["value"],
                None if encoder_mask is None else encoder_mask[:, None, None, :],
                query_offset=position,
            )
            x = residual.after(x, outputs)
        return self._feed(x), cache

    def _check_context(self, context):
        """Raises ValueError unless a step has the keys of an encoder if and only if it needs them.

        Args:
            context: the argument of `step`.
        """
        if self.cross_attention is not None and context is None:
            raise ValueError(
                f"Expected `context`, because {self.name} has attention to an encoder. Received: "
                "none. Pass the result of `project_encoded`."
            )
        if self.cross_attention is None and context is not None:
            raise ValueError(
                f"Expected no `context`, because {self.name} was built without `encoder_sequence`. "
                "Received: one."
            )
