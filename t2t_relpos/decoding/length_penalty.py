"""Length penalty of beam search."""

from keras import ops


def length_penalty(length, alpha):
    """Returns `((5 + length) / 6) ** alpha` (Wu et al. 2016, equation 14)."""
    return ((5.0 + ops.cast(length, "float32")) / 6.0) ** alpha
