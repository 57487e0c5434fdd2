"""Length penalty of beam search."""

from keras import ops


def length_penalty(length, alpha):
    """Returns `((5 + length) / 6) ** alpha`.

    Args:
        length: number of ids, int, a scalar or a tensor of any shape.
        alpha: exponent. With 0, there is no penalty.

    Returns:
        float32, of the shape of `length`.

    Reference: Wu et al. 2016, equation 14.

    Example:
    >>> from t2t_relpos.decoding import length_penalty
    >>> float(length_penalty(7, alpha=1.0))
    2.0
    """
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha
