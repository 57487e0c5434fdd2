"""`generate`: its checks, the sizes of its searches, and the state of models with caches."""

import operator

import keras
import numpy as np
from keras import ops

from t2t_relpos import _checks, backend
from t2t_relpos._conventions import EOS_ID, PAD_ID
from t2t_relpos.backend import compile_function, largest
from t2t_relpos.backend.keras_private import sublayers
from t2t_relpos.decoding.constraints import checked_stop_ids
from t2t_relpos.decoding.samplers import SAMPLERS, Sampler, copy_settings, get_sampler
from t2t_relpos.layers.attention_cache import cache_length
from t2t_relpos.layers.relative_multi_head_attention import RelativeMultiHeadAttention
from t2t_relpos.layers.transformer_decoder import TransformerDecoder
from t2t_relpos.models.folded import FoldedTransformer, can_fold, fold_weights, is_own


class GenerationMixin:
    """Mixin with `generate`: for models with `encode`, `step`, `config`, `_searches`.

    `_searches` is a `SearchFunctions`.
    """

    # Whether outputs start with the source, as in a language model.
    _continues_source = False
    _default_sampler = "beam"

    def generate(
        self,
        source,
        sampler="auto",
        max_length=None,
        jit_compile="auto",
        stop_token_ids="auto",
        **unknown,
    ):
        """Returns ids that a sampler generates from `source`.

        On TensorFlow and JAX, the first call with a new sampler setting, batch size, source length
        or `max_length` compiles a search, which takes seconds. To avoid most compilations, the
        batch and the sources are padded to a few sizes. TensorFlow may warn about retracing. The
        search always uses the current weights. The last 128 compiled searches are kept.

        A compiled search keeps other attributes of the model and its layers, such as numbers, as
        they were when it was compiled. Call `reset_compiled_searches` after changing them.

        Folded weights are used if the model and all its layers are of the classes of this library
        and compute in float32, no layer is quantized or has LoRA, and the layers of the blocks have
        the settings of the config. They are the weights of a `FoldedTransformer`: scales of layer
        normalization and of queries multiplied into the matrices, which computes the same in fewer
        operations. Otherwise, the search calls `encode` and `step` of the model, and with them
        replaced layers and the methods of subclasses. A method that is set on an instance is not
        looked for.

        Args:
            source: int ids `[B, S]`, padded with 0. Sentences of an encoder-decoder model end with
                id 1. For a `CausalLM`: prompts, with which the outputs start. They may have
                different lengths. Padding follows a prompt, and nothing else follows id 1.
            sampler: `"beam"`, `"greedy"`, `"top_k"`, `"top_p"`, or a sampler of
                `t2t_relpos.decoding`. Its settings, such as a seed, are arguments of the sampler.
                "auto": "greedy" for a `CausalLM`, otherwise "beam".
            max_length: largest number of ids of an output, including id 1 at its end. Default:
                S + 50, or the number of learned positions if it is smaller.
            jit_compile: whether XLA compiles the search. "auto": True on TensorFlow and JAX, False
                on PyTorch. With False, TensorFlow runs a graph, and JAX and PyTorch run eagerly.
            stop_token_ids: "auto", a tuple of ids, or None. An output ends with the first of these
                ids. "auto": id 1. None: no id, so that outputs have `max_length` ids. Prompts of a
                `CausalLM` may only end with one of them.
            **unknown: none. The error for a sampler's setting says to which sampler it belongs.

        Returns:
            An int32 array `[B, max_length]`, padded with 0 after the end. With samplers whose
            `num_results` is above 1, `[B, num_results, max_length]`. If a beam search has fewer
            finished outputs than `num_results`, the last rows are unfinished outputs.

        Raises:
            NotImplementedError: if a subclass overrides `call` of the model, and neither `encode`
                nor `step`; or overrides `call` of an attention layer of the decoder.
            TypeError: for any other argument, such as a setting of a sampler.
            ValueError: if `source` is not `[B, S]` or holds ids out of range; if it is longer than
                `max_length` or has ids after padding or after an end (`CausalLM`); if `max_length`
                is not a positive int, or below the sampler's `min_length`; if a length exceeds the
                number of learned positions; if the sampler is unknown or its settings are not
                hashable; if `stop_token_ids` are out of range; or if `jit_compile` is True on
                PyTorch.

        Example:
        >>> import numpy as np
        >>> from t2t_relpos.models import Transformer
        >>> model = Transformer.from_preset("tiny", vocab_size=11)
        >>> model.generate(np.array([[5, 7, 1], [3, 1, 0]]), max_length=6).shape
        (2, 6)
        """
        _check_no_settings(unknown)
        sampler = get_sampler(self._default_sampler if sampler == "auto" else sampler)
        jit_compile = _resolve_jit_compile(jit_compile)
        source = _as_ids(source, "`source`, the prompts," if self._continues_source else "`source`")
        # A compiled search can't check ids.
        _checks.token_ids(source, self._source_vocab_size)
        stop_token_ids = _stop_ids_of_search(stop_token_ids, self.vocab_size)
        batch, length = source.shape
        num_positions = self.config.num_positions
        extra_length = None if max_length is not None else DEFAULT_EXTRA_LENGTH
        if max_length is None:
            max_length = _capped(length + extra_length, num_positions)
        max_length = _checks.positive_int(max_length, "max_length")
        _check_lengths(sampler, length, max_length, num_positions)
        if self._continues_source:
            ends = (EOS_ID,) if stop_token_ids is None else stop_token_ids
            _check_prompts(source, max_length, ends)
        uniform = sampler.random_numbers(batch, max_length)
        source, steps, sizes = source.astype("int32"), max_length, ()
        if jit_compile:
            source, steps, uniform = _padded(source, steps, uniform, extra_length, num_positions)
            # XLA compiles a search for each size of its inputs.
            sizes = *source.shape, None if uniform is None else uniform.shape[1]
        search = self._search_function(
            sampler, (*sizes, steps), stop_token_ids, jit_compile=jit_compile
        )
        # Rows of padding have the limit 0.
        limits = np.where(np.arange(len(source)) < batch, max_length, 0).astype("int32")
        tensors = ops.convert_to_tensor(source), ops.convert_to_tensor(limits)
        ids = search(*tensors) if uniform is None else search(*tensors, uniform)
        ids = ops.convert_to_numpy(ids)[:batch, :, :max_length]
        return ids if sampler.num_results > 1 else ids[:, 0]

    def reset_compiled_searches(self):
        """Lets the next `generate` compile its search again.

        Call it after changing attributes that `step` or the layers read, such as numbers. It is not
        needed after changes of weights, layers, activations, quantization or LoRA.

        Example:
        >>> import numpy as np
        >>> from t2t_relpos.models import CausalLM
        >>> class ScaledLM(CausalLM):
        ...     scale = 1.0
        ...     def step(self, ids, state):
        ...         logits, state = super().step(ids, state)
        ...         return self.scale * logits, state
        >>> model = ScaledLM(11, 1, 8, 16, 2, 4)
        >>> outputs = model.generate(np.array([[5, 7]]), max_length=6)
        >>> model.scale = -1.0
        >>> model.reset_compiled_searches()
        >>> model.generate(np.array([[5, 7]]), max_length=6).shape
        (1, 6)
        """
        self._searches = SearchFunctions()

    @property
    def vocab_size(self):
        """V, the number of ids of outputs."""
        return self.config.vocab_size

    @property
    def _source_vocab_size(self):
        return self.vocab_size

    def _logits(self, states):
        return ops.cast(self.output_embedding(states, reverse=True), "float32")

    def capacity(self, state):
        """Returns the number of steps that the caches in a state have room for."""
        return cache_length(next(iter(state["caches"].values())))

    def _search_function(self, sampler, sizes, stop_token_ids, *, jit_compile):
        """Returns the search of a sampler. It is compiled once per combination of arguments.

        Args:
            sampler: a `Sampler`.
            sizes: sizes of the inputs. The last one is the maximum length of outputs.
            stop_token_ids: as in `Sampler.search`.
            jit_compile: whether XLA compiles it.
        """
        # The search must not change with the attributes of an object of the caller.
        sampler = copy_settings(sampler)
        settings = _hashable_settings(sampler)

        def compile_search():
            search = self._make_search(sampler, sizes[-1], stop_token_ids, jit_compile=jit_compile)
            return compile_function(self, search, jit_compile=jit_compile)

        key = type(sampler), settings, sizes, stop_token_ids, jit_compile
        return self._searches.get(self, key, compile_search)

    def _make_search(self, sampler, max_length, stop_token_ids, *, jit_compile):
        """Returns `search(source, limit, uniform=None)` for `max_length` ids with padding."""
        growing = _may_grow(sampler, jit_compile=jit_compile)
        # A custom sampler need not have the argument.
        stop_arguments = {} if stop_token_ids is None else {"stop_token_ids": stop_token_ids}

        def search(source, limit, uniform=None):
            state, step = self.start_search(
                source, max_length, sampler.num_hypotheses, growing=growing
            )
            prefix = source if self._continues_source else None
            arguments = ops.shape(source)[0], max_length, uniform, prefix, limit
            return sampler.search(step, state, *arguments, **stop_arguments).ids

        return search

    def start_search(self, source, max_length, num_hypotheses, *, growing=True):
        """Returns (state, step function) for a search of `t2t_relpos.decoding`.

        `generate` describes when folded weights are used. They are folded in every call, because
        weights may change. That costs little compared to a search.

        Args:
            source: int ids `[B, S]`, padded with 0. For a `CausalLM`: prompts.
            max_length: number of steps, an int or a scalar tensor.
            num_hypotheses: hypotheses per sentence, an int or a scalar tensor.
            growing: whether caches may grow from step to step. It must be False for XLA, JAX and
                loops whose variables have fixed shapes. Default: True.
        """
        backend.check_dense(source, "`source`")
        if can_fold(self):
            folded = FoldedTransformer(self.config, fold_weights(self))
            return folded.start_search(source, max_length, num_hypotheses, growing=growing)
        _check_steps(self)
        return self.encode(source, max_length), self.step


def empty_state(blocks, rows, max_length):
    """Returns the state of `step` before the first id, with a cache of zeros for each block.

    A cache is `[rows, 2, max_length, N, H]`, or a pair `[rows, max_length, N, H]` and
    `[rows, max_length, N, Hv]` if keys and values differ in depth.
    """
    caches = {block.name: _empty_cache(block, rows, max_length) for block in blocks}
    return {"caches": caches, "position": ops.zeros((rows,), dtype="int32")}


def _empty_cache(block, rows, max_length):
    attention, dtype = block.self_attention, block.compute_dtype
    if attention.key_dim == attention.value_dim:
        shape = (rows, 2, max_length, attention.num_heads, attention.key_dim)
        return ops.zeros(shape, dtype=dtype)
    return tuple(
        ops.zeros((rows, max_length, attention.num_heads, depth), dtype=dtype)
        for depth in (attention.key_dim, attention.value_dim)
    )


def current_position(state):
    """Returns the position of all rows, a scalar. The state may have no rows."""
    return largest(state["position"], 0)


def _check_steps(model):
    """Raises NotImplementedError if a subclass overrides `call` and decoding would not run it.

    `step` runs neither the `call` of the model nor that of an attention layer of the decoder.
    """
    cls = next(filter(is_own, type(model).__mro__))
    if _overrides(model, cls, "encode") or _overrides(model, cls, "step"):
        return
    calls = [x for x in ("call", "logits_and_attention", "_decode") if _overrides(model, cls, x)]
    if calls:
        raise NotImplementedError(
            f"Expected a subclass of {cls.__name__} that overrides `{calls[0]}` to override `step` "
            "too, and `encode` if necessary: they compute one position at a time for `generate`. "
            f"Received: {type(model).__name__}, which overrides neither."
        )
    blocks = [layer for layer in sublayers(model) if isinstance(layer, TransformerDecoder)]
    for layer in (x for block in blocks for x in sublayers(block)):
        is_attention = isinstance(layer, RelativeMultiHeadAttention)
        if is_attention and _overrides(layer, RelativeMultiHeadAttention, "call"):
            raise NotImplementedError(
                "Expected an attention layer of the decoder that overrides `_compute_attention` "
                "instead of `call`, which steps of decoding do not run, or a model that overrides "
                f"`step`. Received: {type(layer).__name__}, which overrides `call`."
            )


def _overrides(layer, cls, name):
    """Returns whether the class of a layer overrides a method of a class."""
    return getattr(type(layer), name, None) is not getattr(cls, name, None)


class SearchFunctions:
    """The last compiled searches of a model. Keras does not track the content of such an object."""

    LARGEST_NUMBER = 128

    def __init__(self):
        self.functions = {}
        self._parts = []

    def get(self, model, key, compile_search):
        """Returns the search of a key. Calls `compile_search()` if it is not among the last ones.

        Searches that were compiled before a change of the model's parts are removed.
        """
        parts = _parts(model)
        if len(parts) != len(self._parts) or not all(map(operator.is_, parts, self._parts)):
            self.functions = {}
        self._parts = parts
        # The dict is in the order of use.
        function = self.functions.pop(key, None)
        if function is None:
            function = compile_search()
        self.functions[key] = function
        while len(self.functions) > self.LARGEST_NUMBER:
            del self.functions[next(iter(self.functions))]
        return function

    def __deepcopy__(self, memo):
        # A copy of a model compiles its own searches.
        return SearchFunctions()


def _parts(model):
    """Returns the variables, layers, types and functions that a compiled search depends on.

    Quantization and LoRA change the variables. Activations are functions of layers, and a function
    may replace a layer. Those of the model itself are not included: Keras sets functions of its
    own, such as `predict_function`.
    """
    layers = sublayers(model) if isinstance(model, keras.layers.Layer) else []
    functions = [x for layer in layers for x in vars(layer).values() if callable(x)]
    return [*model.variables, model, *layers, *map(type, (model, *layers)), *functions]


def _resolve_jit_compile(jit_compile):
    if jit_compile == "auto":
        return backend.HAS_XLA
    if jit_compile and not backend.HAS_XLA:
        raise ValueError(
            f'Expected `jit_compile` to be False or "auto" on PyTorch. Received: {jit_compile!r}.'
        )
    return bool(jit_compile)


def _may_grow(sampler, *, jit_compile):
    """Returns whether caches may grow from step to step."""
    if backend.NAME == "tensorflow":
        # The loop of a custom search may need fixed shapes.
        return not jit_compile and type(sampler).search is Sampler.search
    return not backend.HAS_XLA


# Ids that an output may have in addition to its source, if no maximum length is given.
DEFAULT_EXTRA_LENGTH = 50
# Sizes to which compiled searches are padded. Larger sizes are multiples of a step.
_LENGTHS, _LENGTH_STEP = (8, 16, 24, 32, 48, 64, 96, 128), 64
_BATCHES, _BATCH_STEP = (1, 2, 4, 8), 8


def _bucket(size, sizes, step):
    """Returns the size to which a smaller one is padded."""
    return next((each for each in sizes if each >= size), -(-size // step) * step)


def _capped(size, largest):
    """Returns a size, but at most `largest`. None means no limit."""
    return size if largest is None else min(size, largest)


def _padded(source, max_length, uniform, extra_length, largest):
    """Returns the inputs of a search, padded to bucket sizes.

    Args:
        source: int ids `[B, S]`, an array.
        max_length: L, maximum number of ids of an output.
        uniform: random numbers `[B, n, L]`, or None.
        extra_length: if not None, `max_length` becomes the padded length plus this number.
        largest: limit of both lengths, or None.
    """
    rows = _bucket(len(source), _BATCHES, _BATCH_STEP)
    length = _capped(_bucket(source.shape[1], _LENGTHS, _LENGTH_STEP), largest)
    if extra_length is not None:
        max_length = _capped(length + extra_length, largest)
    if uniform is not None:
        uniform = np.asarray(ops.convert_to_numpy(uniform))
        uniform = _pad(uniform, (rows, uniform.shape[1], max_length))
    return _pad(source, (rows, length)), max_length, uniform


def _pad(array, shape):
    return np.pad(array, [(0, size - old) for size, old in zip(shape, array.shape)])


def _as_ids(source, name):
    """Returns ids as a NumPy array of rank 2.

    Raises:
        ValueError: if they have another rank, or are no numbers. `name` is their name in the error.
    """
    expected = f"Expected {name} to be int ids of shape [batch, length]"
    if isinstance(source, dict):
        raise ValueError(f"{expected}. Received: a dict. Pass the ids of the source only.")
    tokenize = (
        "Tokenize texts, and pad rows with keras.utils.pad_sequences(source, padding='post')."
    )
    if any(isinstance(x, (str, bytes)) for x in keras.tree.flatten(source)):
        raise ValueError(f"{expected}, padded with 0. Received: text. {tokenize}")
    try:
        if not isinstance(source, np.ndarray):  # PyTorch has no tensors of every dtype of NumPy.
            source = np.asarray(ops.convert_to_numpy(ops.convert_to_tensor(source)))
    except (TypeError, ValueError) as error:
        raise ValueError(
            f"{expected}, padded with 0. Received: a {type(source).__name__} that can't be "
            "converted to a tensor, for example because its rows have different lengths. Pad them "
            "with keras.utils.pad_sequences(source, padding='post')."
        ) from error
    if source.dtype.kind in "OSU":  # Keras has no such dtypes.
        raise ValueError(f"{expected}, padded with 0. Received: dtype {source.dtype}. {tokenize}")
    if source.ndim != 2:
        raise ValueError(f"{expected}. Received: shape {source.shape}.")
    return source


def _check_lengths(sampler, source_length, max_length, num_positions):
    """Raises ValueError if `max_length` contradicts the sampler or the learned positions.

    Args:
        sampler: a `Sampler`.
        source_length: S.
        max_length: largest number of ids of an output.
        num_positions: the number of learned positions, or None if lengths have no limit.
    """
    min_length = sampler.constraints["min_length"]
    if min_length > max_length:
        raise ValueError(
            "Expected `max_length` of at least the sampler's `min_length`. Received: "
            f"max_length={max_length}, min_length={min_length}."
        )
    if num_positions is not None and max(source_length, max_length) > num_positions:
        raise ValueError(
            f"Expected sources and outputs of at most {num_positions} ids, the learned positions "
            f"of the model. Received: sources of {source_length} ids, max_length={max_length}. "
            "Pass a smaller `max_length`, split the sources, or train a model with a larger "
            "`TransformerConfig.max_length`."
        )


def _check_no_settings(unknown):
    """Raises TypeError if a dict of unknown arguments of `generate` is not empty."""
    for name in unknown:
        owners = [x for x in SAMPLERS.values() if name in x().get_config()]
        # Most samplers have the arguments of the others too.
        hint = f" Pass it to a sampler: sampler={owners[-1].__name__}({name}=...)" if owners else ""
        raise TypeError(f"generate() got an unexpected keyword argument {name!r}.{hint}")


def _stop_ids_of_search(stop_token_ids, vocab_size):
    """Converts the argument of `generate` to that of `Sampler.search`.

    A search has None where `generate` has "auto", and `()` where `generate` has None.

    Raises:
        ValueError: if they are neither "auto" nor None nor ids in [1, vocab_size).
    """
    if isinstance(stop_token_ids, str) and stop_token_ids == "auto":
        return None
    found = checked_stop_ids(() if stop_token_ids is None else stop_token_ids, PAD_ID)
    if found and found[-1] >= vocab_size:
        raise ValueError(
            f"Expected `stop_token_ids` in [1, {vocab_size}), the vocabulary of the model. "
            f"Received: {stop_token_ids!r}."
        )
    return found


def _check_prompts(source, max_length, stop_token_ids):
    """Raises ValueError if prompts are longer than outputs, or an id follows padding or an end."""
    length = source.shape[1]
    if length > max_length:
        raise ValueError(
            f"Expected `max_length` of at least {length}, because outputs start with the "
            f"{length} ids of `source`. Received: {max_length}."
        )
    ends = np.isin(source[:, :-1], (PAD_ID, *stop_token_ids))
    rows = np.flatnonzero((ends & (source[:, 1:] != PAD_ID)).any(axis=1))
    if rows.size:
        names = " or ".join(map(str, stop_token_ids))
        after = f", and nothing but padding after id {names}, the end of a text" if names else ""
        raise ValueError(
            f"Expected prompts with padding (0) at their end only{after}. Received: prompt "
            f"{rows[0]} is {source[rows[0]].tolist()}. Pad prompts with "
            "keras.utils.pad_sequences(source, padding='post'), and remove ends from within them."
        )


def _hashable_settings(sampler):
    """Returns the settings of a sampler with their types, because 1 and 1.0 have the same hash.

    Raises:
        ValueError: if one of them is not hashable.
    """
    settings = sampler.settings()
    for name, value in settings:
        try:
            hash(value)
        except TypeError as error:
            raise ValueError(
                "Expected hashable attributes of a sampler, because each new setting compiles a "
                f"search. Received: {type(sampler).__name__}.{name} is a {type(value).__name__}. "
                "Use a tuple instead of a list or an array."
            ) from error
    return tuple((name, type(value), value) for name, value in settings)
