"""In what a model computes."""

PRECISIONS = ("float32", "bfloat16", "float16")


def dtype_policy(precision: str) -> str:
    """Keras's name of the dtype policy whose layers compute in `precision` and whose weights are
    float32.

    Softmax, layer normalisation and the loss are float32 always.

    Example:

    >>> dtype_policy("float32"), dtype_policy("bfloat16")
    ('float32', 'mixed_bfloat16')
    """
    if precision not in PRECISIONS:
        raise ValueError(
            f"Expected precision to be one of {', '.join(PRECISIONS)}. Received: {precision!r}."
        )
    return precision if precision == "float32" else f"mixed_{precision}"
