"""`generate` for models with `encode` and `step`."""

import keras
import numpy as np
from keras import ops

from t2t_relpos.decoding.samplers import get_sampler
from t2t_relpos.layers import checks


class Generates:
    """Adds `generate` to a model with `encode`, `step` and `vocab_size`."""

    # Whether outputs start with the source, as in a language model.
    _continues_source = False

    def generate(self, source, sampler="beam", max_length=None):
        """Generates ids with a sampler, compiled on TensorFlow and JAX.

        Caches have room for `max_length` ids, so that no search exceeds them.

        Args:
            source: int ids `[B, S]`, padded with 0. Sentences of an encoder-decoder model end with
                id 1. For a `CausalLM`: the beginnings of the outputs.
            sampler: `"beam"`, `"greedy"`, `"top_k"`, `"top_p"`, or a sampler of
                `t2t_relpos.decoding`.
            max_length: largest number of ids of an output, id 1 at its end included. Default:
                S + 50.

        Returns:
            An int32 array `[B, max_length]`, padded with 0 after id 1. With samplers whose
            `num_results` is above 1, `[B, num_results, max_length]`.

        Raises:
            ValueError: if `source` is not `[B, S]`, holds ids out of range, or is longer than
                `max_length` (`CausalLM`), or the sampler does not exist.

        Example:
        >>> import numpy as np
        >>> from t2t_relpos.models import Transformer
        >>> model = Transformer.from_preset("tiny", vocab_size=11)
        >>> model.generate(np.array([[5, 7, 1], [3, 1, 0]]), max_length=6).shape
        (2, 6)
        """
        sampler = get_sampler(sampler)
        source = np.asarray(ops.convert_to_numpy(ops.convert_to_tensor(source)))
        if source.ndim != 2:
            raise ValueError(
                "Expected `source` to be int ids of shape [batch, length]. Received: shape "
                f"{source.shape}."
            )
        # A compiled search can't check ids.
        checks.token_ids(source, self.vocab_size)
        max_length = source.shape[1] + 50 if max_length is None else max_length
        self._check_max_length(source.shape[1], max_length)
        uniform = sampler.random_numbers(len(source), max_length)
        source = ops.cast(source, "int32")
        arguments = (source,) if uniform is None else (source, uniform)
        ids = ops.convert_to_numpy(self._search_function(sampler, max_length)(*arguments))
        return ids if sampler.num_results > 1 else ids[:, 0]

    def _check_max_length(self, length, max_length):
        if not isinstance(max_length, int) or max_length < 1:
            raise ValueError(
                f"Expected `max_length` to be an int of at least 1. Received: {max_length!r}"
            )
        if self._continues_source and length > max_length:
            raise ValueError(
                f"Expected `max_length` of at least {length}, the length of `source`, "
                f"which outputs start with. Received: {max_length}."
            )

    def _search_function(self, sampler, max_length):
        """Returns the compiled search, one per settings of a sampler and length."""
        key = (type(sampler), sampler.settings(), max_length)
        if key not in self._searches.functions:
            self._searches.functions[key] = _compile(self, self._search(sampler, max_length))
        return self._searches.functions[key]

    def _search(self, sampler, max_length):
        def search(source, uniform=None):
            state = self.encode(source, max_length)
            prefix = source if self._continues_source else None
            rows = ops.shape(source)[0]
            return sampler.search(self.step, state, rows, max_length, uniform, prefix).ids

        return search


class SearchFunctions:
    """Compiled searches of a model. Keras does not track the content of such an object."""

    def __init__(self):
        self.functions = {}

    def __deepcopy__(self, memo):
        # A copy of a model compiles its own.
        return SearchFunctions()


def _compile(model, function):
    backend = keras.backend.backend()
    if backend == "tensorflow":
        from t2t_relpos import _tensorflow_compile as compiler
    elif backend == "jax":
        from t2t_relpos import _jax_compile as compiler
    else:
        return function
    return compiler.compile_function(model, function)
