"""Decoding with a `Transformer` one position at a time."""

from keras import ops

from t2t_relpos.models.folded import FoldedTransformer, can_fold, fold_weights
from t2t_relpos.models.search_sizes import cache_capacity


class TransformerSteps:
    """Adds `encode` and `step` to a `Transformer`."""

    def encode(self, source, max_length):
        """Returns the state before the first of at most `max_length` decoding steps.

        Args:
            source: int ids `[rows, S]`.
            max_length: number of steps that the caches have room for, an int or
                a scalar tensor.

        Returns:
            The state that `step` takes: a nested dict of tensors whose first dimension
            is rows. The entry under `"context"` never changes.
        """
        encoded, mask = self.encode_source(source)
        rows = ops.shape(source)[0]
        layers = self.decoder_layers
        return {
            "context": {
                "mask": mask,
                "layers": {layer.name: layer.project_encoded(encoded) for layer in layers},
            },
            "cache": {layer.name: layer.start_cache(rows, max_length) for layer in layers},
            "position": ops.zeros((rows,), dtype="int32"),
        }

    def step(self, ids, state):
        """Computes the logits of the next ids.

        Args:
            ids: int `[rows]`, the previous ids; 0 in the first step.
            state: the state that `encode` or the previous step returned.

        Returns:
            (logits `[rows, V]`, the state after this step).

        Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from t2t_relpos.decoding import beam_search
        >>> from t2t_relpos.models import Transformer
        >>> model = Transformer(config)  # config: the example of TransformerConfig
        >>> state = model.encode(np.array([[5, 7, 1], [3, 1, 0]]), max_length=6)
        >>> result = beam_search(model.step, state, batch_size=2, max_length=6, beam_size=3)
        >>> tuple(result.ids.shape)
        (2, 1, 6)
        """
        context, position = state["context"], state["position"]
        x = self.target_embedding(ops.expand_dims(ids, -1))
        if self.target_position is not None:
            x = self.target_position(x, start=position)
        cache = {}
        for layer in self.decoder_layers:
            x, cache[layer.name] = layer.step(
                x,
                state["cache"][layer.name],
                position,
                context["layers"][layer.name],
                context["mask"],
            )
        state = {"context": context, "cache": cache, "position": position + 1}
        return self._logits(self._normalize(x))[:, 0], state

    step.capacity = cache_capacity

    @property
    def _num_positions(self):
        return self.config.max_length if self.config.position == "learned" else None

    def _start_search(self, source, max_length, num_hypotheses, *, growing):
        if not can_fold(self):
            return self.encode(source, max_length), self.step
        # Fold in every call, because weights may change. It costs little compared to a search.
        folded = FoldedTransformer(self.config, fold_weights(self))
        return folded.start(source, max_length, num_hypotheses, growing=growing)
