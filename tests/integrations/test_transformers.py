"""Tests that speech models of transformers with exchanged attention compute the same numbers."""

import copy
import pickle

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import numpy as np
import peft
import torch
import transformers
from largest_tensor import LargestTensor
from speech_models import (
    CASES,
    LENGTHS,
    TABLES,
    WIDTH,
    vits,
    w2v_bert,
    wav2vec2_conformer,
)
from subprocesses import run_python
from torch.nn.attention.flex_attention import BlockMask
from torch_graphs import compiled
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as wav2vec2_bert

from t2t_relpos.integrations import comparison
from t2t_relpos.integrations.exchange import is_exchanged_attention
from t2t_relpos.integrations.families import attention as family_attention
from t2t_relpos.integrations.families import import_error, imported, registered_families
from t2t_relpos.integrations.transformers import (
    from_transformers,
    replace_attention,
    replaced_modules,
    restore_attention,
)

pytestmark = [
    # Raised by PEFT.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    # The name of newer versions of transformers does not exist in older ones.
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated"),
    # Raised by torch.compile.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
]

DROPOUT = {"attention_dropout": 0.3, "speech_encoder_dropout": 0.3}


# The families that are installed, and all of their classes.
FAMILIES = [each for each in registered_families().values() if not import_error(each)]
CLASSES = {imported(kind) for each in FAMILIES for kind in each.methods}


@pytest.fixture(autouse=True, scope="module")
def compared_families(one_thread):
    """Compares all families before the first test.

    `replace_attention` would compare a family in the first test that exchanges it.
    """
    for family in FAMILIES:
        comparison.compare_family(family)


@pytest.fixture
def calls(monkeypatch):
    """Returns a list of the lengths of all calls of `attend`."""
    lengths, original = [], family_attention.attend

    def attend(query, *args, **kwargs):
        lengths.append(query.shape[2])
        return original(query, *args, **kwargs)

    monkeypatch.setattr(family_attention, "attend", attend)
    return lengths


# Their encoders and layers have the methods of w2v-BERT, and their attention that of
# Wav2Vec2-Conformer. `test_families` and `test_conformers` compare their numbers.
OF_OTHERS = "w2v-BERT, relative", "SeamlessM4T v1"


@pytest.fixture(params=[name for name in CASES if name not in OF_OTHERS])
def case(request):
    return CASES[request.param]


def replaced(model):
    """Returns a copy of a model with exchanged attention."""
    model = copy.deepcopy(model)
    assert replace_attention(model) == 2
    return model


def gradients(outputs, model):
    """Returns the gradients of a loss by name of the parameter."""
    model.zero_grad()
    weights = torch.randn(outputs.shape, generator=torch.Generator().manual_seed(7))
    (outputs * weights).sum().backward()
    return {name: x.grad for name, x in model.named_parameters() if x.grad is not None}


def skip_unless_supported(case, use_reentrant):
    """Skips a test of gradient checkpointing that transformers does not support."""
    if case is CASES["SpeechT5"] and use_reentrant:
        pytest.skip("layers share the vectors of positions")
    if case is CASES["FastSpeech2-Conformer"] and use_reentrant is not None:
        pytest.skip("transformers has no checkpointing of FastSpeech2-Conformer")


def assert_near(found, expected, tolerance=1e-5):
    largest = max(1.0, expected.abs().max().item()) if expected.numel() else 1.0
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * largest)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("length", LENGTHS)
def test_outputs_and_gradients_are_equal(case, length, padded, training, calls):
    model = case.make().train(training)
    other = replaced(model)
    padding = case.padding(length) if padded else None
    expected = case.outputs(model, length, padding)
    assert calls == []
    outputs = case.outputs(other, length, padding)
    # A layer calls it once for each chunk.
    assert sum(calls) == 2 * length
    assert_near(outputs, expected)
    expected, found = gradients(expected, model), gradients(outputs, other)
    assert found.keys() == expected.keys()
    assert any(name in key for key in found for name in TABLES)
    for name, gradient in expected.items():
        assert_near(found[name], gradient, tolerance=case.tolerance)


@pytest.mark.parametrize("name", ["w2v-BERT", "Wav2Vec2-Conformer", "VITS"])
def test_long_inputs_are_equal(name, calls):
    case = CASES[name]
    model, padding = case.make().train(), case.padding(1100)
    other = replaced(model)
    expected, outputs = (case.outputs(x, 1100, padding) for x in (model, other))
    assert_near(outputs, expected)
    expected, found = gradients(expected, model), gradients(outputs, other)
    for parameter, gradient in expected.items():
        # Those of key biases are 0 but for rounding.
        assert_near(found[parameter], gradient, tolerance=1e-4)
    assert calls == [1100, 1100]


def test_causal_calls_are_computed_by_transformers(calls):
    model = CASES["w2v-BERT"].make().eval()
    x = torch.randn(2, 9, 8)
    assert_near(replaced(model)(x, is_causal=True)[0], model(x, is_causal=True)[0])
    assert calls == []


def test_eager_masks_of_pairs_are_equal(calls):
    # The layer is not exchanged: the attention gets float masks `[B, 1, T, T]`.
    case = CASES["w2v-BERT"]
    model = case.make("eager").eval()
    other, padding = copy.deepcopy(model), case.padding(21)
    for layer in other.encoder.layers:
        assert replace_attention(layer.self_attn) == 1
    assert_near(case.outputs(other, 21, padding), case.outputs(model, 21, padding))
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["w2v-BERT", "SpeechT5", "VITS"])
def test_other_float_masks_are_added_by_transformers(name, calls):
    case = CASES[name]
    model = case.make("eager").eval()
    other = replaced(model)
    if name == "w2v-BERT":
        attentions = [x.encoder.layers[0].self_attn for x in (model, other)]
        inputs = [{}, {}]
    elif name == "VITS":
        attentions = [x.text_encoder.encoder.layers[0].attention for x in (model, other)]
        inputs = [{}, {}]
    else:
        encoders = [x.speecht5.encoder.wrapped_encoder for x in (model, other)]
        attentions = [encoder.layers[0].attention for encoder in encoders]
        inputs = [{"position_bias": e.embed_positions(torch.ones(1, 9, 1))} for e in encoders]
    x = torch.randn(2, 9, WIDTH)
    mask = torch.randn(2, 1, 9, 9)
    expected, found = (
        attention(x, attention_mask=mask, **options)[0]
        for attention, options in zip(attentions, inputs)
    )
    assert_near(found, expected)
    assert calls == []


def test_padding_is_masked_where_transformers_adds_bool_masks():
    # transformers adds a bool mask as 0 and 1 with "eager".
    case = CASES["SeamlessM4T"]
    model = case.make("sdpa").eval()
    eager = replaced(case.make("eager").eval())
    padding = case.padding(21)
    assert_near(case.outputs(eager, 21, padding), case.outputs(model, 21, padding))


def test_attention_alone_hands_block_masks_to_transformers(calls, monkeypatch):
    attention = w2v_bert("flex_attention").eval().encoder.layers[0].self_attn
    mask = BlockMask.from_kv_blocks(*torch.ones(2, 2, 1, 1, 1).int())
    assert replace_attention(attention) == 1
    masks = []

    def forward(self, hidden_states, attention_mask, *args):
        masks.append(attention_mask)

    original = wav2vec2_bert.Wav2Vec2BertSelfAttention
    monkeypatch.setattr(original, "forward", forward)
    attention(torch.randn(2, 9, WIDTH), attention_mask=mask)
    assert masks == [mask] and calls == []


# Masks from the model to `attend`


@pytest.mark.parametrize("padded", [False, True])
def test_layers_take_the_key_mask_of_the_encoder(padded, calls):
    """It replaces other masks, as the block masks that transformers makes without padding."""
    layer = w2v_bert().eval().encoder.layers[0]
    padding = CASES["w2v-BERT"].padding(21) if padded else None
    pairs = None if padding is None else padding[:, None, None].bool().expand(-1, -1, 21, -1)
    mask = BlockMask.from_kv_blocks(*torch.ones(2, 2, 1, 1, 1).int())
    x = torch.randn(2, 21, WIDTH)
    expected = layer(x, attention_mask=pairs, conv_attention_mask=padding)
    assert replace_attention(layer) == 1
    outputs = layer(x, attention_mask=mask, conv_attention_mask=None, key_mask=padding)
    assert calls == [21]
    real = slice(None) if padding is None else padding.bool()
    assert_near(outputs[real], expected[real])


@pytest.mark.parametrize("padded", [False, True])
def test_models_with_eager_attention_are_equal(padded):
    case = CASES["w2v-BERT"]
    model, padding = case.make("eager").train(), case.padding(21) if padded else None
    other = replaced(model)
    expected, outputs = (case.outputs(x, 21, padding) for x in (model, other))
    assert_near(outputs, expected)
    expected, found = gradients(expected, model), gradients(outputs, other)
    assert found.keys() == expected.keys()
    for name, gradient in expected.items():
        assert_near(found[name], gradient)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int32, torch.uint8, torch.float32])
def test_padding_masks_of_other_dtypes_are_equal(case, dtype):
    model, padding = replaced(case.make()).eval(), case.padding(21)
    if case.output == "logits" and dtype == torch.bool:
        pytest.skip("SpeechT5 of transformers sums the mask")
    x, y = (case.call(model, 21, mask)[case.output] for mask in (padding, padding.to(dtype)))
    assert torch.equal(x, y)


def test_hidden_states_and_types_of_outputs_are_equal(case):
    model, padding = case.make().eval(), case.padding(21)
    other = replaced(model)
    expected, found = (case.call(x, 21, padding, output_hidden_states=True) for x in (model, other))
    assert type(found) is type(expected) and found.keys() == expected.keys()
    name = "encoder_hidden_states" if case.output == "logits" else "hidden_states"
    assert len(found[name]) == len(expected[name])
    for x, y in zip(found[name], expected[name]):
        # Those of an adapter are shorter.
        real = padding[:, :: round(21 / x.shape[1])].bool()
        assert_near(x[real], y[real])
    expected, found = (case.call(x, 21, padding, return_dict=False) for x in (model, other))
    assert type(found) is type(expected) and len(found) == len(expected)


@pytest.mark.parametrize(
    ("padded", "use_reentrant"), [(False, None), (True, None), (True, False), (True, True)]
)
def test_no_tensor_has_an_entry_per_pair(case, padded, use_reentrant):
    """Forward and backward, also if gradient checkpointing calls the layers again."""
    skip_unless_supported(case, use_reentrant)
    length, model = 1100, replaced(case.make()).train()
    # Its attention without positions is that of transformers.
    model.adapter = None
    if case is CASES["SeamlessM4T, chunks"]:
        model.config.speech_encoder_chunk_size = 500
    if use_reentrant is not None:
        options = {"use_reentrant": use_reentrant}
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
    with LargestTensor() as largest:
        outputs = case.call(model, length, case.padding(length) if padded else None)
        outputs[case.output].sum().backward()
    assert largest.size < length**2


@pytest.mark.parametrize("name", ["w2v-BERT", "SeamlessM4T", "SeamlessM4T, chunks", "VITS"])
def test_encoders_with_other_layers_make_masks_of_pairs(name, calls):
    case = CASES[name]
    model, padding = case.make().eval(), case.padding(21)
    other = replaced(model)
    restore_attention(next(x for x in other.modules() if is_exchanged_attention(x)))
    assert_near(case.outputs(other, 21, padding), case.outputs(model, 21, padding))
    assert calls == [21]


@pytest.mark.parametrize("name", ["w2v-BERT", "SeamlessM4T", "SeamlessM4T, chunks"])
def test_causal_calls_with_padding_are_equal(name):
    case = CASES[name]
    model, padding = case.make().eval(), case.padding(21)
    expected, found = (
        case.outputs(x, 21, padding, is_causal=True) for x in (model, replaced(model))
    )
    assert_near(found, expected)


@pytest.mark.parametrize("left", [-1, 0, 1, 2])
def test_chunks_are_equal(left):
    case = CASES["SeamlessM4T, chunks"]
    model = case.make().train()
    model.config.speech_encoder_left_chunk_num = left
    other, padding = replaced(model), case.padding(21)
    expected, outputs = (case.outputs(x, 21, padding) for x in (model, other))
    assert_near(outputs, expected)
    expected, found = gradients(expected, model), gradients(outputs, other)
    for name, gradient in expected.items():
        assert_near(found[name], gradient)


@pytest.mark.parametrize("from_config", [False, True])
@pytest.mark.parametrize(
    "name",
    [
        *("w2v-BERT", "Wav2Vec2-Conformer", "SeamlessM4T", "SeamlessM4T v1"),
        *("FastSpeech2-Conformer", "SpeechT5", "VITS"),
    ],
)
def test_weights_are_returned_only_if_requested(name, from_config):
    case = CASES[name]
    model = case.make("eager").eval()
    other, padding = replaced(model), case.padding(21)
    padding = None if "Seamless" in type(model).__name__ else padding
    options = {} if from_config else {"output_attentions": True}
    configs = {
        id(m.config): m.config for x in (model, other) for m in x.modules() if hasattr(m, "config")
    }
    weights = []

    def record(module, args, outputs):
        weights.append(outputs[1])

    for module in other.modules():
        if is_exchanged_attention(module):
            module.register_forward_hook(record)
    case.call(other, 21, padding)
    assert weights == [None, None]
    if from_config:
        for config in configs.values():
            config.output_attentions = True
        if name in ("VITS", "FastSpeech2-Conformer"):  # `call` skips the model, which reads it
            options = {"output_attentions": True}
    found, expected = (
        case.call(x, 21, padding, **options)[case.attentions] for x in (other, model)
    )
    assert len(found) == len(expected) == 2
    for x, y in zip(found, expected):
        assert_near(x, y)


def test_bfloat16_is_as_exact_as_transformers(case):
    model = case.make().eval()
    padding = case.padding(100)
    expected = case.outputs(model, 100, padding)
    errors = []
    for x in (model, replaced(model)):
        outputs = case.outputs(x.to(torch.bfloat16), 100, padding, dtype=torch.bfloat16)
        assert outputs.dtype == torch.bfloat16
        errors.append((outputs.float() - expected).square().mean().sqrt().item())
    assert 0 < errors[1] <= 1.2 * errors[0]


def test_generate_returns_the_same_tokens(calls):
    model = CASES["SpeechT5"].make().eval()
    x, padding = torch.randn(2, 42), torch.ones(2, 42, dtype=torch.long)
    padding[1, 20:] = 0
    options = {"attention_mask": padding, "max_new_tokens": 6, "num_beams": 2, "do_sample": False}
    expected, found = (each.generate(x, **options) for each in (model, replaced(model)))
    assert torch.equal(found, expected)
    assert calls == [21, 21]


def test_waveforms_of_vits_are_equal():
    model = CASES["VITS"].make().eval()
    waveforms = []
    for each in (model, replaced(model)):
        torch.manual_seed(3)
        waveforms.append(each(torch.randint(1, 19, (1, 7))).waveform)
    assert_near(*waveforms, tolerance=1e-4)


# Exchange of classes


def test_classes_are_exchanged_and_restored(case):
    model = case.make()
    classes = [type(module) for module in model.modules()]
    state = model.state_dict()
    assert replace_attention(model) == 2
    exchanged = [type(module) for module in model.modules()]
    assert [kind.__name__ for kind in exchanged] == [kind.__name__ for kind in classes]
    assert exchanged != classes
    assert replace_attention(model) == 2
    assert [type(module) for module in model.modules()] == exchanged
    tensors = model.state_dict(keep_vars=True)
    assert all(tensors[name] is x for name, x in model.named_parameters())
    assert model.state_dict().keys() == state.keys()
    assert restore_attention(model) == 2
    assert [type(module) for module in model.modules()] == classes
    assert restore_attention(model) == 2


def test_flash_attention_has_linear_memory_at_any_length(case, run_log):
    model, lengths = case.make(), 9
    expected = case.call(model, lengths, case.padding(lengths))[0]
    replace_attention(model, flash_attention=True)
    found = case.call(model, lengths, case.padding(lengths))[0]
    assert_near(found, expected)
    assert run_log and set(run_log) <= {"fused", "flash", "blocks"}
    restore_attention(model)
    assert not any(hasattr(module, "flash_attention") for module in model.modules())


def test_modules_without_tables_are_not_exchanged():
    model = w2v_bert(add_adapter=True)
    assert replace_attention(model) == 2
    assert not is_exchanged_attention(model.adapter.layers[0].self_attn)
    case = CASES["w2v-BERT"]
    expected = case.call(restored(model), 21, case.padding(21))[0]
    assert_near(case.call(model, 21, case.padding(21))[0], expected)


def restored(model):
    model = copy.deepcopy(model)
    restore_attention(model)
    return model


@pytest.mark.parametrize(
    ("make", "found"),
    [
        (
            lambda: wav2vec2_conformer(position_embeddings_type="rotary"),
            "2 Wav2Vec2ConformerSelf.*'rotary'",
        ),
        (lambda: w2v_bert(position_embeddings_type="rotary"), "2 Wav2Vec2BertSelf.*'rotary'"),
        (lambda: vits(window_size=0), "2 VitsAttention"),
        (lambda: torch.nn.Linear(2, 2), "a Linear with no attention module"),
        (lambda: CASES["SpeechT5"].make().speecht5.decoder, "2 SpeechT5Attention"),
    ],
)
def test_error_names_the_attention_of_other_models(make, found):
    with pytest.raises(ValueError, match=found):
        replace_attention(make())


def test_hooks_of_accelerate_call_the_exchanged_attention(calls):
    from accelerate.hooks import ModelHook, add_hook_to_module, remove_hook_from_module

    case = CASES["w2v-BERT"]
    model = case.make().eval()
    expected = case.outputs(model, 9, None)
    for layer in model.encoder.layers:
        add_hook_to_module(layer.self_attn, ModelHook())
    assert replace_attention(model) == 2
    assert_near(case.outputs(model, 9, None), expected)
    assert calls == [9, 9]
    assert restore_attention(model) == 2
    case.outputs(model, 9, None)
    assert replace_attention(model) == 2
    for layer in model.encoder.layers:
        remove_hook_from_module(layer.self_attn)
    case.outputs(model, 9, None)
    assert calls == [9] * 4


def test_a_forward_of_the_instance_is_refused():
    model = w2v_bert()
    classes = [type(module) for module in model.modules()]
    attention = model.encoder.layers[1].self_attn
    attention.forward = torch.compile(attention.forward)
    with pytest.raises(ValueError, match="forward. of their own"):
        replace_attention(model)
    assert [type(module) for module in model.modules()] == classes


class PlainAttention(wav2vec2_bert.Wav2Vec2BertSelfAttention):
    """A subclass without methods."""


@pytest.mark.parametrize("every", [False, True])
def test_empty_subclasses_are_exchanged(case, every, calls):
    model = case.make().eval()
    expected = case.outputs(model, 21, case.padding(21))
    subclasses = {kind: type(f"My{kind.__name__}", (kind,), {}) for kind in CLASSES}
    kinds = [kind for kind in subclasses if every or kind.__name__.endswith("Attention")]
    for module in model.modules():
        if type(module) in kinds:
            module.__class__ = subclasses[type(module)]
    classes = [type(module) for module in model.modules()]
    assert replace_attention(model) == 2
    for module, kind in zip(model.modules(), classes):
        assert isinstance(module, kind) and type(module).__name__ == kind.__name__
    assert_near(case.outputs(copy.deepcopy(model), 21, case.padding(21)), expected)
    assert sum(calls) == 2 * 21
    assert restore_attention(model) == 2
    assert [type(module) for module in model.modules()] == classes


def test_empty_subclasses_are_pickled_by_their_name():
    model = w2v_bert().eval()
    model.encoder.layers[0].self_attn.__class__ = PlainAttention
    replace_attention(model)
    other = pickle.loads(pickle.dumps(model))
    assert isinstance(other.encoder.layers[0].self_attn, PlainAttention)
    x = torch.randn(2, 9, 8)
    assert torch.equal(other(x)[0], model(x)[0])
    assert restore_attention(other) == 2
    assert type(other.encoder.layers[0].self_attn) is PlainAttention


@pytest.mark.parametrize("every", [False, True])
def test_attention_with_methods_of_its_own_is_named(case, every):
    model = case.make()
    found = {
        name: module
        for name, module in model.named_modules()
        if type(module) in CLASSES
        and ("Attention" in type(module).__name__ or "Positional" in type(module).__name__)
        and "decoder" not in name
        and "adapter" not in name
    }
    for module in list(found.values())[: None if every else 1]:
        kind = type(module)

        def forward(self, *args, kind=kind, **kwargs):
            return kind.forward(self, *args, **kwargs)

        module.__class__ = type("MyModule", (kind,), {"forward": forward})
    classes = [type(module) for module in model.modules()]
    name = next(iter(found)).replace(".", r"\.")
    with pytest.raises(ValueError, match=f"{name}, a MyModule, .* methods of its own: forward"):
        replace_attention(model)
    assert [type(module) for module in model.modules()] == classes
    restore_attention(model)
    assert [type(module) for module in model.modules()] == classes


@pytest.mark.parametrize("part", ["Encoder", "EncoderLayer"])
def test_encoders_with_methods_of_their_own_are_kept(case, part, calls):
    model = case.make().eval()
    expected = case.outputs(model, 21, case.padding(21))
    for module in model.modules():
        kind = type(module)
        if kind in CLASSES and kind.__name__.endswith(part):

            def forward(self, *args, kind=kind, **kwargs):
                return kind.forward(self, *args, **kwargs)

            module.__class__ = type("MyModule", (kind,), {"forward": forward})
    assert replace_attention(model) == 2
    assert_near(case.outputs(model, 21, case.padding(21)), expected)
    assert sum(calls) == 2 * 21


@pytest.mark.parametrize("function", [replace_attention, restore_attention, replaced_modules])
def test_other_things_than_modules_are_refused(function):
    class Pipeline:
        model = w2v_bert()

    for thing, message in (
        ("facebook/w2v-bert-2.0", "'facebook/w2v-bert-2.0'. Load the model first"),
        (None, "Received: None"),
        (Pipeline(), "Received: Pipeline. Pass its attribute `model`"),
    ):
        with pytest.raises(ValueError, match=message):
            function(thing)


@pytest.mark.parametrize("in_place", [False, True])
@pytest.mark.parametrize("part", ["model", "encoder"])
def test_compiled_models_are_refused(part, in_place):
    model = w2v_bert()
    classes = [type(module) for module in model.modules()]
    compiled = model if part == "model" else model.encoder
    if in_place:
        compiled.compile(backend="eager")
    elif part == "encoder":
        model.encoder = torch.compile(compiled, backend="eager")
    whole = torch.compile(model, backend="eager") if part == "model" and not in_place else model
    for function in (replace_attention, restore_attention):
        with pytest.raises(ValueError, match="before `torch.compile`"):
            function(whole)
    kinds = [type(module) for module in model.modules()]
    assert [kind for kind in kinds if kind is not torch._dynamo.OptimizedModule] == classes
    assert replaced_modules(whole) == {}


def test_replaced_modules_are_listed_and_shown(case):
    model = case.make()
    assert replaced_modules(model) == {} and "t2t_relpos" not in repr(model)
    count = replace_attention(model)
    found = replaced_modules(model)
    assert len(found) == count
    assert all("attention by t2t_relpos" in repr(module) for module in (model, *found.values()))
    assert all(model.get_submodule(name) is module for name, module in found.items())
    restore_attention(model)
    assert replaced_modules(model) == {} and "t2t_relpos" not in repr(model)


def test_modules_of_fsdp2_are_refused():
    model = w2v_bert()
    layer = model.encoder.layers[1]
    # The class that `fully_shard` makes.
    kind = type(layer)
    layer.__class__ = type(f"FSDP{kind.__name__}", (torch.distributed.fsdp.FSDPModule, kind), {})
    with pytest.raises(ValueError, match="before `fully_shard`"):
        replace_attention(model)


# Files, copies and training


def test_saved_files_are_equal(case, tmp_path):
    model = case.make()
    model.save_pretrained(tmp_path / "before")
    other = replaced(model)
    other.save_pretrained(tmp_path / "after")
    for path in sorted((tmp_path / "before").iterdir()):
        assert (tmp_path / "after" / path.name).read_bytes() == path.read_bytes(), path.name
    loaded = type(model).from_pretrained(tmp_path / "after").eval()
    assert_near(case.outputs(loaded, 9, None), case.outputs(other.eval(), 9, None))
    assert replace_attention(loaded) == 2


def test_saved_modules_load_in_a_new_process(tmp_path):
    case = CASES["w2v-BERT"]
    model = replaced(case.make().eval())
    torch.save(model, tmp_path / "model.pt")
    x = torch.randn(1, 9, 8)
    torch.save((x, model(x)[0].detach()), tmp_path / "call.pt")
    code = """
import torch
model = torch.load("model.pt", weights_only=False)
x, expected = torch.load("call.pt")
assert "attention by t2t_relpos" in repr(model.encoder.layers[0].self_attn)
torch.testing.assert_close(model(x)[0], expected)
"""
    run_python("-c", code, cwd=tmp_path)


def train(model, steps, length=21):
    """Returns the losses of a model of speech recognition."""
    torch.manual_seed(9)
    trainable = [x for x in model.parameters() if x.requires_grad]
    optimizer = torch.optim.AdamW(trainable, lr=1e-3)
    x = torch.randn(2, length, 8)
    mask, labels = CASES["w2v-BERT"].padding(length), torch.randint(1, 19, (2, 4))
    losses = []
    for _ in range(steps):
        loss = model(x, attention_mask=mask, labels=labels).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


ADAPTERS = {
    "none": None,
    "projections": ["linear_q", "linear_v"],
    "tables": ["distance_embedding"],
    "both": ["linear_q", "linear_v", "distance_embedding"],
}


def recognizer(dropout=None):
    model = w2v_bert(dropout=dropout, model_class=transformers.Wav2Vec2BertForCTC)
    return model.train()


@pytest.mark.parametrize("order", ["replace first", "adapt first"])
@pytest.mark.parametrize("adapters", ADAPTERS)
def test_fine_tuning_has_the_same_losses(adapters, order):
    losses = []
    for exchange in (False, True):
        model = recognizer()
        if exchange and order == "replace first":
            replace_attention(model)
        if ADAPTERS[adapters]:
            torch.manual_seed(1)
            config = peft.LoraConfig(
                r=2, target_modules=ADAPTERS[adapters], init_lora_weights="gaussian"
            )
            model = peft.get_peft_model(model, config)
        if exchange and order == "adapt first":
            assert replace_attention(model) == 2
        losses.append(train(model, 20))
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert len(set(losses[0])) == 20


@pytest.mark.parametrize("use_reentrant", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_gradient_checkpointing_repeats_dropout(name, use_reentrant):
    case, results = CASES[name], []
    skip_unless_supported(case, use_reentrant)
    for checkpointing in (False, True):
        model = replaced(case.make(dropout=DROPOUT)).train()
        if checkpointing:
            options = {"use_reentrant": use_reentrant}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        torch.manual_seed(11)
        outputs = case.outputs(model, 21, case.padding(21))
        results.append([outputs, gradients(outputs, model)])
    (expected, expected_gradients), (outputs, found) = results
    assert_near(outputs, expected)
    assert found.keys() == expected_gradients.keys()
    for name, gradient in expected_gradients.items():
        assert_near(found[name], gradient)
    torch.manual_seed(12)
    assert (case.outputs(model, 21, case.padding(21)) - outputs).abs().max() > 1e-4


def test_copies_are_independent(case):
    model = replaced(case.make().eval())
    other = copy.deepcopy(model)
    expected = case.outputs(model, 9, None)
    assert_near(case.outputs(other, 9, None), expected)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            if any(table in name for table in TABLES):
                parameter.zero_()
    assert_near(case.outputs(model, 9, None), expected)
    assert (case.outputs(other, 9, None) - expected).abs().max() > 1e-3


@pytest.mark.parametrize("padded", [False, True])
def test_compiled_models_are_equal(padded):
    case = CASES["w2v-BERT"]
    model = replaced(case.make().eval())
    padding = case.padding(21) if padded else None
    expected = case.outputs(model, 21, padding)
    function, _ = compiled(model)
    assert_near(case.outputs(function, 21, padding), expected)


def test_five_lengths_make_two_graphs():
    model = replaced(w2v_bert().train())
    function, num_graphs = compiled(model)
    for length in (5, 21, 40, 250, 300):
        padding = CASES["w2v-BERT"].padding(length)
        results = []
        for call in (function, model):
            outputs = CASES["w2v-BERT"].outputs(call, length, padding)
            results.append((outputs, gradients(outputs, model)))
        (found, found_gradients), (expected, expected_gradients) = results
        assert_near(found, expected)
        for name, gradient in expected_gradients.items():
            assert_near(found_gradients[name], gradient)
    assert num_graphs() <= 2


class Encoder(torch.nn.Module):
    """A model of features and their padding mask."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x, padding):
        if isinstance(self.model, transformers.VitsModel):
            options = {"padding_mask": padding[..., None].float(), "attention_mask": padding}
            return self.model.text_encoder(x, **options)[0]
        if hasattr(self.model, "speecht5"):
            return self.model.speecht5.encoder(x, attention_mask=padding)[0]
        return self.model(x, attention_mask=padding)[0]


def encoder_inputs(name, batch, length):
    """Returns inputs of an `Encoder`. The first sequence has padding."""
    x = torch.randn(batch, length, 8)
    if name == "SpeechT5":
        x = torch.randn(batch, 2 * length)
    elif name == "VITS":
        x = torch.randint(1, 19, (batch, length))
    padding = torch.ones(x.shape[:2], dtype=torch.long)
    padding[0, x.shape[1] // 2 + 1 :] = 0
    return x, padding


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("name", ["w2v-BERT", "SeamlessM4T", "SpeechT5", "VITS"])
def test_traces_are_exact_at_new_batch_sizes_and_lengths(name):
    model = Encoder(replaced(CASES[name].make().eval()))
    with torch.no_grad():
        trace = torch.jit.trace(model, encoder_inputs(name, 2, 9), check_trace=False)
        for batch, length in ((3, 21), (1, 300), (4, 4)):
            example = encoder_inputs(name, batch, length)
            assert_near(trace(*example), model(*example))


# Keras layers


@pytest.mark.parametrize("name", ["w2v-BERT", "SeamlessM4T", "SpeechT5", "VITS"])
def test_keras_layers_of_modules_are_equal(name):
    model = CASES[name].make().eval()
    replace_attention(model)
    module = next(x for x in model.modules() if is_exchanged_attention(x))
    x, is_token = torch.randn(2, 21, WIDTH), CASES[name].padding(21).bool()
    arguments, options = {}, {"attention_mask": is_token[:, None, None]}
    if name == "SpeechT5":
        embedding = model.speecht5.encoder.wrapped_encoder.embed_positions
        arguments = {"key_table": embedding.pe_k.weight.detach().numpy()}
        options["position_bias"] = embedding(x)
    layer = from_transformers(module, **arguments)
    with torch.no_grad():
        assert_near(layer(x, x, key_mask=is_token), module(x, **options)[0])


def test_wrapped_modules_are_refused():
    model = peft.get_peft_model(w2v_bert(), peft.LoraConfig(r=2, target_modules=["linear_q"]))
    with pytest.raises(ValueError, match="merge_and_unload"):
        from_transformers(model.encoder.layers[0].self_attn)


def test_dropout_of_modules_is_that_of_the_layer():
    module = w2v_bert(dropout=DROPOUT).encoder.layers[0].self_attn
    assert from_transformers(module).dropout == 0.3
    assert from_transformers(module, dropout=0.2).dropout == 0.2
