import pytest
import tensorflow as tf

from trainer.serving.translation_module import checked_pairs, checked_search

USUAL = {"beam_size": 4, "alpha": 0.6, "max_length": 20, "num_results": 2}
NAN, INFINITY = float("nan"), float("inf")


@tf.function(autograph=False)
def search(arguments):
    return checked_search(arguments, max_beam_size=7, longest=29)


def test_checked_search_returns_valid_arguments():
    largest = {"beam_size": 7, "max_length": 29}
    smallest = {"beam_size": 1, "num_results": 1, "max_length": 1, "alpha": 0.0}
    for changed in (largest, smallest):
        arguments = {name: tf.constant(value) for name, value in (USUAL | changed).items()}
        assert {name: value.numpy() for name, value in search(arguments).items()} == {
            name: value.numpy() for name, value in arguments.items()
        }


EXPORTED = "the maximum of this export (--{} of trainer.export). Received: {{}}."
BEAM = "Expected beam_size from 1 to 7, " + EXPORTED.format("max_beam_size")
RESULTS = "Expected num_results from 1 to 4, the beam_size. Received: {}."
LENGTH = "Expected max_length from 1 to 29, " + EXPORTED.format(
    "max_input_length and --extra_length"
)
ALPHA = "Expected alpha to be a finite number of at least 0. Received: {}."


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"beam_size": 0}, BEAM.format(0)),
        ({"beam_size": 8}, BEAM.format(8)),
        ({"num_results": 0}, RESULTS.format(0)),
        ({"num_results": 5}, RESULTS.format(5)),
        ({"max_length": 0}, LENGTH.format(0)),
        ({"max_length": 30}, LENGTH.format(30)),
        ({"alpha": -0.5}, ALPHA.format(-0.5)),
        ({"alpha": NAN}, ALPHA.format("nan")),
        ({"alpha": INFINITY}, ALPHA.format("inf")),
        ({"beam_size": 0, "alpha": -0.5, "max_length": 0}, BEAM.format(0)),
    ],
)
def test_checked_search_rejects_invalid_arguments(changed, message):
    arguments = {name: tf.constant(value) for name, value in (USUAL | changed).items()}
    with pytest.raises(tf.errors.InvalidArgumentError) as error:
        search(arguments)
    assert f"assertion failed: [{message}]" in error.value.message


def test_checked_pairs_requires_a_translation_for_each_text():
    pairs = tf.function(checked_pairs, autograph=False)
    both = tf.constant(["a", "b"]), tf.constant(["c", "d"])
    assert [side.numpy().tolist() for side in pairs(*both)] == [[b"a", b"b"], [b"c", b"d"]]
    message = r"\[Expected a translation for each text\. Received: 2 texts and 1 translations\.\]"
    with pytest.raises(tf.errors.InvalidArgumentError, match=message):
        pairs(both[0], tf.constant(["c"]))
