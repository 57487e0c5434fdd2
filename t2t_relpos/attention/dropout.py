"""Dropout of attention weights with a mask that rematerialization can repeat."""

import dataclasses
from typing import Any

from keras import ops

from t2t_relpos import backend


def drop(x, rate, seed_generator):
    """Returns `x` with a fraction of its entries set to zero and the others scaled up.

    It is equivalent to keras.random.dropout. On TensorFlow it takes half the time.

    Args:
        x: a floating-point tensor of any shape.
        rate: fraction of entries set to zero, in `[0, 1)`; on TensorFlow rounded to 1 / 65,536.
        seed_generator: a keras.random.SeedGenerator.

    Returns:
        A tensor with the shape and dtype of `x`.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from t2t_relpos.attention.dropout import drop
    >>> dropped = drop(np.ones((7, 11), "float32"), 0.5, keras.random.SeedGenerator(0))
    >>> sorted(set(keras.ops.convert_to_numpy(dropped).ravel().tolist()))
    [0.0, 2.0]
    """
    return AttentionDropout(rate, seed_generator).with_drawn_seed()(ops.convert_to_tensor(x))


class AttentionDropout:
    """Dropout of attention weights.

    Args:
        rate: fraction of weights set to zero, in `[0, 1)`; on PyTorch in `[0, 1]`.
        seed_generator: a keras.random.SeedGenerator. Default: None, on PyTorch only: PyTorch's own
            generator, which `torch.manual_seed` sets and `torch.utils.checkpoint` restores.
    """

    def __init__(self, rate, seed_generator=None):
        self.rate = rate
        self.seed_generator = seed_generator

    def with_drawn_seed(self):
        """Returns a dropout for a single call of `attend`.

        Its seed is drawn here: a generator that is updated in one branch of tf.cond would not
        advance in the other.
        """
        generator = self.seed_generator
        seed = backend.draw_seed() if generator is None else generator.next()
        return SeededDropout(self.rate, seed)


@dataclasses.dataclass(frozen=True)
class SeededDropout:
    """Dropout with a drawn seed: repeated calls give the same mask.

    Args:
        rate: fraction of entries set to zero, in `[0, 1)`; on TensorFlow rounded to 1 / 65,536.
        seed: a seed drawn from the generator of an `AttentionDropout`.
    """

    rate: float
    seed: Any

    def __call__(self, x):
        """Returns `x` with a fraction of its entries set to zero and the others scaled up."""
        return x * self.factors(backend.shape(x), x.dtype)

    def factors(self, shape, dtype, block=None):
        """Returns random factors: 0 with probability `rate`, otherwise 1 / (1 - rate).

        Args:
            shape: ints; on TensorFlow also scalar tensors, or a tensor `[rank]`.
            dtype: dtype of the factors.
            block: number of a block, an int or a scalar tensor. Each number gives different
                factors. Default: None, no blocks.
        """
        return backend.dropout_factors(shape, self.rate, self.seed, dtype, block)
