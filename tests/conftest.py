"""Fixtures shared by all tests."""

import dataclasses
import functools
import gc
import os
from typing import NamedTuple

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import hypothesis  # noqa: E402
import keras  # noqa: E402
import numpy as np  # noqa: E402
import pytest  # noqa: E402

# `make test-slow` runs the tests of properties with `--hypothesis-profile=thorough`.
hypothesis.settings.register_profile("fast", max_examples=10, deadline=None)
hypothesis.settings.register_profile("thorough", max_examples=200, deadline=None)
hypothesis.settings.load_profile("fast")
pytest.register_assert_rewrite("programs", "signature_calls", "subprocesses")


def pytest_terminal_summary(terminalreporter):
    """Prints how many pairs of tests/test_invariances.py ran."""
    stats = terminalreporter.stats
    reports = [*stats.get("passed", []), *stats.get("failed", [])]
    names = [x.nodeid for x in reports if x.when == "call" and "test_invariances.py" in x.nodeid]
    count = sum("-" in name for name in names)
    if count:
        terminalreporter.write_line(f"test_invariances.py: {count} pairs of an entry and a change")


@pytest.fixture(autouse=True)
def seeded():
    """Sets the global seed before each test and the dtype policy float32 after it."""
    keras.utils.set_random_seed(20180401)
    yield
    keras.config.set_dtype_policy("float32")


@pytest.fixture
def rng():
    """Returns a generator with the same seed for every test."""
    return np.random.default_rng(20180401)


@pytest.fixture
def run_log(monkeypatch):
    """Returns a list to which each implementation appends its name when it runs."""
    from t2t_relpos.attention import dispatch

    names = []
    original = dispatch.Implementation

    def with_log(implementation):
        def run(call, *sizes, **options):
            names.append(implementation.name)
            return implementation.attend(call)

        return dataclasses.replace(implementation, function=run)

    assert all(isinstance(each, original) for each in dispatch.TABLE)
    monkeypatch.setattr(dispatch, "TABLE", tuple(map(with_log, dispatch.TABLE)))
    return names


@pytest.fixture
def tf():
    """Returns the module `tensorflow`. Skips the test unless it is the backend of Keras."""
    if keras.backend.backend() != "tensorflow":
        pytest.skip("requires the backend TensorFlow")
    import tensorflow

    return tensorflow


@pytest.fixture(scope="session")
def precision():
    """Returns the widest dtype in which Keras multiplies matrices, and a tolerance for it."""
    if keras.backend.backend() == "tensorflow":
        return Precision("float64", 1e-13)
    return Precision("float32", 1e-5)


class Precision(NamedTuple):
    """A dtype and an absolute tolerance."""

    dtype: str
    atol: float


@pytest.fixture(scope="session", autouse=True)
def numpy_conversion():
    """Lets NumPy convert PyTorch tensors that require gradients."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        if keras.backend.backend() == "torch":
            import torch

            read = torch.Tensor.__array__
            detached = lambda tensor, *args, **kwargs: read(tensor.detach(), *args, **kwargs)
            monkeypatch.setattr(torch.Tensor, "__array__", detached)
        yield


SMALL_TRANSFORMER = {
    "vocab_size": 23,
    "num_encoder_layers": 2,
    "num_decoder_layers": 3,
    "hidden_dim": 14,
    "intermediate_dim": 11,
    "num_heads": 2,
    "max_relative_position": 3,
    "max_length": 19,
}
TRANSFORMER_VARIANTS = {
    "shared tables": {},
    "tables per head": {"share_heads": False},
    "relative cross-attention": {"relative_cross_attention": True, "share_heads": False},
    "K = 0": {"max_relative_position": 0},
    "K above length": {"max_relative_position": 17},
    "left and right": {"max_relative_position": (4, 2)},
    "a^V only": {"use_key_table": False},
    "sinusoidal": {"position": "sinusoidal"},
    "learned": {"position": "learned"},
    "post-norm, untied, target space": {
        "normalize_first": False,
        "tie_embeddings": False,
        "target_space_id": 7,
    },
}


@pytest.fixture(scope="session")
def make_transformer():
    """Returns `make_transformer(variant)`: a Transformer with clearly non-uniform attention.

    All tests get the same model of a variant, and must not change its weights.
    """

    @functools.cache
    def make(variant):
        from t2t_relpos.models import Transformer, TransformerConfig

        keras.utils.set_random_seed(20180403)
        transformer = Transformer(
            TransformerConfig(**SMALL_TRANSFORMER | TRANSFORMER_VARIANTS[variant])
        )
        for variable in transformer.trainable_variables:
            if len(variable.shape) > 1:
                variable.assign(1.5 * variable)
        return transformer

    return make


@pytest.fixture(params=TRANSFORMER_VARIANTS)
def transformer(request, make_transformer):
    """Returns a Transformer of each variant, which tests must not change."""
    return make_transformer(request.param)


@pytest.fixture
def eager_searches(monkeypatch):
    """Lets `generate` run searches without a graph, which takes longer to make than to run.

    JAX still compiles them: eagerly, it would compile each operation separately.
    """
    from t2t_relpos.models import generation

    if keras.backend.backend() == "tensorflow":

        def leave(model, search, *, jit_compile):
            return search

        monkeypatch.setattr(generation, "compile_function", leave)


@pytest.fixture(scope="module")
def frozen_objects():
    """Hides the objects of other modules from the garbage collector: `quantize` calls it often."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
