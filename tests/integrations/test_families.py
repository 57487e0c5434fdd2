"""Tests of the table of families, of families of one's own, and of the comparison."""

import dataclasses
import pathlib
import sys
import time
import types

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
import transformers
from speech_models import CASES, vits, w2v_bert
from subprocesses import run_python

from t2t_relpos.attention import attend
from t2t_relpos.integrations import comparison, families
from t2t_relpos.integrations.families import import_error, imported, registered_families
from t2t_relpos.integrations.transformers import (
    Family,
    list_families,
    register_family,
    replace_attention,
    replaced_modules,
    restore_attention,
)

# Raised by VITS of older versions of transformers, when it is imported.
pytestmark = [
    pytest.mark.usefixtures("one_thread"),
    pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated"),
]

FAMILIES = registered_families()
# Older versions of transformers lack some.
INSTALLED = [name for name, each in FAMILIES.items() if not import_error(each)]


@pytest.fixture
def registry(monkeypatch):
    """Lets a test register families and compare them as the first in a process."""
    monkeypatch.setattr(families, "_FAMILIES", dict(families._FAMILIES))
    monkeypatch.setattr(families, "_BY_CLASS", dict(families._BY_CLASS))
    monkeypatch.setattr(comparison, "_RESULTS", {})


# A family of one's own


class SelfAttention(torch.nn.Module):
    """Attention with a table of relative keys, by its definition."""

    def __init__(self, width, heads, left, right):
        super().__init__()
        self.heads, self.left, self.right = heads, left, right
        self.qkv = torch.nn.Linear(width, 3 * width)
        self.out = torch.nn.Linear(width, width)
        self.table = torch.nn.Parameter(torch.randn(left + right + 1, width // heads))

    def project(self, x):
        return (
            each.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for each in self.qkv(x).chunk(3, -1)
        )

    def forward(self, x, is_real):
        query, key, value = self.project(x)
        positions = torch.arange(x.shape[1])
        ids = (positions - positions[:, None]).clamp(-self.left, self.right) + self.left
        vectors = self.table[ids]
        scores = query @ key.mT + torch.einsum("bnth,tsh->bnts", query, vectors)
        scores = (scores * key.shape[-1] ** -0.5).masked_fill(~is_real[:, None, None], -torch.inf)
        return self.out((scores.softmax(-1) @ value).transpose(1, 2).flatten(2))


class Conformer(torch.nn.Module):
    def __init__(self, config):
        super().__init__()
        size = config.hidden_size
        self.layers = torch.nn.ModuleList(SelfAttention(size, 2, 6, 3) for _ in range(2))

    def forward(self, x, is_real):
        for layer in self.layers:
            x = x + layer(x, is_real)
        return x


class NewMethods:
    """Attention by `attend`."""

    def forward(self, x, is_real):
        query, key, value = self.project(x)
        outputs, _ = attend(
            query * key.shape[-1] ** -0.5,
            key,
            value,
            self.table,
            max_relative_position=(self.left, self.right),
            key_mask=is_real,
            return_weights=False,
        )
        return self.out(outputs.transpose(1, 2).flatten(2))


MINE = Family(
    name="mine",
    attention={SelfAttention: NewMethods},
    encoder=Conformer,
    small_config=lambda: types.SimpleNamespace(hidden_size=8),
)


def conformer():
    torch.manual_seed(4)
    return Conformer(MINE.small_config())


def call(model, length=50):
    generator = torch.Generator().manual_seed(6)
    x = torch.randn(2, length, 8, generator=generator)
    return model(x, torch.arange(length) < torch.tensor([[length], [length // 2]]))


def test_a_conformer_of_ones_own_is_exchanged_and_restored(registry):
    register_family(MINE)
    model = conformer()
    expected = call(model)
    assert replace_attention(model) == 2
    assert list(replaced_modules(model)) == ["layers.0", "layers.1"]
    assert all(isinstance(layer, SelfAttention) for layer in model.layers)
    torch.testing.assert_close(call(model), expected, rtol=0, atol=1e-5)
    assert comparison._RESULTS == {("mine", transformers.__version__): ""}
    assert restore_attention(model) == 2
    assert [type(layer) for layer in model.layers] == [SelfAttention] * 2


def test_a_users_class_is_not_changed_in_place(registry):
    register_family(MINE)
    members, other = dict(vars(SelfAttention)), conformer()
    replace_attention(conformer())
    assert dict(vars(SelfAttention)) == members
    assert [type(layer) for layer in other.layers] == [SelfAttention] * 2


def test_classes_are_found_by_their_full_names(registry):
    key = f"{__name__}.SelfAttention"
    register_family(dataclasses.replace(MINE, attention={key: NewMethods}))
    assert replace_attention(conformer(), verify=False) == 2


def test_a_family_needs_no_transformers(tmp_path):
    source = pathlib.Path(__file__).read_text()
    source = source[source.index("# A family of one's own") : source.index("def test_a_conformer")]
    imports = """
import sys
sys.modules["transformers"] = None
import types, torch
from t2t_relpos.integrations.transformers import Family, register_family, replace_attention
from t2t_relpos.attention import attend
"""
    code = (
        imports + source + "\nregister_family(MINE)\nassert replace_attention(conformer()) == 2\n"
    )
    run_python("-c", code, cwd=tmp_path)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "VITS"}, "'VITS', which is. Register a family once"),
        ({"name": ""}, "with a name, a string that is not empty. Received: ''"),
        ({"name": None}, "with a name, a string that is not empty. Received: None"),
        ({"attention": {}}, "Expected classes of attention modules in `attention`.*'mine'"),
        (
            {"optional": {"transformers.models.vits.modeling_vits.VitsEncoder": NewMethods}},
            "in no other family. Received: .*VitsEncoder in 'mine', which is in 'VITS'",
        ),
    ],
)
def test_families_with_faults_are_refused(changes, message, registry):
    with pytest.raises(ValueError, match=message):
        register_family(dataclasses.replace(MINE, **changes))
    assert registered_families() == FAMILIES


def test_a_family_registered_twice_is_refused(registry):
    register_family(MINE)
    with pytest.raises(ValueError, match="'mine', which is. Register a family once"):
        register_family(MINE)
    with pytest.raises(ValueError, match="Expected a `Family`. Received: 'mine'"):
        register_family("mine")


def test_a_small_config_without_a_width_is_refused(registry):
    register_family(dataclasses.replace(MINE, small_config=lambda: {"width": 4}))
    with pytest.raises(ValueError, match="`small_config` of the family 'mine' to have `hidden_si"):
        replace_attention(conformer())


def test_families_that_are_not_installed_are_listed(registry):
    assert list_families().keys() == FAMILIES.keys()
    assert [name for name, error in list_families().items() if not error] == INSTALLED
    absent = {"transformers.models.vits.modeling_vits.VitsNewAttention": NewMethods}
    register_family(dataclasses.replace(MINE, name="newer", attention=absent))
    absent = {"transformers.models.newest.modeling_newest.Attention": NewMethods}
    register_family(dataclasses.replace(MINE, name="newest", attention=absent))
    found = list_families()
    assert "VitsNewAttention" in found["newer"] and found["newer"].startswith("AttributeError")
    assert found["newest"].startswith("ModuleNotFoundError")
    with pytest.raises(
        ValueError, match=r"VITS \(the text encoder with window_size\).*newer, newest\)"
    ):
        replace_attention(torch.nn.Linear(2, 2))


def test_older_versions_than_a_family_supports_are_refused(registry, monkeypatch):
    version = transformers.__version__
    register_family(dataclasses.replace(MINE, since="98.1"))
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "98.1.0.dev0")
    assert list_families()["mine"] == ""
    monkeypatch.setattr(sys.modules["transformers"], "__version__", version)
    error = f"Expected transformers 98.1 or newer. Received: {version}."
    assert list_families()["mine"] == error
    with pytest.raises(ValueError, match="not in the installed transformers: .*mine"):
        replace_attention(conformer())


# The comparison


@pytest.mark.parametrize("name", INSTALLED)
def test_families_are_equal_within_two_seconds(name, registry):
    family = FAMILIES[name]
    imported(family.encoder)
    start = time.process_time()
    comparison.compare_family(family)
    assert time.process_time() - start < 2
    assert comparison._RESULTS == {(name, transformers.__version__): ""}


def replaced_function(monkeypatch, change):
    """Lets the attention of VITS compute something else."""
    from t2t_relpos.integrations.families import vits as file

    original = file.attend_heads

    def attend_heads(*args, **kwargs):
        return change(original, list(args), kwargs)

    monkeypatch.setattr(file, "attend_heads", attend_heads)


def without_masks(function, args, options):
    args[4] = {}
    return function(*args, **options)


def with_reversed_table(function, args, options):
    args[2][0] = args[2][0].flip(0)
    return function(*args, **options)


def with_one_distance_less(function, args, options):
    args[2] = [x[1:-1] for x in args[2]]
    args[3] -= 1
    return function(*args, **options)


def with_a_frozen_table(function, args, options):
    args[2][1] = args[2][1].detach()
    return function(*args, **options)


def with_dropout(function, args, options):
    return function(*args, **(options | {"dropout": 0.1}))


def with_another_scale(function, args, options):
    return function(*args, **(options | {"scale": 1.000001 * options["scale"]}))


def with_an_error(function, args, options):
    raise TypeError("unexpected keyword argument 'new'")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (without_masks, "outputs, in inference, differ by"),
        (with_reversed_table, "outputs, in inference, differ by"),
        (with_one_distance_less, "outputs, in inference, differ by"),
        (with_another_scale, "outputs, in inference, differ by"),
        (with_a_frozen_table, "other parameters with gradients|emb_rel_v, in inference, differ"),
        (with_dropout, "outputs, in training, differ by"),
        (with_an_error, "TypeError: unexpected keyword argument 'new'"),
    ],
)
def test_a_difference_is_an_error_and_the_model_stays(change, message, registry, monkeypatch):
    replaced_function(monkeypatch, change)
    model = vits()
    classes = [type(module) for module in model.modules()]
    for _ in range(2):
        with pytest.raises(RuntimeError, match=f"'VITS' with transformers .*{message}"):
            replace_attention(model)
    assert [type(module) for module in model.modules()] == classes
    # Other families, and calls without comparison.
    assert replace_attention(w2v_bert()) == 2
    assert replace_attention(model, verify=False) == 2


def test_comparison_leaves_the_random_state_and_compares_once(registry, monkeypatch):
    made = []
    original = comparison._make_encoder

    def make_encoder(*args):
        made.append(args[0].name)
        return original(*args)

    monkeypatch.setattr(comparison, "_make_encoder", make_encoder)
    state = torch.get_rng_state()
    for _ in range(2):
        replace_attention(vits())
        replace_attention(w2v_bert())
    # It has two kinds of positions.
    expected = ["VITS", "w2v-BERT 2.0", "w2v-BERT 2.0"]
    assert made == expected
    torch.set_rng_state(state)
    model = vits()
    state = torch.get_rng_state()
    comparison._RESULTS.clear()
    replace_attention(model)
    assert torch.equal(torch.get_rng_state(), state)
    # Not always the module that `import` gives: transformers replaces it.
    monkeypatch.setattr(sys.modules["transformers"], "__version__", "99.0")
    replace_attention(model)
    assert made == [*expected, "VITS", "VITS"]


@pytest.mark.parametrize(
    "context",
    [
        torch.no_grad,
        torch.inference_mode,
        lambda: torch.autocast("cpu", torch.bfloat16),
        lambda: torch.device("meta"),
    ],
)
def test_comparison_does_not_depend_on_settings(context, registry):
    model = vits()
    with context():
        assert replace_attention(model) == 2
    assert list(comparison._RESULTS.values()) == [""]


def test_comparison_does_not_depend_on_the_default_dtype(registry):
    model = vits()
    torch.set_default_dtype(torch.bfloat16)
    try:
        assert replace_attention(model) == 2
    finally:
        torch.set_default_dtype(torch.float32)
    assert list(comparison._RESULTS.values()) == [""]


def test_models_on_meta_are_exchanged(registry):
    from accelerate import init_empty_weights

    with init_empty_weights():
        model = vits()
        assert replace_attention(model) == 2
    assert all(x.is_meta for x in model.parameters())
    # No parameter has values there, so the next model is compared.
    assert comparison._RESULTS == {}
    assert replace_attention(CASES["VITS"].make()) == 2
    assert list(comparison._RESULTS.values()) == [""]
