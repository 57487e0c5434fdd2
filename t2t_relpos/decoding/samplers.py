"""Samplers: the settings of a search as an object, for `generate`."""

import copy
import functools
import types

import keras

from t2t_relpos import _checks
from t2t_relpos.decoding.beam_search import beam_search, check_alpha, check_sizes
from t2t_relpos.decoding.constraints import checked_constraints
from t2t_relpos.decoding.sample_search import check_sampling, greedy_search, sample_search

_CONSTRAINTS = ("min_length", "no_repeat_ngram_size", "repetition_penalty")
# Attributes that are no settings of a search.
_NOT_SETTINGS = ("seed", "config_seed")


@keras.saving.register_keras_serializable(package="t2t_relpos")
class Sampler:
    """Base class of samplers. Subclasses implement `search`.

    Args:
        min_length, no_repeat_ngram_size, repetition_penalty: as in `beam_search`. Defaults: 0, 0
            and 1.0.

    Attributes of subclasses:
        num_results: number of outputs per sentence of `search`, n. Default: 1.
        num_hypotheses: number of rows per sentence in calls of the step function. Default: n.

    Other attributes of subclasses must be hashable values, because `generate` compiles a search per
    setting. A compiled search keeps a copy of the sampler, so attributes may be assigned later.

    `get_config` and `from_config` save and restore the arguments, as for a Keras layer. A subclass
    with further arguments adds them to the result of `get_config`.

    Raises:
        ValueError: if a constraint is out of range.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.decoding import Sampler, greedy_search
    >>> from t2t_relpos.models import Transformer
    >>> class ShortSampler(Sampler):
    ...     def search(self, step, state, batch_size, max_length, *arguments, **settings):
    ...         return greedy_search(step, state, batch_size, 2)
    >>> model = Transformer.from_preset("tiny", vocab_size=11)
    >>> model.generate(np.array([[5, 7, 1]]), sampler=ShortSampler(), max_length=4).shape
    (1, 2)
    """

    # Attributes that `get_config` returns in addition to the constraints.
    _arguments = ()
    num_results = 1
    min_length = no_repeat_ngram_size = 0
    repetition_penalty = 1.0

    def __init__(self, min_length=0, no_repeat_ngram_size=0, repetition_penalty=1.0):
        checked_constraints(min_length, no_repeat_ngram_size, repetition_penalty)
        self.min_length = min_length
        self.no_repeat_ngram_size = no_repeat_ngram_size
        self.repetition_penalty = repetition_penalty

    def __setattr__(self, name, value):
        # NumPy's numbers are not JSON types.
        super().__setattr__(name, _checks.plain(value))

    @property
    def constraints(self):
        """The settings of `Sampler` by name. Assign to the attributes to change them."""
        return types.MappingProxyType({name: getattr(self, name) for name in _CONSTRAINTS})

    @property
    def num_hypotheses(self):
        """Number of rows per sentence in calls of the step function."""
        return self.num_results

    def settings(self):
        """Returns the settings of the search, without seeds, as a hashable value."""
        values = {name: value for name, value in vars(self).items() if name not in _NOT_SETTINGS}
        for name, value in values.items():
            if isinstance(value, Sampler):
                values[name] = type(value), value.settings()
        return tuple(sorted(values.items()))

    def get_config(self):
        """Returns the arguments of the sampler as a dict."""
        return {name: getattr(self, name) for name in (*self._arguments, *_CONSTRAINTS)}

    @classmethod
    def from_config(cls, config):
        """Returns a sampler with the arguments that `get_config` returned."""
        return cls(**config)

    def random_numbers(self, batch_size, max_length):
        """Returns the random numbers of one search, `[B, n, L]`, or None if it uses none."""
        return None

    def search(
        self,
        step,
        state,
        batch_size,
        max_length,
        uniform=None,
        prefix=None,
        length_limit=None,
        stop_token_ids=None,
    ):
        """Runs the search.

        Args:
            step: `step(ids [rows], state) -> (logits [rows, V], state)`.
            state: a nested dict of tensors `[B, ...]`.
            batch_size: B.
            max_length: L, largest number of ids of an output.
            uniform: the result of `random_numbers`.
            prefix: int `[B, P]`, the first ids of every output, or None.
            length_limit: int `[B]`, largest number of ids of each sentence's outputs. Default: L.
            stop_token_ids: tuple of ids that end an output; `()` for none. `generate` passes it
                only if it was called with it. Default: None, id 1.

        Returns:
            A `DecodingResult`.
        """
        search = self._search(uniform)
        request = {"prefix": prefix, "length_limit": length_limit, "stop_token_ids": stop_token_ids}
        return search(step, state, batch_size, max_length, **request, **self.constraints)

    def _search(self, uniform):
        """Returns the function of a search with its settings, except for the constraints."""
        raise NotImplementedError


@keras.saving.register_keras_serializable(package="t2t_relpos")
class GreedySampler(Sampler):
    """A sampler that selects the most likely id at every step.

    Args:
        min_length, no_repeat_ngram_size, repetition_penalty: as in `Sampler`.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.models import Transformer
    >>> from t2t_relpos.decoding import GreedySampler
    >>> model = Transformer.from_preset("tiny", vocab_size=11)
    >>> model.generate(np.array([[5, 7, 1]]), sampler=GreedySampler(), max_length=4).shape
    (1, 4)
    """

    def _search(self, uniform):
        return greedy_search


@keras.saving.register_keras_serializable(package="t2t_relpos")
class BeamSampler(Sampler):
    """A sampler that finds the outputs with the largest log-probability over length penalty.

    Args:
        num_beams: hypotheses kept per sentence. Default: 4.
        alpha: exponent of the length penalty, at least 0. Default: 0.6.
        num_results: number of outputs per sentence, at most `num_beams`. If fewer outputs finish
            within the limit, the last ones are unfinished. Default: 1.
        early_stopping: as in `beam_search`. Default: False.
        **constraints: `min_length`, `no_repeat_ngram_size`, `repetition_penalty` of `Sampler`.

    Raises:
        ValueError: if a setting is out of range.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.decoding import BeamSampler
    >>> from t2t_relpos.models import Transformer
    >>> model = Transformer.from_preset("tiny", vocab_size=11)
    >>> sampler = BeamSampler(num_beams=3, num_results=2)
    >>> model.generate(np.array([[5, 7, 1]]), sampler=sampler, max_length=4).shape
    (1, 2, 4)
    """

    _arguments = ("num_beams", "alpha", "num_results", "early_stopping")

    def __init__(self, num_beams=4, alpha=0.6, num_results=1, early_stopping=False, **constraints):
        super().__init__(**constraints)
        check_sizes("num_beams", num_beams, num_results)
        check_alpha(alpha)
        self.num_beams = int(num_beams)
        self.alpha = alpha
        self.num_results = int(num_results)
        self.early_stopping = early_stopping

    @property
    def num_hypotheses(self):
        return self.num_beams

    def _search(self, uniform):
        return functools.partial(
            beam_search,
            beam_size=self.num_beams,
            alpha=self.alpha,
            num_results=self.num_results,
            early_stopping=self.early_stopping,
        )


class _RandomSampler(Sampler):
    """Base class of samplers that draw ids at random."""

    _arguments = ("k", "temperature", "num_results")

    def __init__(self, k, p, temperature, seed, num_results, constraints):
        super().__init__(**constraints)
        check_sampling(temperature, k, p, num_results)
        self.k = k
        self.p = p
        self.temperature = temperature
        self.num_results = num_results
        self.config_seed = seed
        self.seed = keras.random.SeedGenerator(self.config_seed)

    def random_numbers(self, batch_size, max_length):
        shape = (batch_size, self.num_results, max_length)
        return keras.random.uniform(shape, dtype="float32", seed=self.seed)

    def _search(self, uniform):
        return functools.partial(
            sample_search,
            temperature=self.temperature,
            num_results=self.num_results,
            top_k=self.k,
            top_p=self.p,
            uniform=uniform,
        )

    def get_config(self):
        return {**super().get_config(), "seed": self.config_seed}


@keras.saving.register_keras_serializable(package="t2t_relpos")
class TopKSampler(_RandomSampler):
    """A sampler that draws each id from the k most likely ones.

    Args:
        k: number of ids to draw from. Default: 5.
        temperature: as in `sample_search`. Default: 1.0.
        seed: int, or None. Every call of `generate` continues the sequence of random numbers.
            Default: None.
        num_results: number of outputs per sentence. Default: 1.
        **constraints: `min_length`, `no_repeat_ngram_size`, `repetition_penalty` of `Sampler`.

    Raises:
        ValueError: if a setting is out of range.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.decoding import TopKSampler
    >>> from t2t_relpos.models import Transformer
    >>> model = Transformer.from_preset("tiny", vocab_size=11)
    >>> sampler = TopKSampler(k=3, temperature=0.8, seed=7)
    >>> model.generate(np.array([[5, 7, 1]]), sampler=sampler, max_length=4).shape
    (1, 4)
    """

    def __init__(self, k=5, temperature=1.0, seed=None, num_results=1, **constraints):
        k = _checks.positive_int(k, "k")
        super().__init__(k, None, temperature, seed, num_results, constraints)


@keras.saving.register_keras_serializable(package="t2t_relpos")
class TopPSampler(_RandomSampler):
    """A sampler that draws each id from the fewest ids whose probabilities sum to p.

    Args:
        p: above 0 and at most 1. Default: 0.1.
        k: if given, only the k most likely ids are considered. Default: None.
        temperature, seed, num_results: as in `TopKSampler`. Defaults: 1.0, None and 1.
        **constraints: `min_length`, `no_repeat_ngram_size`, `repetition_penalty` of `Sampler`.

    Raises:
        ValueError: if a setting is out of range.

    Example:
    >>> import numpy as np
    >>> from t2t_relpos.decoding import TopPSampler
    >>> from t2t_relpos.models import Transformer
    >>> model = Transformer.from_preset("tiny", vocab_size=11)
    >>> sampler = TopPSampler(p=0.9, seed=7)
    >>> model.generate(np.array([[5, 7, 1]]), sampler=sampler, max_length=4).shape
    (1, 4)
    """

    _arguments = ("p", *_RandomSampler._arguments)

    def __init__(self, p=0.1, k=None, temperature=1.0, seed=None, num_results=1, **constraints):
        if p is None:
            raise ValueError("Expected `p` above 0 and at most 1. Received: None")
        super().__init__(k, p, temperature, seed, num_results, constraints)


def copy_settings(sampler):
    """Returns a copy of a sampler that later assignments to attributes do not change.

    The copy has the same generator of random numbers.
    """
    copied = copy.copy(sampler)
    for name, value in vars(sampler).items():
        if isinstance(value, Sampler):
            setattr(copied, name, copy_settings(value))
    return copied


SAMPLERS = {
    "beam": BeamSampler,
    "greedy": GreedySampler,
    "top_k": TopKSampler,
    "top_p": TopPSampler,
}


def get_sampler(sampler):
    """Returns the `Sampler` of a name, or a given `Sampler` itself.

    Raises:
        ValueError: if the name is unknown.
    """
    if isinstance(sampler, Sampler):
        return sampler
    if isinstance(sampler, str) and sampler in SAMPLERS:
        return SAMPLERS[sampler]()
    raise ValueError(
        f"Expected `sampler` to be one of {', '.join(map(repr, SAMPLERS))}, or a Sampler object. "
        f"Received: {sampler!r}"
    )
