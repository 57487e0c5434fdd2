"""Checks of request arguments. They run inside the graph, so every client gets the message."""

import tensorflow as tf


def checked_search(arguments: dict, max_beam_size: int, longest: int) -> dict:
    """Returns the arguments of a search, with control dependencies on checks of their range.

    Args:
        arguments: scalar tensors `beam_size`, `alpha`, `max_length` and `num_results`.
        max_beam_size: maximum `beam_size`.
        longest: maximum `max_length`.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs, for the first value out of range.
    """
    alpha, beam_size = arguments["alpha"], arguments["beam_size"]
    checks = [
        _check_range(arguments, "beam_size", max_beam_size, "maximum of this export"),
        _check_range(arguments, "num_results", beam_size, "beam_size"),
        _check_range(arguments, "max_length", longest, "maximum of this export"),
        (
            (alpha >= 0.0) & (alpha < float("inf")),
            ["Expected alpha to be a finite number of at least 0. Received: ", alpha],
        ),
    ]
    with tf.control_dependencies(_assert_in_order(checks)):
        return {name: tf.identity(value) for name, value in arguments.items()}


def checked_pairs(text: tf.Tensor, translation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Returns texts and translations `[B]`, with a control dependency on a check of their shapes.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs, if a rank is not 1 or the sizes differ.
    """
    text, translation = (tf.ensure_shape(strings, [None]) for strings in (text, translation))
    texts, translations = tf.size(text), tf.size(translation)
    message = ["Expected a translation for each text. Received: ", texts, " texts and "]
    check = texts == translations, [*message, translations, " translations"]
    with tf.control_dependencies(_assert_in_order([check])):
        return tf.identity(text), tf.identity(translation)


def _check_range(arguments, name, most, limit):
    """Returns (condition, parts of the message) for an argument from 1 to `most`."""
    value = arguments[name]
    message = [f"Expected {name} from 1 to ", most, f", the {limit}. Received: ", value]
    return (value >= 1) & (value <= most), message


def _assert_in_order(checks):
    """Returns assertions of (condition, message parts) pairs. Only the first failure is reported.

    The message of an assertion is a single string, so that clients can read it.
    """
    done = []
    for holds, message in checks:
        parts = [part if isinstance(part, str) else _as_string(part) for part in message]
        with tf.control_dependencies(done):
            done = [tf.debugging.Assert(holds, [tf.strings.join([*parts, "."])])]
    return done


def _as_string(number):
    number = tf.convert_to_tensor(number)
    return tf.strings.as_string(number, shortest=number.dtype.is_floating)
