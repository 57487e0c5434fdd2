"""Models recorded from tensor2tensor (models/NAME), loaded into this project's models."""

import functools
import json
import pathlib

import keras
import numpy as np
import tensorflow as tf

from t2t_relpos.decoding import beam_search, greedy_search
from t2t_relpos.models import CausalLM, Transformer
from t2t_relpos.models.generation import current_position
from t2t_relpos.t2t import (
    config_from_hparams,
    is_language_model,
    load_t2t_weights,
    parse_hparams,
)

FOLDER = pathlib.Path(__file__).parent / "models"
NAMES = sorted(path.parent.name for path in FOLDER.glob("*/model.json"))


class RecordedModel:
    """A recorded model, and a model of this project with its weights.

    Attributes:
        settings: the content of model.json, a dict.
        arrays: a dict that maps variable names of the checkpoint, including optimizer slots, to
            arrays.
        is_language_model: whether the model has no inputs.
        num_shards: number of shards of an embedding table.
        model: a `Transformer` or a `CausalLM` with the weights of the checkpoint.
    """

    def __init__(self, name):
        self.name = name
        self.folder = FOLDER / name
        self.settings = json.loads((self.folder / "model.json").read_text())
        reader = tf.train.load_checkpoint(str(self.folder / self.settings["checkpoint"]))
        self.arrays = {key: reader.get_tensor(key) for key in reader.get_variable_to_shape_map()}
        self.is_language_model = is_language_model(self.arrays)
        self.num_shards = self.settings["hparams"]["symbol_modality_num_shards"]
        config = self.config()
        self.model = CausalLM(config=config) if self.is_language_model else Transformer(config)
        load_t2t_weights(self.model, self.arrays, self.num_shards)

    def hparams(self):
        """Returns the hparams of the recorded set with its overrides."""
        changes = self.settings["overrides"].items()
        return parse_hparams(
            self.settings["hparams_set"], ",".join(f"{key}={value}" for key, value in changes)
        )

    def config(self):
        settings = self.settings
        return config_from_hparams(
            self.hparams(),
            settings["vocab_size"],
            settings["target_space_id"],
            language_model=self.is_language_model,
        )

    @property
    def is_decoded(self):
        """Whether decoded ids are recorded."""
        return (self.folder / "decoded.npz").exists()

    def weights(self):
        """Returns the values that the model computes with, by variable name."""
        if (self.folder / "weights.npz").exists():
            return self.recorded("weights")
        return self.arrays

    def recorded(self, file):
        with np.load(self.folder / f"{file}.npz", allow_pickle=False) as arrays:
            return dict(arrays)

    def search(self, inputs, max_length, kind, limits=None):
        """Returns ids `[B, n, L]` and scores `[B, n]` of a search.

        Args:
            inputs: source ids `[B, S]`, or the prompts of a language model.
            max_length: maximum number of steps.
            kind: a key of SEARCHES.
            limits: maximum number of ids of each sentence, for kind "default".
        """
        limits = np.zeros(len(inputs)) if limits is None else limits
        inputs, limits = (np.asarray(x, "int32") for x in (inputs, limits))
        if keras.backend.backend() == "tensorflow":
            ids, scores, _ = self._search_graph(kind)(inputs, np.int32(max_length), limits)
        else:
            ids, scores, _ = self._search_with_static_sizes(kind, int(max_length))(inputs, limits)
        return keras.ops.convert_to_numpy(ids), keras.ops.convert_to_numpy(scores)

    @functools.cache
    def _search_with_static_sizes(self, kind, max_length):
        def search(inputs, limits):
            return SEARCHES[kind](self, inputs, max_length, limits)

        if keras.backend.backend() != "jax":
            return search
        import jax

        return jax.jit(search)

    @functools.cache
    def _search_graph(self, kind):
        search = SEARCHES[kind]

        # Use one graph for all sizes, because tracing takes longer than all searches.
        sizes = [tf.TensorSpec([None] * rank, tf.int32) for rank in (2, 0, 1)]

        @tf.function(input_signature=sizes, autograph=False)
        def graph(inputs, max_length, limits):
            return search(self, inputs, max_length, limits)

        return graph


class WithoutCache:
    """Decodes with a `CausalLM`. Each step computes the logits of all positions."""

    def __init__(self, model):
        self.model = model

    def encode(self, source, max_length):
        rows = keras.ops.shape(source)[0]
        return {
            "ids": keras.ops.zeros((rows, max_length), dtype="int32"),
            "position": keras.ops.zeros((rows,), dtype="int32"),
        }

    def step(self, ids, state):
        position = current_position(state)
        slots = keras.ops.arange(keras.ops.shape(state["ids"])[1], dtype="int32")
        # The logits of a position depend on the ids before it.
        all_ids = keras.ops.where(slots == position - 1, ids[:, None], state["ids"])
        logits = keras.ops.take(self.model(all_ids), position, axis=1)
        return logits, {"ids": all_ids, "position": state["position"] + 1}


def _beam(case, inputs, max_length, **arguments):
    return beam_search(
        case.model.step,
        case.model.encode(inputs, max_length),
        keras.ops.shape(inputs)[0],
        max_length,
        beam_size=case.settings["beam_size"],
        alpha=case.settings["alpha"],
        **arguments,
    )


def _greedy(case, inputs, max_length, limits):
    state = case.model.encode(inputs, max_length)
    return greedy_search(case.model.step, state, keras.ops.shape(inputs)[0], max_length)


def _best(case, inputs, max_length, limits):
    return _beam(case, inputs, max_length, t2t_exact=True)


def _all_beams(case, inputs, max_length, limits):
    count = case.settings["beam_size"]
    return _beam(case, inputs, max_length, num_results=count, t2t_exact=True)


def _with_limits(case, inputs, max_length, limits):
    return _beam(case, inputs, max_length, length_limit=limits)


def _continuations(case, inputs, max_length, limits):
    count = case.settings["beam_size"]
    return _beam(case, inputs, max_length, num_results=count, prefix=inputs)


SEARCHES = {
    "greedy": _greedy,
    "best": _best,
    "beam": _all_beams,
    "default": _with_limits,
    "continuations": _continuations,
}


@functools.cache
def recorded_model(name):
    return RecordedModel(name)
