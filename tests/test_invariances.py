"""Changes that must not change results, in pairs with the public entries of this library.

| | entries | changes |
|---|---|---|
| forms of arguments: memory and types | `ENTRIES`, all | `changes.CHANGES` |
| meaning: batch entries, padding, order | `ENTRIES`, all | `changes.MEANINGS` |
| contexts, such as compilation | `contexts.CONTEXT_ENTRIES`, a few | `contexts.CONTEXTS` |

Outputs and gradients are compared with those of the plain call: contiguous tensors of float32,
int32 and bool. `exclusions.EXCLUSIONS` has the pairs that do not exist, with the reasons.

Where the right values are not obvious:

- `attend` computes in the dtype of queries: float64 keys beside float32 queries are cast to
  float32. Layers cast all inputs to their compute dtype, as Keras does.
- Entries of memory that are not part of a view have no effect, also if they are NaN. Masked keys
  may have any finite values: in a product with a weight of 0, NaN remains NaN.
- Integer masks are masks of 0 and 1. Additive masks are errors (tests/attention/test_inputs.py).
- Padding is added to queries and keys alike, since queries are the last positions of keys by
  default.
- In 16 bits, results are those of float32 up to rounding.

The fast tests have all changes of `FULL_ENTRIES`, and a fixed sample of other pairs.
`make test-slow` has the rest.
"""

import itertools

import pytest
from invariances import exclusions
from invariances.changes import CHANGES, MEANINGS
from invariances.contexts import CONTEXT_ENTRIES, CONTEXTS
from invariances.entries import BACKEND, ENTRIES, ROWS_OF_OTHER_DEVICES
from invariances.results import assert_same, plain, results, with_flipped_heads

from t2t_relpos.attention import dispatch

pytestmark = [
    # Raised by PEFT.
    pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated"),
    # Raised by torch.compile.
    pytest.mark.filterwarnings("ignore:`torch.jit.script_method` is deprecated"),
]

FULL_ENTRIES = ("attend", "attend, long", "layer relative", "module")
# One of so many other pairs is a fast test. JAX compiles every operation of a new shape.
SAMPLE = {"tensorflow": 8, "torch": 8, "jax": 24}[BACKEND]
SLOW_CHANGES = ("torch.compile, inductor",)


def pairs(entries, changes):
    """Returns the parameters of all pairs that exist."""
    found = []
    product = itertools.product(enumerate(entries.values()), enumerate(changes.values()))
    for (i, entry), (j, change) in product:
        if change.applies(entry) and exclusions.reason(entry, change) is None:
            is_fast = entry.name in FULL_ENTRIES or (i + j) % SAMPLE == 0
            is_fast = is_fast and change.name not in SLOW_CHANGES
            marks = [] if is_fast else [pytest.mark.slow]
            name = f"{entry.name}-{change.name}"
            found.append(pytest.param(entry, change, id=name, marks=marks))
    return found


@pytest.mark.parametrize(("entry", "change"), pairs(ENTRIES, CHANGES))
def test_form_of_arguments(entry, change, eager_searches):
    names = change.names(entry)
    arguments = entry.arguments()
    arguments |= {name: change.prepare(arguments[name]) for name in names}
    tensors = plain(entry, arguments)
    expected = results(entry, entry.subject, tensors)
    # All arguments together, and each alone.
    for selection in [names, *([name] for name in names if len(names) > 1)]:
        changed = {name: change.convert(arguments[name]) for name in selection}
        found = results(entry, entry.subject, tensors | changed)
        # Arrays have no gradients.
        assert_same(found, {name: expected[name] for name in found})


@pytest.mark.parametrize(("entry", "meaning"), pairs(ENTRIES, MEANINGS))
def test_meaning(entry, meaning, eager_searches):
    arguments = entry.arguments()
    expected = results(entry, entry.subject, plain(entry, arguments))
    subject = with_flipped_heads(entry) if meaning.flip_heads else entry.subject
    parts = [plain(entry, each) for each in meaning.split(entry, arguments)]
    found = meaning.merge(entry, [results(entry, subject, each) for each in parts])
    assert_same(found, expected)


@pytest.mark.parametrize(("entry", "context"), pairs(CONTEXT_ENTRIES, CONTEXTS))
def test_context(entry, context):
    arguments = plain(entry, entry.arguments())
    expected = results(entry, entry.subject, arguments)
    found = context.run(entry, entry.subject, arguments)
    # A changed module may have other weights, and names of weights.
    found = {name: x for name, x in found.items() if name in expected}
    assert_same(found, {name: expected[name] for name in found}, context.tolerance)


@pytest.mark.parametrize("row", [row.name for row in dispatch.TABLE])
def test_every_row_is_an_entry(row):
    if row in ROWS_OF_OTHER_DEVICES:
        pytest.skip(f"{row} on {BACKEND} requires: {ROWS_OF_OTHER_DEVICES[row]}")
    assert f"row {row}" in ENTRIES
