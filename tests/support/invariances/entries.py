"""The public entries of this library, with arguments of a call, for `tests/test_invariances.py`.

A new entry joins by a line of ENTRIES, or by a line of `layer_cases.CASES` or of `dispatch.TABLE`.
"""

import dataclasses
import functools
import zlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import layer_cases
import numpy as np
from keras import ops
from small_transformers import random_transformer, small_causal_lm

from t2t_relpos.attention import attend, dispatch
from t2t_relpos.attention.call import AttentionCall

BACKEND = keras.backend.backend()
# The dtype of an input of each kind in the plain call. Numbers are Python's.
DTYPES = {"float": "float32", "ids": "int32", "mask": "bool", "number": None}
K = 3
# Sizes of axes. All ids are from 2 to 6: rows of tables, and neither padding nor the end.
SIZES = {
    "B": 3,
    "N": 2,
    "G": 1,
    "D": 5,
    "T": 7,
    "S": 9,
    "H": 8,
    "R": 2 * K + 1,
    "L": 17,
    "W": 4,
    "I": 3,
}
# Weights of PyTorch modules that have all heads in one axis: (axis, number of projections in it).
PYTORCH_HEADS = (
    {"in_proj_weight": (0, 3), "in_proj_bias": (0, 3)}
    | dict.fromkeys(("linear_q", "linear_k", "linear_v", "q_proj", "k_proj", "v_proj"), (0, 1))
    | dict.fromkeys(("linear_out", "out_proj", "o_proj"), (1, 1))
)


@dataclasses.dataclass(frozen=True, eq=False)
class Subject:
    """A call, and the layer or module whose weights it uses.

    Args:
        call: `call(module, **inputs)` returns a tensor.
        module: a Keras layer, a PyTorch module, or None.
    """

    call: Callable
    module: Any = None

    def __call__(self, **inputs):
        return self.call(self.module, **inputs)

    def weights(self):
        """Returns the trainable weights by name: variables of Keras or parameters of PyTorch."""
        if self.module is None:
            return {}
        if isinstance(self.module, keras.Layer):
            variables = self.module.trainable_variables
            # The names of layers have numbers, which differ between two models.
            return {f"{i} {v.name}": v for i, v in enumerate(variables)}
        return {name: p for name, p in self.module.named_parameters() if p.requires_grad}


@dataclasses.dataclass(frozen=True, eq=False)
class Entry:
    """A public function, layer or model, and the arguments of a call.

    Args:
        name: id of the entry.
        make: returns a new `Subject` with the same weights each time.
        inputs: kind and axes of every tensor argument, such as "float B T 8".
        output: axes of the output.
        numbers: other arguments, ints and bools.
        sizes: sizes of axes that differ from SIZES.
        has_positions: whether positions are arguments, or nothing depends on them.
        differentiable: whether outputs have gradients.
    """

    name: str
    make: Callable
    inputs: Mapping[str, str]
    output: str
    numbers: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    sizes: Mapping[str, int] = dataclasses.field(default_factory=dict)
    has_positions: bool = False
    differentiable: bool = True

    def kind(self, name):
        """Returns the kind of an argument."""
        if name == "cotangent":
            return "float"
        return "number" if name in self.numbers else self.inputs[name].split()[0]

    def axes(self, name):
        """Returns the names of the axes of an argument, of the output or of its cotangent."""
        if name in ("outputs", "cotangent"):
            return self.output.split()
        return self.inputs[name].split()[1:] if name in self.inputs else []

    def shape(self, name):
        """Returns the shape of an argument or of the output."""
        sizes = SIZES | self.sizes
        return tuple(sizes[x] if x in sizes else int(x) for x in self.axes(name))

    def flip_heads(self, name, value):
        """Returns an array of a weight with its heads in reversed order."""
        num_heads = (SIZES | self.sizes)["N"]
        if BACKEND != "torch" or isinstance(self.subject.module, keras.Layer):
            axes = [axis for axis, size in enumerate(value.shape) if size == num_heads]
            return np.flip(value, axes)
        kind = name.removesuffix(".weight").removesuffix(".bias").rpartition(".")[2]
        if kind not in PYTORCH_HEADS or (value.ndim == 1 and PYTORCH_HEADS[kind][0] == 1):
            return value
        axis, count = PYTORCH_HEADS[kind]
        lead, tail = value.shape[:axis], value.shape[axis + 1 :]
        heads = value.reshape(*lead, count, num_heads, -1, *tail)
        return np.flip(heads, axis + 1).reshape(value.shape)

    def arguments(self):
        """Returns random arrays by name, with the numbers, and the cotangent of the output.

        Masks have a valid key for every query.
        """
        rng = np.random.default_rng(zlib.crc32(self.name.encode()))
        draw = {
            "float": rng.normal,
            "ids": lambda size: rng.integers(2, 7, size),
            "mask": lambda size: _with_first(rng.random(size) < 0.7),
        }
        names = [*self.inputs, *(["cotangent"] if self.differentiable else [])]
        arrays = {
            name: np.asarray(draw[self.kind(name)](size=self.shape(name))).astype(
                DTYPES[self.kind(name)]
            )
            for name in names
        }
        return arrays | dict(self.numbers)

    @functools.cached_property
    def subject(self):
        """The subject of all tests, which must not change its weights."""
        return self.make()


def _with_first(mask):
    mask[..., 0] = True
    return mask


# `attend` and the rows of its table

_QKV = {"query": "float B N T H", "key": "float B N S H", "value": "float B N S H"}
_SQUARE = {name: axes.replace("S", "T") for name, axes in _QKV.items()}
_TABLES = {"key_table": "float R H", "value_table": "float R H"}
_HEAD_TABLES = {"key_table": "float N R H", "value_table": "float N R H"}
_GROUPED = {name: axes.replace("N S", "G T") for name, axes in _QKV.items()}
_OWN_QUERY = {"relative_query": "float B N T D", "key_table": "float R D", "sinks": "float B N T"}


def _attend_entry(name, inputs, *, sizes=None, has_positions=False, implementation=None, **numbers):
    def make():
        return Subject(lambda module, **inputs: attend(**inputs, **options)[0])

    options = {
        "return_weights": False,
        "beyond": numbers.pop("beyond", "clip"),
        "rematerialize": numbers.pop("rematerialize", None),
        "implementation": implementation,
    }
    return Entry(name, make, inputs, "B N T H", numbers, sizes or {}, has_positions)


ATTEND = [
    _attend_entry("attend", _QKV | _TABLES, max_relative_position=K),
    _attend_entry("attend, table per head", _QKV | _HEAD_TABLES | {"key_mask": "mask B S"}),
    _attend_entry("attend, no table", _QKV | {"key_mask": "mask B S"}),
    _attend_entry(
        "attend, all masks",
        _QKV
        | _TABLES
        | {
            "mask": "mask B N T S",
            "key_mask": "mask B S",
            "query_mask": "mask B T",
            "bias": "float B N T S",
        },
    ),
    _attend_entry(
        "attend, window",
        _SQUARE | _TABLES,
        max_relative_position=K,
        causal=True,
        sliding_window=3,
        query_offset=0,
    ),
    _attend_entry(
        "attend, ids of rows",
        _QKV | _TABLES | {"relative_ids": "ids B T S", "mask": "mask T S"},
        has_positions=True,
    ),
    _attend_entry("attend, offsets", _QKV | _TABLES | {"query_offset": "ids B"}, causal=True),
    _attend_entry(
        "attend, queries of the table",
        _GROUPED | _OWN_QUERY | {"key_mask": "mask B T"},
        max_relative_position=K,
        beyond="zero",
        causal=True,
        query_offset=0,
    ),
    # Blocks multiply the rows of a long table.
    _attend_entry(
        "attend, long table",
        _SQUARE | _HEAD_TABLES | {"relative_query": "float B N T H", "key_mask": "mask B T"},
        sizes={"T": 40, "R": 41, "B": 2},
        rematerialize=True,
    ),
    # More than 224 positions, where PyTorch takes its flash kernel.
    _attend_entry(
        "attend, long", _SQUARE | _TABLES | {"key_mask": "mask B T"}, sizes={"T": 240, "B": 2}
    ),
    _attend_entry(
        "attend, linear memory", _SQUARE | _TABLES, sizes={"T": 40}, rematerialize=True, causal=True
    ),
]


def _row_entries():
    """Returns an entry per row of `dispatch.TABLE`, and the reasons why other rows have none."""
    entries, reasons = [], {}
    for row in dispatch.TABLE:
        has_tables = dispatch.NO_TABLES not in row.requirements
        sizes = {"T": 19, "B": 2}
        distance = K if has_tables else None
        call = AttentionCall(19, 19, distance, query_offset=0, key_dim=8, value_dim=8)
        unmet, _ = row.match(call, ignore_preferences=True)
        if unmet is not None:
            reasons[row.name] = unmet.text
            continue
        inputs = _SQUARE | (_TABLES if has_tables else {}) | {"key_mask": "mask B T"}
        name = f"row {row.name}"
        entries.append(_attend_entry(name, inputs, sizes=sizes, implementation=row.name))
    return entries, reasons


ROWS, ROWS_OF_OTHER_DEVICES = _row_entries()

# Layers

# Layers with positions as arguments, and layers that compute every position separately.
_WITH_POSITIONS = {"relative_positions", "relations", "tokens", "feed_forward", "residual"}


def _layer_entry(name):
    case = layer_cases.CASES[name]

    def make():
        keras.utils.set_random_seed(7)
        layer = case.make()
        call(layer, {key: np.zeros(entry.shape(key), DTYPES[entry.kind(key)]) for key in inputs})
        _randomize(layer)
        return Subject(lambda layer, **inputs: call(layer, inputs), layer)

    def call(layer, inputs):
        return case.call(layer, inputs, masks=True)

    inputs = {}
    for each in case.input_names(masks=True):
        kind = {"bool": "mask", "int32": "ids", "float32": "float"}[layer_cases.dtype_of(each)]
        inputs[each] = " ".join([kind, "B", *map(str, layer_cases.INPUTS[each])])
    first = case.inputs.split()[0]
    output = ["B", *(x for x in layer_cases.INPUTS[first] if isinstance(x, str)), "6"]
    output = "T S 5" if name == "position_embedding" else " ".join(output)
    sizes, has_positions = {"H": 3}, name in _WITH_POSITIONS
    entry = Entry(f"layer {name}", make, inputs, output, {}, sizes, has_positions)
    return entry


def _randomize(layer):
    """Adds noise to weights, so that tables, gains and biases have clear effects."""
    rng = np.random.default_rng(5)
    for weight in layer.trainable_variables:
        noise = 0.3 * rng.normal(size=weight.shape).astype("float32")
        weight.assign(ops.convert_to_numpy(weight) + noise)


LAYERS = [_layer_entry(name) for name in layer_cases.CASES]

# Models


def _transformer():
    keras.utils.set_random_seed(7)
    return random_transformer(0.3)


def _causal_lm():
    model = small_causal_lm()
    _randomize(model)
    return model


def _model_entry(name, make_model, inputs, output, call, **options):
    """Returns the entry of `call(model, *inputs)`."""

    def make():
        return Subject(lambda model, **inputs: call(model, *inputs.values()), make_model())

    return Entry(name, make, inputs, output, **options)


_PAIR = {"source": "ids B S", "targets": "ids B T"}
_PROMPTS = {"prompts": "ids B T"}


def _translate(model, source, targets):
    return model({"inputs": source, "targets": targets})


def _score(model, *ids):
    return model.score(*ids).token_scores


def _generate(model, ids, max_length):
    return model.generate(ids, max_length=max_length, jit_compile=False)


_SCORES = {"call": _score, "differentiable": False}
_OUTPUTS = {"call": _generate, "differentiable": False}
_THREE_HEADS = {"sizes": {"N": 3, "U": 10}}
_TEN = {"numbers": {"max_length": 10}}
_SOURCE = {"source": "ids B S"}
MODELS = [
    _model_entry("Transformer", _transformer, _PAIR, "B T 13", _translate, **_THREE_HEADS),
    _model_entry("Transformer.score", _transformer, _PAIR, "B T", **_SCORES, **_THREE_HEADS),
    _model_entry(
        "Transformer.generate", _transformer, _SOURCE, "B U", **_OUTPUTS, **_TEN, **_THREE_HEADS
    ),
    _model_entry("CausalLM", _causal_lm, _PROMPTS, "B T 11", lambda model, ids: model(ids)),
    _model_entry("CausalLM.score", _causal_lm, _PROMPTS, "B T", **_SCORES),
    _model_entry(
        "CausalLM.generate", _causal_lm, _PROMPTS, "B U", **_OUTPUTS, **_TEN, sizes={"U": 10}
    ),
]

# PyTorch modules


def _pytorch_entries():
    import speech_models
    import torch

    from t2t_relpos.integrations.families import imported, registered_families
    from t2t_relpos.integrations.torch import RelativeMultiheadAttention
    from t2t_relpos.integrations.transformers import replace_attention

    def module():
        torch.manual_seed(7)
        attention = RelativeMultiheadAttention(8, 2, max_relative_position=K)
        for parameter in attention.parameters():
            torch.nn.init.normal_(parameter, std=0.5)
        return Subject(attend_with, attention)

    def attend_with(module, mask, **inputs):
        # In PyTorch, True = masked.
        return module(**inputs, key_padding_mask=mask.logical_not(), need_weights=False)[0]

    def pytorch_module():
        torch.manual_seed(7)
        return Subject(convert_and_attend, torch.nn.MultiheadAttention(8, 2, batch_first=True))

    def convert_and_attend(module, **inputs):
        converted = RelativeMultiheadAttention.from_multihead_attention(module, K)
        return attend_with(converted, **inputs)

    def replaced(name, call, part=lambda model: model):
        def make():
            model = speech_models.CASES[name].make().eval()
            assert replace_attention(model) == 2
            return Subject(lambda model, **inputs: call(model, **inputs)[0], part(model))

        return make

    def granite_speech_5():
        family = registered_families()["Granite Speech 5"]
        torch.manual_seed(7)
        model = imported(family.encoder)(family.small_config()).eval()
        for parameter in model.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        assert replace_attention(model) == 2
        return Subject(lambda model, x, mask: model(x, mask)[0], model)

    def encode_text(encoder, ids, mask):
        return encoder(ids, padding_mask=mask[..., None].float(), attention_mask=mask)

    def encode_audio(model, x, mask):
        ids = torch.ones(len(x), 3, dtype=torch.int64)
        return model(x, attention_mask=mask, decoder_input_ids=ids)

    features = {"x": "float B T 8", "mask": "mask B T"}
    encode = lambda model, x, mask: model(x, attention_mask=mask)
    qkv = {
        "query": "float B T 8",
        "key": "float B S 8",
        "value": "float B S 8",
        "mask": "mask B S",
    }
    text = {"ids": "ids B T", "mask": "mask B T"}
    audio, vocab = {"x": "float B A", "mask": "mask B A"}, speech_models.VOCAB
    text_encoder = lambda model: model.text_encoder
    return [
        Entry("module", module, qkv, "B T 8"),
        Entry("from_multihead_attention", pytorch_module, qkv, "B T 8"),
        Entry("w2v-BERT", replaced("w2v-BERT", encode), features, "B T 16"),
        *(
            Entry(name, replaced(name, encode), features, "B U 16", sizes={"T": 11, "U": 6})
            for name in ("SeamlessM4T", "SeamlessM4T, chunks")
        ),
        Entry(
            "SpeechT5", replaced("SpeechT5", encode_audio), audio, f"B 3 {vocab}", sizes={"A": 22}
        ),
        Entry("Granite Speech 5", granite_speech_5, features | {"x": "float B T 16"}, "B T 16"),
        Entry("VITS", replaced("VITS", encode_text, text_encoder), text, "B T 16"),
    ]


PYTORCH = _pytorch_entries() if BACKEND == "torch" else []
ENTRIES = {each.name: each for each in (*ATTEND, *ROWS, *LAYERS, *MODELS, *PYTORCH)}
