"""Checks of a request's arguments inside the graph, so that every client gets the reason."""

import tensorflow as tf


def checked_search(arguments: dict, max_beam_size: int, longest: int) -> dict:
    """Checks the arguments of a search.

    Args:
        arguments: scalar tensors `beam_size`, `alpha`, `max_length` and `num_results`.
        max_beam_size: largest `beam_size`.
        longest: largest `max_length`.

    Returns:
        The same tensors, which depend on the checks.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs, for the first value out of range.
    """
    beam_size, num_results = arguments["beam_size"], arguments["num_results"]
    alpha, max_length = arguments["alpha"], arguments["max_length"]
    expected_beam = f"from 1 to {max_beam_size}, the largest that this model was exported for"
    expected_length = f"from 1 to {longest}, the most ids that this model gives a translation"
    checks = [
        (
            (beam_size >= 1) & (beam_size <= max_beam_size),
            [f"Expected beam_size {expected_beam}. Received: ", beam_size],
        ),
        (
            (num_results >= 1) & (num_results <= beam_size),
            [
                "Expected num_results from 1 to beam_size. Received: ",
                *(num_results, ", with a beam_size of ", beam_size),
            ],
        ),
        (
            (max_length >= 1) & (max_length <= longest),
            [f"Expected max_length {expected_length}. Received: ", max_length],
        ),
        (
            (alpha >= 0.0) & (alpha < float("inf")),
            ["Expected alpha to be a finite number of at least 0. Received: ", alpha],
        ),
    ]
    with tf.control_dependencies(_assert_in_order(checks)):
        return {name: tf.identity(value) for name, value in arguments.items()}


def checked_pairs(text: tf.Tensor, translation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns texts `[B]` and translations `[B]`, which depend on a check of their shapes.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs, if the ranks are not 1 or the numbers
            differ.
    """
    text, translation = (tf.ensure_shape(strings, [None]) for strings in (text, translation))
    texts, translations = tf.size(text), tf.size(translation)
    message = ["Expected a translation for each text. Received: ", texts, " texts and "]
    check = texts == translations, [*message, translations, " translations"]
    with tf.control_dependencies(_assert_in_order([check])):
        return tf.identity(text), tf.identity(translation)


def _assert_in_order(checks):
    """Returns assertions of (condition, parts of the message). Only the first failure is reported.

    The text of an assertion is one string, so that clients can read it.
    """
    done = []
    for holds, message in checks:
        parts = [part if isinstance(part, str) else _as_string(part) for part in message]
        with tf.control_dependencies(done):
            done = [tf.debugging.Assert(holds, [tf.strings.join([*parts, "."])])]
    return done


def _as_string(number):
    return tf.strings.as_string(number, shortest=number.dtype.is_floating)
