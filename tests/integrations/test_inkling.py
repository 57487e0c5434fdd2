"""Tests that Inkling models of transformers with exchanged attention compute the same numbers."""

import concurrent.futures
import copy

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import numpy as np
import peft
import torch
import transformers
from largest_tensor import LargestTensor
from subprocesses import run_python

from t2t_relpos.integrations import comparison
from t2t_relpos.integrations.families import import_error, inkling, registered_families
from t2t_relpos.integrations.transformers import (
    replace_attention,
    replaced_modules,
    restore_attention,
)

FAMILIES = [each for each in registered_families().values() if each.name.startswith("Inkling")]
if errors := [error for each in FAMILIES if (error := import_error(each))]:
    pytest.skip(errors[0], allow_module_level=True)

pytestmark = [
    # Raised by PEFT.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    pytest.mark.filterwarnings("ignore:`gradient_checkpointing_enable` is deprecated"),
    # Raised by torch.compile.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]

VOCAB, LENGTH, KINDS = 61, 23, ("Inkling", "Inkling2", "Inkling2Loop")


@pytest.fixture(autouse=True, scope="module")
def compared_families(one_thread):
    """Compares the families before the first test."""
    for family in FAMILIES:
        comparison.compare_family(family)


@pytest.fixture
def calls(monkeypatch):
    """Returns a list of the arguments of all calls of `attend`."""
    found, original = [], inkling.attend

    def attend(query, key, *args, **options):
        sizes = dict(zip("NTGS", (*query.shape[1:3], *key.shape[1:3])))
        found.append(sizes | options)
        return original(query, key, *args, **options)

    monkeypatch.setattr(inkling, "attend", attend)
    return found


@pytest.fixture(params=KINDS)
def kind(request):
    return request.param


def make(kind, *, window=7, extent=9, std=0.2, **options):
    """Returns a small language model of three layers with random weights."""
    sizes = {
        "vocab_size": VOCAB,
        "unpadded_vocab_size": None if kind == "Inkling" else VOCAB,
        "hidden_size": 32,
        "num_hidden_layers": 3,
        "layer_types": ["hybrid_sliding", "hybrid", "hybrid_sliding"],
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 8,
        "swa_num_attention_heads": 4,
        "swa_num_key_value_heads": 2,
        "swa_head_dim": 8,
        "sliding_window_size": window,
        "rel_extent": extent,
        "d_rel": 4,
        "log_scaling_n_floor": 5,
        "moe_intermediate_size": 16,
        "n_routed_experts": 4,
        "num_experts_per_tok": 2,
        "pad_token_id": 0,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "attn_implementation": "eager",
    }
    if kind == "Inkling":
        sizes |= {"intermediate_size": 32, "logits_mup_width_multiplier": 2.0}
    else:
        sizes |= {"n_layers_per_attn_res_block": 1}
    if kind == "Inkling2Loop":
        bounds = {"loop_layer_index_start": 1, "loop_layer_index_end": 2}
        sizes |= bounds | {"loop_num_passes": 3, "loop_gate_rank": 4}
    config = getattr(transformers, f"{kind}TextConfig")(**sizes | options)
    model = getattr(transformers, f"{kind}ForCausalLM")(config).float()
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=std, generator=generator)
    return model.eval()


def replaced(model):
    """Returns a copy of a model with exchanged attention."""
    model = copy.deepcopy(model)
    assert replace_attention(model) == 3
    return model


def tokens(length=LENGTH, batch=2):
    generator = torch.Generator().manual_seed(5)
    return torch.randint(3, VOCAB, (batch, length), generator=generator)


def padding_mask(length=LENGTH, left=5):
    """Returns a mask `[2, T]` with padding on the left of the first sequence."""
    mask = torch.ones(2, length, dtype=torch.long)
    mask[0, :left] = 0
    return mask


def results(model, mask=None, length=LENGTH, **options):
    """Returns logits of tokens that are no padding, and the gradients of all parameters."""
    model.zero_grad()
    logits = model(tokens(length), attention_mask=mask, **options).logits
    if mask is not None and mask.ndim == 2:
        logits = logits[mask.bool()]
    logits.log_softmax(-1)[..., 5].sum().backward()
    gradients = {name: x.grad for name, x in model.named_parameters() if x.grad is not None}
    return logits.detach(), copy.deepcopy(gradients)


def assert_near(found, expected, tolerance=1e-6):
    scale = max(1.0, expected.abs().max().item())
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance * scale)


def assert_results_near(found, expected, tolerance=1e-6):
    assert_near(found[0], expected[0], tolerance)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        assert_near(found[1][name], gradient, 10 * tolerance)


# Prefill


@pytest.mark.parametrize("mask", ["none", "ones", "left", "right"])
def test_logits_and_gradients_are_equal(kind, mask, calls):
    model = make(kind)
    masks = {"none": None, "ones": padding_mask(left=0), "left": padding_mask()}
    mask = masks.get(mask, padding_mask().flip(1))
    expected = results(model, mask)
    assert_results_near(results(replaced(model), mask), expected)
    assert [call["T"] for call in calls] == [LENGTH] * (5 if kind == "Inkling2Loop" else 3)
    assert all("mask" not in call and call["causal"] for call in calls)
    assert {call["sliding_window"] for call in calls} == {None, 7}


@pytest.mark.parametrize("padded", [False, True])
def test_long_inputs_are_equal(kind, padded):
    model = make(kind, window=40, extent=140).train()
    mask = padding_mask(300, left=61) if padded else None
    expected = results(model, mask, 300)
    assert_results_near(results(replaced(model), mask, 300), expected)


def test_no_tensor_has_an_entry_per_pair(kind, calls):
    model, length = replaced(make(kind)).train(), 1100
    for mask in (None, padding_mask(length)):
        with LargestTensor() as largest:
            results(model, mask, length)
        assert largest.size < length**2
    # Keys are not repeated.
    assert {(call["N"], call["G"]) for call in calls} == {(4, 2)}


def test_memory_may_be_linear_at_any_length(kind, run_log):
    model = make(kind)
    other = copy.deepcopy(model)
    assert replace_attention(other, flash_attention=True) == 3
    assert_results_near(results(other, padding_mask()), results(model, padding_mask()))
    assert run_log and not {"by_id", "rows", "full_matrix"} & set(run_log)


def test_log_scaling_may_be_off():
    model = make("Inkling", log_scaling_n_floor=None)
    assert_results_near(results(replaced(model)), results(model))


@pytest.mark.parametrize("implementation", ["sdpa", "flex_attention"])
def test_other_implementations_of_inkling_are_exchanged(implementation):
    model = make("Inkling")
    expected = results(model, padding_mask())
    model.set_attn_implementation(implementation)
    assert_results_near(results(replaced(model), padding_mask()), expected)


def test_packed_sequences_are_equal(kind, calls):
    """transformers makes masks of pairs if positions start again and there is no cache."""
    model, positions = make(kind), torch.cat([torch.arange(9), torch.arange(LENGTH - 9)])
    options = {"position_ids": positions.expand(2, -1), "use_cache": False}
    expected = results(model, **options)
    assert_results_near(results(replaced(model), **options), expected)
    assert all(call["mask"].shape[-2:] == (LENGTH, LENGTH) for call in calls)
    assert all(call["causal"] for call in calls)
    alone = model(tokens()[:, 9:]).logits
    # The convolutions of transformers read across the border.
    assert (expected[0][:, 9 + 12 :] - alone[:, 12:]).abs().max() > 1e-6


def test_masks_of_pairs_may_allow_later_keys(kind, calls):
    model = make(kind)
    allowed = (torch.arange(LENGTH)[:, None] + 3 >= torch.arange(LENGTH)).expand(2, 1, -1, -1)
    mask = torch.where(allowed, 0.0, torch.finfo(torch.float32).min)
    assert_results_near(results(replaced(model), mask), results(model, mask))
    assert calls and not any("causal" in call for call in calls)


def test_other_float_masks_are_added_by_transformers(kind, calls):
    model, mask = make(kind), torch.randn(2, 1, LENGTH, LENGTH)
    assert_results_near(results(replaced(model), mask), results(model, mask))
    assert calls == []


def test_models_with_other_attention_make_masks_of_pairs(kind, calls):
    model = make(kind)
    other = replaced(model)
    restore_attention(next(iter(replaced_modules(other).values())))
    assert_results_near(results(other, padding_mask()), results(model, padding_mask()))
    assert all(call["mask"].shape[-2:] == (LENGTH, LENGTH) for call in calls)


# Caches


@pytest.mark.parametrize("given", [False, True])
@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("sizes", [(10, 9, 4), (1, 1, 20, 1), (22, 1)])
def test_chunks_of_the_prompt_are_equal(kind, sizes, padded, given, calls):
    model = make(kind)
    mask, real = (padding_mask(), padding_mask().bool()) if padded else (None, slice(None))
    expected = model(tokens(), attention_mask=mask).logits[real]
    other, found, start = replaced(model), [], 0
    cache = transformers.DynamicCache(config=model.config) if given else None
    for size in sizes:
        chunk = slice(start, start + size)
        seen = None if mask is None else mask[:, : chunk.stop]
        outputs = other(tokens()[:, chunk], attention_mask=seen, cache=cache, use_cache=True)
        found.append(outputs.logits)
        cache, start = outputs.cache, chunk.stop
    assert_near(torch.cat(found, dim=1)[real], expected)
    # Caches of sliding layers keep the keys of a window.
    lengths = {call["S"] for call in calls if call["sliding_window"]}
    assert max(lengths) == max(min(6, sum(sizes[:i])) + size for i, size in enumerate(sizes))


GENERATE = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 7},
    "beams": {"do_sample": False, "num_beams": 3},
    "chunked prefill": {"do_sample": False, "prefill_chunk_size": 6},
    "no cache": {"do_sample": False, "use_cache": False},
}


@pytest.mark.parametrize(
    ("name", "padded"), [("greedy", False), *((name, True) for name in GENERATE)]
)
def test_generate_returns_the_same_tokens(kind, name, padded, calls):
    model, options = (
        make(kind, std=0.3),
        {"max_new_tokens": 20, "eos_token_id": None} | GENERATE[name],
    )
    mask, found = padding_mask(left=5 if padded else 0), []
    for each in (model, replaced(model)):
        torch.manual_seed(3)
        found.append(each.generate(tokens(), attention_mask=mask, **options))
    assert torch.equal(*found) and found[0].shape[1] == LENGTH + 20
    assert len(set(found[0][0, LENGTH:].tolist())) > 3
    assert len(calls) >= 60


# Outputs of models


@pytest.mark.parametrize("from_config", [False, True])
def test_weights_are_returned_by_transformers(kind, from_config, calls):
    model = make(kind)
    other = replaced(model)
    if from_config:
        model.config.output_attentions = other.config.output_attentions = True
    options = {} if from_config else {"output_attentions": True}
    expected, found = (x(tokens(), padding_mask(), **options).attentions for x in (model, other))
    assert len(found) == len(expected) >= 3 and calls == []
    for x, y in zip(found, expected):
        assert torch.equal(x, y)


def test_hidden_states_and_router_logits_are_equal(kind):
    model, options = make(kind), {"output_hidden_states": True, "output_router_logits": True}
    expected, found = (x(tokens(), padding_mask(), **options) for x in (model, replaced(model)))
    assert type(found) is type(expected) and found.keys() == expected.keys()
    real = padding_mask().bool()
    for name in ("hidden_states", "router_logits"):
        assert len(found[name]) == len(expected[name]) >= 3
        for x, y in zip(found[name], expected[name]):
            x, y = (each.reshape(2, LENGTH, -1)[real] for each in (x, y))
            assert_near(x, y, 1e-5)
    outputs = replaced(model)(tokens(), return_dict=False)
    assert_near(outputs[0], model(tokens()).logits)


def test_missing_inputs_are_an_error_of_transformers(kind):
    with pytest.raises(ValueError, match="exactly one of input_ids or inputs_embeds"):
        replaced(make(kind))()


# Training


@pytest.mark.parametrize("order", ["replace first", "adapt first"])
def test_fine_tuning_with_lora_has_the_same_losses(kind, order):
    targets = ["q_proj", "k_proj", "r_proj"] if kind == "Inkling" else ["linear", "sink_proj"]
    losses = []
    for exchange in (False, True):
        model = make(kind).train()
        if exchange and order == "replace first":
            replace_attention(model)
        torch.manual_seed(1)
        config = peft.LoraConfig(r=2, target_modules=targets, init_lora_weights="gaussian")
        model = peft.get_peft_model(model, config)
        if exchange and order == "adapt first":
            assert replace_attention(model) == 3
        optimizer = torch.optim.AdamW([x for x in model.parameters() if x.requires_grad], lr=1e-2)
        found, mask = [], padding_mask().flip(1)
        labels = tokens().masked_fill(mask == 0, -100)
        for _ in range(20):
            loss = model(tokens(), attention_mask=mask, labels=labels).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(loss.item())
        losses.append(found)
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-4)
    assert losses[0][-1] < losses[0][0] - 0.01


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_gradient_checkpointing_repeats_dropout(kind, use_reentrant):
    expected = None
    for checkpointing in (False, True):
        model = replaced(make(kind, attention_dropout=0.3)).train()
        if checkpointing:
            # Reentrant checkpoints need inputs with gradients.
            model.enable_input_require_grads()
            options = {"use_reentrant": use_reentrant}
            model.gradient_checkpointing_enable(gradient_checkpointing_kwargs=options)
        torch.manual_seed(11)
        found = results(model, padding_mask(), use_cache=False)
        if expected is None:
            expected = found
    assert_results_near(found, expected)
    torch.manual_seed(12)
    assert (results(model, padding_mask(), use_cache=False)[0] - found[0]).abs().max() > 1e-4


@pytest.mark.parametrize("length", [LENGTH, 200])
def test_bfloat16_is_as_exact_as_transformers(kind, length, tmp_path):
    # Each token uses all experts: rounding changes no choice.
    model = make(kind, n_routed_experts=2)
    ids = tokens(length, batch=8)
    expected = model(ids).logits
    model.save_pretrained(tmp_path)
    # Some weights stay in float32.
    model = type(model).from_pretrained(tmp_path, dtype=torch.bfloat16).eval()
    errors = []
    for x in (model, replaced(model)):
        errors.append((x(ids).logits.float() - expected).square().mean().sqrt().item())
    assert 0 < errors[1] <= 1.2 * errors[0]


# Compilation, threads and processes


@pytest.mark.slow
def test_compiled_models_are_equal(kind):
    model = replaced(make(kind))
    torch.compiler.reset()
    compiled = torch.compile(model, backend="eager")
    mask = padding_mask(150)
    with torch.no_grad():
        expected, found = (x(tokens(150), mask).logits for x in (model, compiled))
    assert_near(found[mask.bool()], expected[mask.bool()])


def test_threads_have_their_own_calls(kind):
    model = replaced(make(kind))
    lengths = (7, 12, 23, 150) * 2

    def call(length):
        with torch.no_grad():
            return model(tokens(length), padding_mask(length, left=3)).logits

    expected = [call(length) for length in lengths]
    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        for x, y in zip(pool.map(call, lengths), expected):
            assert torch.equal(x, y)


def test_saved_models_load_in_a_new_process(kind, tmp_path):
    model = replaced(make(kind))
    torch.save(model, tmp_path / "model.pt")
    torch.save((tokens(), model(tokens()).logits.detach()), tmp_path / "call.pt")
    code = """
import torch
model = torch.load("model.pt", weights_only=False)
x, expected = torch.load("call.pt")
assert "attention by t2t_relpos" in repr(model)
torch.testing.assert_close(model(x).logits, expected)
"""
    run_python("-c", code, cwd=tmp_path)


def test_offloaded_models_are_equal(kind):
    """Hooks load the weights of a module when it is called, the table too."""
    accelerate = pytest.importorskip("accelerate")
    model = make(kind)
    expected = model(tokens(), padding_mask()).logits
    other = replaced(model)
    accelerate.cpu_offload(other, execution_device="cpu", offload_buffers=True)
    assert any(x.is_meta for x in other.parameters())
    real = padding_mask().bool()
    assert_near(other(tokens(), padding_mask()).logits[real], expected[real])


def test_classes_are_exchanged_and_restored(kind):
    model = make(kind)
    classes = [type(module) for module in model.modules()]
    assert replace_attention(model) == 3
    changed = {type(x).__name__ for x, old in zip(model.modules(), classes) if type(x) is not old}
    if kind == "Inkling":
        assert changed == {"InklingAttention", "InklingRelativeLogits", "InklingTextModel"}
    else:
        names = "SlidingAttention", "FullAttention", "RelativePositionBias", "TextModel"
        assert changed == {f"{kind}{name}" for name in names}
    assert restore_attention(model) == 3
    assert [type(module) for module in model.modules()] == classes


# The comparison


def without_sinks(options):
    options["sinks"] = None


def clipped(options):
    options["beyond"] = "clip"


def another_offset(options):
    options["query_offset"] += 1


def another_window(options):
    if options["sliding_window"]:
        options["sliding_window"] += 1


@pytest.mark.parametrize("change", [without_sinks, clipped, another_offset, another_window])
def test_comparison_finds_differences(change, monkeypatch):
    monkeypatch.setattr(comparison, "_RESULTS", {})
    original = inkling.attend

    def attend(*args, **options):
        change(options)
        return original(*args, **options)

    monkeypatch.setattr(inkling, "attend", attend)
    model = make("Inkling2")
    with pytest.raises(
        RuntimeError, match="'Inkling 2' with transformers .*(differ by|other parameters)"
    ):
        replace_attention(model)
    assert replaced_modules(model) == {}
