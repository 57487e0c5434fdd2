"""Numerical precision of layer computations."""

PRECISIONS = ("float32", "bfloat16", "float16")


def dtype_policy(precision: str) -> str:
    """Returns the Keras dtype policy for a compute dtype, with float32 weights.

    Softmax, layer normalization and the loss are always float32.

    Example:

    >>> dtype_policy("float32"), dtype_policy("bfloat16")
    ('float32', 'mixed_bfloat16')
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"Expected precision to be one of {', '.join(PRECISIONS)}. Received: {precision!r}."
        )
    return precision if precision == "float32" else f"mixed_{precision}"
