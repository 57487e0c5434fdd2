"""Checks of a request's arguments inside the graph, so that every client gets the reason."""

import tensorflow as tf


def checked_search(arguments: dict, max_beam_size: int, longest: int) -> dict:
    """The arguments of a search, which nothing reads before they are found good.

    Args:
        arguments: scalar tensors `beam_size`, `alpha`, `max_length` and `num_results`.
        max_beam_size: largest `beam_size`.
        longest: largest `max_length`.

    Returns:
        The same tensors, after the checks.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs, for the first of them that no search
            can honour.

    Example:
        >>> import re
        >>> @tf.function
        ... def checked(num_results):
        ...     beam_size, max_length = tf.constant(4), tf.constant(20)
        ...     arguments = {"beam_size": beam_size, "alpha": tf.constant(0.6)}
        ...     arguments["max_length"] = max_length
        ...     arguments["num_results"] = num_results
        ...     return checked_search(arguments, max_beam_size=32, longest=306)
        >>> int(checked(tf.constant(2))["num_results"])
        2
        >>> try:
        ...     checked(tf.constant(5))
        ... except tf.errors.InvalidArgumentError as error:
        ...     print(re.search("Expected.*beam_size of 4.", error.message)[0])
        Expected num_results from 1 to beam_size. Received: 5, with a beam_size of 4.
    """
    beam_size, alpha = arguments["beam_size"], arguments["alpha"]
    max_length, num_results = arguments["max_length"], arguments["num_results"]
    checks = [
        _check(
            (beam_size >= 1) & (beam_size <= max_beam_size),
            f"Expected beam_size from 1 to {max_beam_size}, the largest that this model was "
            "exported for. Received: ",
            beam_size,
        ),
        _check(
            (num_results >= 1) & (num_results <= beam_size),
            "Expected num_results from 1 to beam_size. Received: ",
            num_results,
            ", with a beam_size of ",
            beam_size,
        ),
        _check(
            (max_length >= 1) & (max_length <= longest),
            f"Expected max_length from 1 to {longest}, the most ids that this model gives a "
            "translation. Received: ",
            max_length,
        ),
        _check(
            (alpha >= 0.0) & (alpha < float("inf")),
            "Expected alpha to be a finite number of at least 0. Received: ",
            alpha,
        ),
    ]
    with tf.control_dependencies(_in_order(checks)):
        return {name: tf.identity(value) for name, value in arguments.items()}


def checked_pairs(text: tf.Tensor, translation: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Texts `[B]` and their translations `[B]`, which nothing reads before they are found to be
    equally many.

    Raises:
        tf.errors.InvalidArgumentError: when the graph runs, where they are not.
    """
    texts, translations = tf.size(text), tf.size(translation)
    message = (
        "Expected a translation for each text. Received: ",
        texts,
        " texts and ",
        translations,
        " translations",
    )
    with tf.control_dependencies(_in_order([_check(texts == translations, *message)])):
        return tf.identity(text), tf.identity(translation)


def _check(holds, *message):
    parts = [
        part
        if isinstance(part, str)
        else tf.strings.as_string(part, shortest=part.dtype.is_floating)
        for part in message
    ]
    return holds, tf.strings.join([*parts, "."])


def _in_order(checks):
    """Assertions. Only the first failure is reported."""
    done = []
    for holds, message in checks:
        with tf.control_dependencies(done):
            done = [tf.debugging.Assert(holds, [message])]
    return done
