"""Tests of PyTorch's dropout, of attention without tables, and of numbers of operations."""

import keras
import pytest

if keras.backend.backend() != "torch":
    pytest.skip("PyTorch only", allow_module_level=True)

import torch
from torch.utils.checkpoint import checkpoint

from benchmarks.attention import operations
from t2t_relpos import backend
from t2t_relpos.attention import attend, causal_mask, dispatch, key_positions, window_mask
from t2t_relpos.attention.call import AttentionCall
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.relative_ids import relative_ids

RATE = 0.3
IMPLEMENTATIONS = [
    (row.name, rematerialize)
    for row in dispatch.TABLE
    if not isinstance(row.function, str)
    and not {dispatch.NO_DROPOUT, dispatch.NO_TABLES} & set(row.requirements)
    for rematerialize in ((None,) if row.saves_weights is None else (None, True))
]


@pytest.fixture
def tensors():
    generator = torch.Generator().manual_seed(11)
    shapes = (2, 3, 37, 8), (2, 3, 37, 8), (2, 3, 37, 8), (5, 8), (5, 8)
    return [torch.randn(s, generator=generator, requires_grad=True) for s in shapes]


def outputs_of(implementation, *tensors):
    name, rematerialize = implementation
    options = {"implementation": name, "rematerialize": rematerialize, "return_weights": False}
    return attend(*tensors, dropout=AttentionDropout(RATE), **options)[0]


def loss_and_gradients(function, tensors):
    """Returns the loss of a function and all gradients, with the same seed in every call."""
    torch.manual_seed(5)
    for tensor in tensors:
        tensor.grad = None
    loss = function(*tensors).square().sum()
    loss.backward()  # Reentrant checkpoints don't support torch.autograd.grad.
    return loss, *[tensor.grad for tensor in tensors]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("use_reentrant", [False, True])
def test_checkpoints_draw_the_same_dropout(use_reentrant, implementation, tensors):
    def plain(*tensors):
        return outputs_of(implementation, *tensors)

    def checkpointed(*tensors):
        return checkpoint(plain, *tensors, use_reentrant=use_reentrant)

    results = (loss_and_gradients(function, tensors) for function in (checkpointed, plain))
    for found, expected in zip(*results, strict=True):
        assert torch.equal(found, expected)


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_manual_seed_reproduces_dropout(implementation, tensors):
    torch.manual_seed(3)
    first, second = (outputs_of(implementation, *tensors) for _ in range(2))
    torch.manual_seed(3)
    assert torch.equal(outputs_of(implementation, *tensors), first)
    assert (first - second).abs().max() > 0.1


@pytest.mark.parametrize("shape", [(6, 5, 40, 300), (90_001,), (3, 30_007)])
@pytest.mark.parametrize("rate", [0.1, 0.5, 0.9])
def test_factors_have_the_rate_and_are_independent(rate, shape):
    torch.manual_seed(17)
    seed = backend.draw_seed()
    factors = backend.dropout_factors(shape, rate, seed, "float32", 0)
    assert torch.equal(factors, backend.dropout_factors(shape, rate, seed, "float32", 0))
    kept = factors > 0
    torch.testing.assert_close(factors[kept], torch.full_like(factors[kept], 1 / (1 - rate)))
    # Six standard deviations of a mean, of normalized variables.
    first, limit = normalized(kept, rate), 6 / factors.numel() ** 0.5
    assert first.mean().abs() < limit
    others = [(seed, 1), (seed + torch.tensor([0, 1], dtype=torch.int32), 0)]
    for other_seed, block in others:
        other = backend.dropout_factors(shape, rate, other_seed, "float32", block) > 0
        assert (first * normalized(other, rate)).mean().abs() < limit
    for axis in range(len(shape)):
        for distance in (1, 2, 4):
            product = first * first.roll(distance, axis)
            assert product.mean().abs() < limit
    rows = first.reshape(-1, shape[-1])
    of_four = rows * rows.roll(1, 0) * rows.roll(1, 1) * rows.roll((1, 1), (0, 1))
    assert len(rows) == 1 or of_four.mean().abs() < limit


def normalized(kept, rate):
    return (kept.float() - (1 - rate)) / (rate * (1 - rate)) ** 0.5


def test_factors_at_the_ends_of_the_range_of_rates():
    seed = backend.draw_seed()
    assert backend.dropout_factors((5, 7), 0.0, seed, "float32").eq(1).all()
    assert backend.dropout_factors((5, 7), 1.0, seed, "float32").eq(0).all()
    assert backend.dropout_factors((0, 7), 0.5, seed, "float32").shape == (0, 7)
    assert backend.dropout_factors((), 0.0, seed, "float32").item() == 1


def test_compiled_factors_are_equal():
    def factors(seed, block):
        return backend.dropout_factors((3, 4, 50), RATE, seed, "float32", block)

    seed = torch.tensor([2**31 - 5, -(2**31)], dtype=torch.int32)
    compiled = torch.compile(factors, fullgraph=True, backend="aot_eager")
    for block in (0, 1, 7):
        assert torch.equal(compiled(seed, block), factors(seed, block))


def test_dropout_of_vmap_is_drawn_as_its_option_says():
    x = torch.ones(3, 40)
    run = lambda x: AttentionDropout(0.5).with_drawn_seed()(x)
    same = torch.vmap(run, randomness="same")(x)
    different = torch.vmap(run, randomness="different")(x)
    assert same.eq(same[0]).all() and not different.eq(different[0]).all()
    assert set(different.unique().tolist()) == {0.0, 2.0}


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"causal": True},
        {"causal": True, "query_offset": torch.tensor(0)},
        {"causal": True, "query_offset": -2},
        {"key_mask": torch.arange(37) < torch.tensor([[9], [0]])},
        {"causal": True, "key_mask": torch.arange(37) < torch.tensor([[9], [37]])},
    ],
    ids=str,
)
def test_attention_without_tables_equals_the_full_matrix(options, tensors):
    """Also its second derivatives, and after a change of the outputs in place."""
    tensors = tensors[:3]

    def results(name):
        outputs = attend(*tensors, return_weights=False, implementation=name, **options)[0]
        loss = outputs.mul_(2).sin().sum()
        gradients = torch.autograd.grad(loss, tensors, create_graph=True)
        squares = sum(x.square().sum() for x in gradients)
        return outputs, *gradients, *torch.autograd.grad(squares, tensors)

    pairs = zip(results(None), results("without_tables"), strict=True)
    assert dispatch.select(AttentionCall(37, 37, None))[0].implementation.name != "without_tables"
    for found, expected in pairs:
        atol = 1e-4 * max(1.0, expected.detach().abs().max().item())
        torch.testing.assert_close(found, expected, rtol=0, atol=atol)


# Largest numbers of operations, and of those that compute, as docs/performance_gpu.md reports them.
LARGEST_COUNTS = {
    ("cpu", 64): ((146, 78), (183, 88)),
    ("gpu", 64): ((139, 69), (176, 79)),
    ("gpu", 512): ((187, 104), (224, 114)),
    ("gpu", 2048): ((270, 131), (307, 141)),
}


@pytest.mark.parametrize(("device", "length"), LARGEST_COUNTS)
def test_a_training_step_has_few_operations(device, length, monkeypatch):
    monkeypatch.setattr(backend, "device", lambda: device)
    steps = operations.training_steps(length)
    names = "RelativeMultiheadAttention", "RelativeMultiHeadAttention"
    for name, largest in zip(names, LARGEST_COUNTS[device, length], strict=True):
        found = operations.count(steps[name])
        assert all(one <= limit for one, limit in zip(found, largest, strict=True)), (name, found)


def test_a_decoder_step_has_few_operations():
    operations_of_step, computing = operations.count(operations.decoder_step())
    assert operations_of_step <= 140 and computing <= 55


def test_ids_and_masks_compile_as_one_graph():
    def function(x):
        length = x.shape[0]
        return (
            x + key_positions(length, 9),
            x + key_positions(length, 9, 4),
            relative_ids(length, 9, (3, 1), 4),
            causal_mask(length, 9),
            window_mask(length, 9, 2, query_offset=1),
        )

    x = torch.ones(7)
    compiled = torch.compile(function, fullgraph=True, backend="eager")
    for found, expected in zip(compiled(x), function(x), strict=True):
        assert torch.equal(found, expected)
