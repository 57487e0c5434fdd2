"""Tests of the module for PyTorch."""

import contextlib
import copy
import gc
import importlib.util
import inspect
import io
import weakref

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
from subprocesses import environment, run_python
from torch import nn
from torch.nn.utils import parametrizations, prune, spectral_norm, weight_norm
from torch.utils.checkpoint import checkpoint
from torch_graphs import compiled

from t2t_relpos.attention import dot_product_attention_relative
from t2t_relpos.backend import torch_compiled
from t2t_relpos.integrations.torch import RelativeMultiheadAttention
from t2t_relpos.layers import RelativeMultiHeadAttention

K = 2
BATCH, LENGTH, HEADS = 3, 7, 2
INFINITY = float("inf")
PADDING = torch.arange(LENGTH) >= torch.tensor([7, 4, 1])[:, None]
CAUSAL = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
PAIRS = torch.rand(BATCH * HEADS, LENGTH, LENGTH, generator=torch.Generator().manual_seed(1)) < 0.3
PAIRS[:, :, 0] = False  # Every query has a key.


def as_float(mask):
    return torch.zeros(mask.shape).masked_fill(mask, -INFINITY)


MASKS = {
    "no mask": {},
    "keys": {"key_padding_mask": PADDING},
    "float keys": {"key_padding_mask": as_float(PADDING)},
    "causal": {"attn_mask": CAUSAL, "is_causal": True},
    "float causal": {"attn_mask": as_float(CAUSAL), "is_causal": True},
    "causal without the hint": {"attn_mask": CAUSAL},
    "pairs": {"attn_mask": PAIRS},
    "float pairs": {"attn_mask": as_float(CAUSAL) + torch.linspace(-1, 1, LENGTH)},
    "keys and causal": {"key_padding_mask": PADDING, "attn_mask": CAUSAL, "is_causal": True},
    "keys and pairs": {
        "key_padding_mask": as_float(PADDING),
        "attn_mask": as_float(PAIRS),
    },
}
each_mask = pytest.mark.parametrize("masks", MASKS.values(), ids=MASKS)


def attention(**options):
    """Returns a module whose tables are not small, and whose biases are not zero."""
    torch.manual_seed(7)
    module = RelativeMultiheadAttention(8, HEADS, **{"max_relative_position": K} | options)
    for name, parameter in module.named_parameters():
        if "table" in name or "bias" in name:
            nn.init.normal_(parameter)
    return module


def inputs(dtype=None, *, batch_first=True):
    generator = torch.Generator().manual_seed(13)
    shape = (BATCH, LENGTH, 8) if batch_first else (LENGTH, BATCH, 8)
    x = torch.randn(shape, generator=generator, dtype=dtype)
    return x.requires_grad_()


class Port(RelativeMultiheadAttention):
    """The attention of tensor2tensor, with the parameters and masks of the module."""

    def forward(self, query, key, value, key_padding_mask=None, attn_mask=None, **options):
        q, k, v = self._project(query, key, value)
        bias = torch.zeros(len(q), HEADS, q.shape[2], k.shape[2])
        if attn_mask is not None:
            attn_mask = as_float(attn_mask) if attn_mask.dtype == torch.bool else attn_mask
            bias = bias + (
                attn_mask.unflatten(0, (-1, HEADS)) if attn_mask.dim() == 3 else attn_mask
            )
        if key_padding_mask is not None:
            is_masked = key_padding_mask.bool()
            bias = bias.masked_fill(is_masked[:, None, None], -INFINITY)
        bias = bias.clamp(min=-1e9)
        tables = self.key_table, self.value_table
        outputs = dot_product_attention_relative(q * self.head_dim**-0.5, k, v, bias, *tables, K)
        return self.out_proj(outputs.transpose(1, 2).flatten(2)), None


def results(module, *arguments, **options):
    """Returns the outputs, the weights if any, and the gradients of parameters and inputs."""
    outputs, weights = module(*arguments, **options)
    loss = outputs.sin().sum() + (0 if weights is None else weights.square().sum())
    parameters = [p for n, p in sorted(module.named_parameters()) if "table" not in n]
    variables = dict.fromkeys([*parameters, *arguments])
    gradients = torch.autograd.grad(loss, list(variables), allow_unused=True)
    return [outputs, *([] if weights is None else [weights]), *gradients]


def assert_close(found, expected, atol=1e-5):
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, atol=atol, rtol=1e-5)


class TestOfPyTorch:
    """The module has the results of `torch.nn.MultiheadAttention` if its tables are zero."""

    def test_arguments_are_those_of_pytorch(self):
        for name in ("__init__", "forward"):
            ours, theirs = (
                inspect.signature(getattr(cls, name)).parameters
                for cls in (RelativeMultiheadAttention, nn.MultiheadAttention)
            )
            assert list(ours)[: len(theirs)] == list(theirs)
            defaults = {n: (ours[n].default, p.default) for n, p in theirs.items()}
            different = {n: pair for n, pair in defaults.items() if pair[0] != pair[1]}
            assert different == ({"batch_first": (True, False)} if name == "__init__" else {})

    @each_mask
    @pytest.mark.parametrize("batch_first", [True, False])
    @pytest.mark.parametrize("need_weights", [True, False])
    def test_masks(self, need_weights, batch_first, masks):
        plain = nn.MultiheadAttention(8, HEADS, batch_first=batch_first)
        module = RelativeMultiheadAttention.from_multihead_attention(plain, K)
        assert module.batch_first is batch_first
        x, options = inputs(batch_first=batch_first), masks | {"need_weights": need_weights}
        assert_close(results(module, x, x, x, **options), results(plain, x, x, x, **options))

    @pytest.mark.parametrize(
        "options", [{"bias": False}, {"kdim": 5, "vdim": 6}, {"kdim": 5, "bias": False}], ids=str
    )
    @pytest.mark.parametrize("average_attn_weights", [True, False])
    def test_projections_and_cross_attention(self, average_attn_weights, options):
        plain = nn.MultiheadAttention(8, HEADS, batch_first=True, **options)
        module = RelativeMultiheadAttention.from_multihead_attention(plain, (3, 1))
        key = torch.randn(BATCH, 9, options.get("kdim", 8), requires_grad=True)
        value = torch.randn(BATCH, 9, options.get("vdim", 8), requires_grad=True)
        call = {"average_attn_weights": average_attn_weights}
        call["attn_mask"] = torch.rand(LENGTH, 9) < 0.3
        found, expected = (results(m, inputs(), key, value, **call) for m in (module, plain))
        assert_close(found, expected)

    @pytest.mark.parametrize("average_attn_weights", [True, False])
    def test_inputs_without_a_batch(self, average_attn_weights):
        plain = nn.MultiheadAttention(8, HEADS)
        module = RelativeMultiheadAttention.from_multihead_attention(plain, K)
        x = inputs()[0].detach().requires_grad_()
        for masks in (
            {"key_padding_mask": PADDING[1]},
            {"attn_mask": CAUSAL},
            {"attn_mask": PAIRS[:HEADS]},
        ):
            options = masks | {"average_attn_weights": average_attn_weights}
            assert_close(results(module, x, x, x, **options), results(plain, x, x, x, **options))

    def test_causal_mask_of_unequal_lengths_is_read(self):
        plain = nn.MultiheadAttention(8, HEADS, batch_first=True)
        module = RelativeMultiheadAttention.from_multihead_attention(plain, K)
        x, mask = inputs(), CAUSAL[:4]
        call = {"attn_mask": mask, "is_causal": True}
        query = x[:, :4]
        assert_close(module(query, x, x, **call), plain(query, x, x, **call))
        bottom_right = module(query, x, x, is_causal=True)
        assert_close(bottom_right, plain(query, x, x, attn_mask=CAUSAL[3:]))

    def test_state_dict(self):
        plain = nn.MultiheadAttention(8, HEADS)
        tables = {"key_table", "value_table"}
        assert attention().state_dict().keys() == plain.state_dict().keys() | tables
        one_table = attention(
            use_value_table=False, share_heads=False, max_relative_position=(3, 1)
        )
        assert one_table.value_table is None and one_table.key_table.shape == (HEADS, 5, 4)
        found = attention().load_state_dict(plain.state_dict(), strict=False)
        assert set(found.missing_keys) == tables and not found.unexpected_keys


@each_mask
def test_results_equal_the_port_of_tensor2tensor(masks):
    module, x = attention(), inputs()
    port = copy.deepcopy(module)
    port.__class__ = Port
    options = masks | {"need_weights": False}
    assert_close(results(module, x, x, x, **options), results(port, x, x, x, **options))
    for name in ("key_table", "value_table"):
        found, expected = (
            torch.autograd.grad(m(x, x, x, **options)[0].sin().sum(), getattr(m, name))
            for m in (module, port)
        )
        assert_close(found, expected)


class EmptySubclass(nn.MultiheadAttention):
    pass


class Doubled(nn.MultiheadAttention):
    def forward(self, *args, **kwargs):
        outputs, weights = super().forward(*args, **kwargs)
        return 2 * outputs, weights


def of_pytorch(kind=nn.MultiheadAttention, **options):
    """Returns a module of PyTorch whose biases are not zero."""
    torch.manual_seed(7)
    module = kind(8, HEADS, batch_first=True, **options)
    for parameter in module.parameters():
        nn.init.normal_(parameter, std=0.3)
    return module


def lora_model(module, **targets):
    """Returns a model of PEFT with random adapters for a module with the name "attn"."""
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=2, init_lora_weights=False, **targets)
    return peft.get_peft_model(nn.ModuleDict({"attn": module}), config)


def with_lora(module, **targets):
    """Returns a module of PEFT, or one that contains modules of PEFT."""
    return lora_model(module, **targets).base_model.model["attn"]


def merged(module):
    return lora_model(module, target_modules=["attn"]).merge_and_unload()["attn"]


def with_hook_of_accelerate(module):
    hooks = pytest.importorskip("accelerate.hooks")
    return hooks.add_hook_to_module(module, hooks.ModelHook())


def with_forward_of_the_instance(module):
    module.forward = torch.no_grad()(module.forward)
    return module


def without(module, name):
    path, _, attribute = name.rpartition(".")
    module.get_submodule(path).register_parameter(attribute, None)
    return module


def in_integers(module):
    weight = torch.ones(8, 8, dtype=torch.int8)
    module.out_proj.weight = nn.Parameter(weight, requires_grad=False)
    return module


# Functions that change a module of PyTorch, or return a changed one.
CHANGES = {
    "weight_norm of in_proj": lambda m: parametrizations.weight_norm(m, "in_proj_weight"),
    "weight_norm of out_proj": lambda m: parametrizations.weight_norm(m.out_proj),
    "weight_norm of a bias": lambda m: parametrizations.weight_norm(m, "in_proj_bias"),
    "spectral_norm": lambda m: parametrizations.spectral_norm(m, "in_proj_weight"),
    "old weight_norm of in_proj": lambda m: weight_norm(m, "in_proj_weight"),
    "old weight_norm of out_proj": lambda m: weight_norm(m.out_proj),
    "old spectral_norm": lambda m: spectral_norm(m, "in_proj_weight"),
    "pruned in_proj": lambda m: prune.l1_unstructured(m, "in_proj_weight", 0.5),
    "pruned out_proj": lambda m: prune.l1_unstructured(m.out_proj, "weight", 0.5),
    "pruned bias": lambda m: prune.l1_unstructured(m, "in_proj_bias", 0.5),
    "LoRA of out_proj, which PyTorch ignores": lambda m: with_lora(m, target_modules=["out_proj"]),
    "merged LoRA": merged,
    "empty subclass": lambda m: of_pytorch(EmptySubclass),
    "hook of accelerate": with_hook_of_accelerate,
    "bias of inputs only": lambda m: without(m, "out_proj.bias"),
    "bias of outputs only": lambda m: without(m, "in_proj_bias"),
}


class TestOfChangedModules:
    """The weights are those that a module computes with. Other modules are refused."""

    @pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm` is deprecated")
    @pytest.mark.filterwarnings("ignore:Unsupported layer type")
    @pytest.mark.parametrize("training", [False, True])
    @pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
    def test_outputs_are_equal(self, change, training):
        source = of_pytorch().eval()
        changed = change(source)
        source = changed if isinstance(changed, nn.MultiheadAttention) else source
        x = inputs()
        source(x, x, x)
        with torch.no_grad():  # Old hooks do not see it before the next call.
            for parameter in source.parameters():
                parameter.mul_(1.5)
            source.train(training)
            module = RelativeMultiheadAttention.from_multihead_attention(source, K)
        assert type(module.in_proj_weight) is nn.Parameter and module.training is training
        assert_close(module.eval()(x, x, x), source.eval()(x, x, x))

    @pytest.mark.filterwarnings("ignore:Unsupported layer type")
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (lambda m: of_pytorch(Doubled), r"Doubled with another `forward`"),
            (lambda m: of_pytorch(torch.ao.nn.quantizable.MultiheadAttention), "ao.nn.quantizable"),
            (with_forward_of_the_instance, "another `forward`"),
            (lambda m: with_lora(m, target_modules=["attn"]), "peft.*`merge_and_unload` of PEFT"),
            (lambda m: with_lora(m, target_parameters=["attn.in_proj_weight"]), "peft.*ParamWrap"),
            (lambda m: torch.compile(m, backend="eager"), "OptimizedModule.*`_orig_mod`"),
            (lambda m: without(m, "in_proj_weight"), r"`in_proj_weight` .*\(24, 8\).*: None"),
            (lambda m: without(m, "out_proj.weight"), r"`out_proj.weight` .*\(8, 8\).*: None"),
            (in_integers, r"`out_proj.weight` .* floating-point .* torch.int8"),
        ],
    )
    def test_unsupported_modules_are_named(self, change, message):
        source = change(of_pytorch())
        with pytest.raises(ValueError, match=message):
            RelativeMultiheadAttention.from_multihead_attention(source, K)

    @pytest.mark.parametrize("parametrized", [False, True])
    def test_frozen_weights_stay_frozen(self, parametrized):
        source = of_pytorch(dtype=torch.float64)
        source.out_proj.to(torch.bfloat16)
        if parametrized:
            parametrizations.weight_norm(source, "in_proj_weight")
        for name, parameter in source.named_parameters():
            parameter.requires_grad = "in_proj" not in name
        with torch.no_grad():
            module = RelativeMultiheadAttention.from_multihead_attention(source, K)
        found = {n: (p.requires_grad, p.dtype) for n, p in module.named_parameters()}
        in_proj = dict.fromkeys(("in_proj_weight", "in_proj_bias"), (False, torch.float64))
        others = "key_table", "value_table", "out_proj.weight", "out_proj.bias"
        assert found == in_proj | dict.fromkeys(others, (True, torch.bfloat16))


def test_flash_attention_has_linear_memory_at_any_length(run_log):
    x = inputs()
    expected = attention()(x, x, x, need_weights=False)[0]
    run_log.clear()
    module = attention(flash_attention=True)
    assert_close(module(x, x, x, need_weights=False)[0], expected)
    assert run_log and set(run_log) <= {"fused", "flash", "blocks"}
    with pytest.raises(ValueError, match="requires: no returned weights"):
        module(x, x, x)


class TestInTransformerEncoder:
    """`nn.TransformerEncoder` turns bool masks into float masks, and has a fast path."""

    def encoder(self, kind=RelativeMultiheadAttention, *, exchange_first=True, **options):
        torch.manual_seed(3)
        layer = nn.TransformerEncoderLayer(8, HEADS, 16, batch_first=True, **options)
        if exchange_first:
            layer.self_attn = attention(dropout=layer.self_attn.dropout)
        encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=not exchange_first)
        for seed, each in enumerate(encoder.layers):
            torch.manual_seed(seed)
            if not exchange_first:
                each.self_attn = attention()
            for parameter in each.self_attn.parameters():
                nn.init.normal_(parameter)
            each.self_attn.__class__ = kind
        return encoder

    @pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
    @each_mask
    @pytest.mark.parametrize("mode", ["train", "eval", "no_grad", "no_grad, exchanged later"])
    def test_outputs_equal_the_port(self, mode, masks):
        names = {"key_padding_mask": "src_key_padding_mask", "attn_mask": "mask"}
        masks = {names.get(name, name): mask for name, mask in masks.items()}
        x = inputs()
        encoders = [
            self.encoder(each, exchange_first="later" not in mode, dropout=0.0)
            for each in (RelativeMultiheadAttention, Port)
        ]
        encoders[1].use_nested_tensor = False
        with torch.set_grad_enabled("no_grad" not in mode):
            found, expected = (encoder.train(mode == "train")(x, **masks) for encoder in encoders)
        is_real = ~PADDING if "src_key_padding_mask" in masks else torch.ones_like(PADDING)
        assert_close([found[is_real]], [expected[is_real]])
        if "no_grad" not in mode:
            gradients = [
                torch.autograd.grad(y[is_real].sin().sum(), list(encoder.parameters()))
                for y, encoder in zip((found, expected), encoders, strict=True)
            ]
            assert_close(*gradients, atol=1e-4)

    def test_hooks_run_in_evaluation(self):
        encoder, called = self.encoder().eval(), []
        for layer in encoder.layers:
            for module in (layer.self_attn, layer.self_attn.out_proj):
                module.register_forward_hook(lambda module, *_: called.append(type(module)))
        with torch.no_grad():
            encoder(inputs(), src_key_padding_mask=PADDING)
        pair = [nn.modules.linear.NonDynamicallyQuantizableLinear, RelativeMultiheadAttention]
        assert called == pair * 2

    def test_decoder_layer(self):
        layer = nn.TransformerDecoderLayer(8, HEADS, 16, batch_first=True, dropout=0.0)
        options = {"tgt_mask": CAUSAL, "tgt_is_causal": True, "memory_key_padding_mask": PADDING}
        x = inputs()
        expected = layer(x, x, **options)
        for name in ("self_attn", "multihead_attn"):
            plain = getattr(layer, name)
            module = RelativeMultiheadAttention.from_multihead_attention(plain, K)
            setattr(layer, name, module)
        assert_close([layer(x, x, **options)], [expected])
        nn.init.normal_(layer.self_attn.key_table)
        assert (layer(x, x, **options) - expected).abs().max() > 0.01

    @pytest.mark.parametrize("use_reentrant", [False, True])
    def test_checkpoints_repeat_dropout(self, use_reentrant):
        encoder = self.encoder(dropout=0.3)

        def loss_and_gradients(run):
            encoder.zero_grad()
            torch.manual_seed(5)
            x = inputs()
            for layer in encoder.layers:
                x = run(layer, x)
            loss = x.sin().sum()
            loss.backward()
            return loss, *[parameter.grad for parameter in encoder.parameters()]

        found = loss_and_gradients(lambda *args: checkpoint(*args, use_reentrant=use_reentrant))
        expected = loss_and_gradients(lambda layer, x: layer(x))
        for one, other in zip(found, expected, strict=True):
            assert torch.equal(one, other)


@pytest.mark.parametrize("need_weights", [True, False])
def test_fully_masked_queries_are_zero(need_weights):
    module, x = attention(), inputs()
    masks = [
        {"key_padding_mask": torch.ones(BATCH, LENGTH, dtype=torch.bool)},
        {"attn_mask": torch.full((LENGTH, LENGTH), -INFINITY)},
        {"attn_mask": torch.ones(BATCH * HEADS, LENGTH, LENGTH, dtype=torch.bool)},
    ]
    for each in masks:
        outputs, weights = module(x, x, x, need_weights=need_weights, **each)
        assert_close([outputs], [module.out_proj.bias.expand_as(outputs)])
        assert weights is None or not weights.any()
        gradient = torch.autograd.grad(outputs.sum(), module.in_proj_weight)[0]
        assert not gradient.any()


@pytest.mark.parametrize(
    ("call", "message"),
    [
        ({"key_padding_mask": torch.ones(3, 7) * 2}, "values 0 and -inf. Received: 2.0."),
        ({"key_padding_mask": torch.ones(3, 7, dtype=torch.int32)}, r"Received: dtype torch.int32"),
        ({"key_padding_mask": PADDING[:2]}, r"\[B, S\] = \[3, 7\]. Received: shape \(2, 7\)"),
        ({"attn_mask": CAUSAL[:4]}, r"\[T, S\] = \[7, 7\] or .* Received: shape \(4, 7\)"),
        ({"attn_mask": CAUSAL.long()}, r"`attn_mask` to be a bool or a float .* torch.int64"),
        ({"query": torch.ones(7, 8)}, r"`key` of shape \[S, Dk\] = \[\*, 8\].*\(3, 7, 8\)"),
        ({"query": torch.ones(3, 7, 5)}, r"`query` of .* \[\*, \*, 8\]. Received: shape \(3, 7, 5"),
        ({"key": torch.ones(7, 8)}, r"`key` of shape \[B, S, Dk\] = .*Received: shape \(7, 8\)"),
        ({"key": torch.ones(2, 7, 8)}, r"`key` of .* \[3, \*, 8\]. Received: shape \(2, 7, 8\)"),
        ({"value": torch.ones(3, 6, 8)}, r"`value` of .* \[3, 7, 8\]. Received: shape \(3, 6, 8\)"),
        ({"value": torch.ones(3, 7, 8).long()}, r"`value` of a floating-point dtype. .*int64"),
    ],
)
def test_calls_raise(call, message):
    x = inputs()
    with pytest.raises(ValueError, match=message):
        attention()(**{"query": x, "key": x, "value": x} | call)


def test_errors_name_the_axes_of_the_inputs():
    x = inputs(batch_first=False)
    message = r"`value` of shape \[S, B, Dv\] = \[7, 3, 8\]. Received: shape \(6, 3, 8\)"
    with pytest.raises(ValueError, match=message):
        attention(batch_first=False)(x, x, x[1:])


def test_constructors_raise():
    for name in ("add_bias_kv", "add_zero_attn"):
        with pytest.raises(ValueError, match=f"Expected `{name}` to be False.*Received: {name}=T"):
            attention(**{name: True})
        with pytest.raises(ValueError, match=f"Expected `{name}` to be False"):
            plain = nn.MultiheadAttention(8, 2, **{name: True})
            RelativeMultiheadAttention.from_multihead_attention(plain, K)
    with pytest.raises(ValueError, match="max_relative_position=-1"):
        attention(max_relative_position=-1)
    with pytest.raises(ValueError, match="Received: torch.nn.modules.linear.Linear"):
        RelativeMultiheadAttention.from_multihead_attention(nn.Linear(8, 8), K)


class TestOfOneModule:
    def test_copies_and_files_have_equal_outputs(self):
        module, x = attention(), inputs()
        expected, file = module(x, x, x), io.BytesIO()
        torch.save(module, file)
        file.seek(0)
        for each in (copy.deepcopy(module), torch.load(file, weights_only=False)):
            assert_close(each(x, x, x), expected, atol=0)

    @pytest.mark.parametrize(
        "options", [{}, {"share_heads": False, "kdim": 5}, {"use_key_table": False}], ids=str
    )
    def test_reset_initializes_all_parameters_after_the_meta_device(self, options):
        module = attention(device="meta", **options).to_empty(device="cpu")
        for parameter in module.parameters():
            nn.init.constant_(parameter, float("nan"))
        torch.manual_seed(5)
        module.out_proj.reset_parameters()  # as PyTorch, which leaves this module to its own reset
        module._reset_parameters()
        torch.manual_seed(5)
        options = {"max_relative_position": K} | options
        expected = RelativeMultiheadAttention(8, HEADS, **options).state_dict()
        assert_close(module.state_dict().values(), expected.values(), atol=0)

    def test_optimizer_made_before_the_first_call_trains_all_parameters(self):
        module, x = attention(), inputs()
        before = copy.deepcopy(module.state_dict())
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
        module(x, x, x)[0].sin().sum().backward()
        optimizer.step()
        assert all(not torch.equal(x, before[name]) for name, x in module.state_dict().items())

    @pytest.mark.parametrize(
        "targets",
        [
            {"target_modules": ["out_proj"]},
            {"target_parameters": ["attn.in_proj_weight"]},
            {"target_modules": ["out_proj"], "target_parameters": ["attn.in_proj_weight"]},
        ],
    )
    def test_lora(self, targets):
        module, x = attention(), inputs()
        expected = module(x, x, x)[0]
        adapted = lora_model(module, **targets)
        outputs = adapted.base_model.model["attn"](x, x, x)[0]
        outputs.sin().sum().backward()
        trained = [p for p in adapted.parameters() if p.requires_grad]
        assert len(trained) == 2 * len(targets) and all(p.grad.any() for p in trained)
        assert (outputs - expected).abs().max() > 0.01
        assert_close([adapted.merge_and_unload()["attn"](x, x, x)[0]], [outputs])

    def test_functional_call_and_transforms(self):
        module, x = attention(), inputs().detach()
        parameters = {name: p.detach() for name, p in module.named_parameters()}

        def loss(parameters, x):
            masks = {"key_padding_mask": PADDING[1], "attn_mask": CAUSAL, "is_causal": True}
            call = torch.func.functional_call(module, parameters, (x, x, x), masks)
            return call[0].sin().sum()

        gradients = torch.func.vmap(torch.func.grad(loss), in_dims=(None, 0))(parameters, x)
        assert gradients.keys() == parameters.keys()
        for number, entry in enumerate(x):
            expected = torch.autograd.grad(
                loss(dict(module.named_parameters()), entry), list(module.parameters())
            )
            assert_close([g[number] for g in gradients.values()], expected)
        doubled = {name: 2 * p for name, p in parameters.items()}
        assert loss(doubled, x[0]) != loss(parameters, x[0])

    def test_double_precision(self):
        module, x = attention(dtype=torch.float64), inputs(torch.float64)[:1, :4].detach()
        x.requires_grad_()
        assert torch.autograd.gradcheck(lambda x: module(x, x, x, need_weights=False)[0], [x])
        long = torch.randn(1, 300, 8, dtype=torch.float64)
        by_blocks, full = (module(*[long] * 3, need_weights=each)[0] for each in (False, True))
        torch.testing.assert_close(by_blocks, full, atol=1e-13, rtol=0)

    @pytest.mark.parametrize("length", [LENGTH, 300])
    def test_bfloat16_and_autocast(self, length):
        module, x = attention(), torch.randn(2, length, 8)
        expected = module(x, x, x, need_weights=False)[0]
        low = copy.deepcopy(module).to(torch.bfloat16)
        rounded = x.to(torch.bfloat16)
        found = low(rounded, rounded, rounded, need_weights=False)[0]
        with torch.autocast("cpu", torch.bfloat16):
            cast = module(x, x, x, need_weights=False)[0]
        for each in (found, cast):
            assert each.dtype == torch.bfloat16
            assert (each.float() - expected).abs().max() < 0.05 * expected.abs().max()
        cast.float().sum().backward()
        assert all(p.grad.dtype == torch.float32 for p in module.parameters())

    def test_dropout_is_reproducible_and_off_in_evaluation(self):
        module, x = attention(dropout=0.3), inputs()
        torch.manual_seed(5)
        first, second = (module(x, x, x)[0] for _ in range(2))
        torch.manual_seed(5)
        assert torch.equal(module(x, x, x)[0], first) and not torch.equal(first, second)
        module.eval()
        assert torch.equal(module(x, x, x)[0], module(x, x, x, need_weights=False)[0])


COMPILED = [MASKS[name] for name in ("no mask", "keys and causal", "float pairs", "keys and pairs")]


class TestCompiled:
    """`torch.compile` makes one graph."""

    @pytest.fixture(autouse=True)
    def reset(self):
        torch.compiler.reset()
        yield
        torch.compiler.reset()

    @pytest.mark.parametrize("need_weights", [True, False])
    @pytest.mark.parametrize("masks", COMPILED)
    def test_outputs_and_gradients(self, masks, need_weights):
        module, x = attention(dropout=0.3), inputs()
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        options = masks | {"need_weights": need_weights}

        def run(function):
            torch.manual_seed(11)
            outputs = function(x, x, x, **options)[0]
            return outputs, *torch.autograd.grad(outputs.sin().sum(), list(module.parameters()))

        assert_close(run(compiled), run(module))

    def test_lengths(self):
        module = attention().eval()
        compiled = torch.compile(module, fullgraph=True, backend="aot_eager")
        for batch, length in ((2, 20), (3, 30), (3, 300)):
            x = torch.randn(batch, length, 8)
            options = {"need_weights": False, "is_causal": True}
            assert_close(compiled(x, x, x, **options)[:1], module(x, x, x, **options)[:1])

    @pytest.mark.parametrize(
        "options, need_weights, dynamic",
        [
            ({}, False, None),
            ({"share_heads": False, "dropout": 0.3}, False, True),
            ({"dropout": 0.3}, True, True),
        ],
    )
    def test_five_shapes_make_two_graphs(self, options, need_weights, dynamic):
        """The lengths have different implementations, which compiled code does not contain."""
        module = attention(**options)
        function, num_graphs = compiled(module, dynamic=dynamic)

        def run(function, x, padding):
            torch.manual_seed(11)
            outputs, weights = function(
                x, x, x, key_padding_mask=padding, need_weights=need_weights
            )
            loss = outputs.sin().sum() + (weights.sin().sum() if need_weights else 0)
            return outputs, *torch.autograd.grad(loss, [x, *module.parameters()])

        for batch, length in ((2, 7), (3, 20), (2, 33), (4, 250), (3, 300)):
            x = torch.randn(batch, length, 8, requires_grad=True)
            padding = torch.arange(length) >= torch.arange(1, batch + 1)[:, None] * length // batch
            assert_close(run(function, x, padding), run(module, x, padding))
        assert num_graphs() <= 2

    def test_autocast_in_a_graph_for_several_shapes(self):
        module = attention()
        function, num_graphs = compiled(module, dynamic=True)
        for length in (7, 300):
            x = torch.randn(2, length, 8)
            with torch.autocast("cpu", torch.bfloat16):
                found, expected = (f(x, x, x, need_weights=False)[0] for f in (function, module))
            assert found.dtype == torch.bfloat16
            parameters = list(module.parameters())
            for one, other in zip(
                (found, *torch.autograd.grad(found.float().sin().sum(), parameters)),
                (expected, *torch.autograd.grad(expected.float().sin().sum(), parameters)),
            ):
                assert torch.equal(one, other)
        assert num_graphs() <= 2

    @torch._functorch.config.patch(donated_buffer=False)  # as for any compiled second pass
    def test_a_second_backward_pass_and_two_calls_before_it(self):
        module = attention()
        function, _ = compiled(module, dynamic=True)
        xs = [torch.randn(2, length, 8, requires_grad=True) for length in (9, 40)]

        def gradients(f):
            losses = [f(x, x, x, need_weights=False)[0].sin().sum() for x in xs]
            return [
                torch.autograd.grad(loss, x, retain_graph=True)[0]
                for _ in range(2)
                for loss, x in zip(losses, xs)
            ]

        assert_close(gradients(function), gradients(module))

    @pytest.mark.parametrize("is_offloaded", [False, True])
    def test_backward_passes_compute_results_again_only_if_pytorch_copied_them(
        self, is_offloaded, monkeypatch
    ):
        records, from_call = [], torch_compiled._Recorded.from_call

        def count(*args):
            records.append(weakref.ref(from_call(*args).results[0]))
            return from_call(*args)

        monkeypatch.setattr(torch_compiled._Recorded, "from_call", count)
        module = attention()
        function, _ = compiled(module, dynamic=True)
        x = torch.randn(2, 20, 8)
        copies = torch.autograd.graph.saved_tensors_hooks(torch.clone, lambda x: x)
        with copies if is_offloaded else contextlib.nullcontext():
            outputs = function(x, x, x, need_weights=False)[0]
        expected = module(x, x, x, need_weights=False)[0]
        parameters = list(module.parameters())
        assert_close(
            torch.autograd.grad(outputs.sin().sum(), parameters),
            torch.autograd.grad(expected.sin().sum(), parameters),
        )
        assert len(records) == (2 if is_offloaded else 1)
        del outputs
        gc.collect()
        assert all(x() is None for x in records)

    @pytest.mark.slow
    @pytest.mark.filterwarnings("ignore:`torch.jit.script:DeprecationWarning")
    def test_inductor_with_checkpoints(self):
        module, x = attention(dropout=0.3), inputs()

        def run(x):
            return module(x, x, x, need_weights=False)[0]

        plain = torch.compile(run, fullgraph=True)
        checkpointed = torch.compile(
            lambda x: checkpoint(run, x, use_reentrant=False), fullgraph=True
        )

        def loss_and_gradients(function):
            torch.manual_seed(5)
            loss = function(x).sin().sum()
            return loss, *torch.autograd.grad(loss, list(module.parameters()))

        assert_close(loss_and_gradients(plain), loss_and_gradients(plain), atol=0)
        assert_close(loss_and_gradients(checkpointed), loss_and_gradients(plain))
        module.eval()
        assert_close([run(x)], [plain(x)])


@pytest.mark.parametrize("make", ["module", "keras"])
def test_exported_program_takes_new_batch_sizes_and_lengths(make):
    x = torch.randn(2, 7, 32)
    sizes = {0: torch.export.Dim("batch"), 1: torch.export.Dim("length")}
    if make == "module":
        module = RelativeMultiheadAttention(32, 4, max_relative_position=(16, 4), batch_first=True)
        run = lambda f, x: f(x, x, x, need_weights=False)[0]
        options = {"args": (x, x, x), "kwargs": {"need_weights": False}}
        shapes = {**dict.fromkeys(("query", "key", "value"), sizes), "need_weights": None}
    else:  # The signature of a Keras layer is `forward(*args, **kwargs)`.
        module = RelativeMultiHeadAttention(4, 8, max_relative_position=16)
        run, shapes = lambda f, x: f(x, x), ((sizes, sizes),)
        options = {"args": (x, x)}
        run(module, x)
    program = torch.export.export(module.eval(), dynamic_shapes=shapes, **options).module()
    for batch, length in ((2, 7), (3, 300), (1, 5)):
        x = torch.randn(batch, length, 32)
        assert_close([run(program, x)], [run(module, x)])


@pytest.mark.filterwarnings("ignore::torch.jit.TracerWarning")
@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("options", [{}, {"is_causal": True}])
def test_trace_is_exact_at_new_batch_sizes_and_lengths(options, need_weights):
    class Module(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention = attention(share_heads=False)

        def forward(self, x, padding):
            masks = {"key_padding_mask": padding} | options
            return self.attention(x, x, x, need_weights=need_weights, **masks)[0]

    def arguments(batch, length):
        is_padding = torch.arange(length) > torch.arange(batch)[:, None] + length // 2
        return torch.randn(batch, length, 8), is_padding

    model = Module().eval()
    trace = torch.jit.trace(model, arguments(2, 300), check_trace=False)
    for batch, length in ((2, 300), (3, 7), (1, 1), (4, 500)):
        example = arguments(batch, length)
        assert_close([trace(*example)], [model(*example)])


def run_without_backend(code, **options):
    """Runs code in a process without the environment variable of Keras's backend."""
    variables = environment()
    del variables["KERAS_BACKEND"]
    return run_python("-c", code, env=variables, **options)


IMPORT = "from t2t_relpos.integrations.torch import RelativeMultiheadAttention"


def test_needs_no_environment_variable():
    code = f"import sys; {IMPORT}; import keras; assert 'tensorflow' not in sys.modules;"
    code += "assert 't2t_relpos.models' not in sys.modules; print(keras.backend.backend())"
    assert run_without_backend(code).stdout == "torch\n"


@pytest.mark.skipif(importlib.util.find_spec("jax") is None, reason="requires JAX")
def test_another_backend_is_an_error():
    code = f"import os; os.environ['KERAS_BACKEND'] = 'jax'; {IMPORT}"
    message = run_without_backend(code, returncode=1).stderr
    assert "Expected Keras to compute with PyTorch. Received: the backend 'jax'" in message
