"""Dropout of attention weights with a mask that rematerialization can repeat."""

import keras


def drop(x, rate, seed_generator):
    """Returns `x` with entries set to zero at a rate and the others scaled up.

    The same as keras.random.dropout. On TensorFlow it takes half the time.

    Args:
        x: floats of any shape.
        rate: in `[0, 1)`; on TensorFlow rounded to 1 / 65,536.
        seed_generator: a keras.random.SeedGenerator.

    Returns:
        A tensor like `x`.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from t2t_relpos.attention.dropout import drop
    >>> dropped = drop(np.ones((7, 11), "float32"), 0.5, keras.random.SeedGenerator(0))
    >>> sorted(set(keras.ops.convert_to_numpy(dropped).ravel().tolist()))
    [0.0, 2.0]
    """
    return AttentionDropout(rate, seed_generator).with_drawn_seed()(keras.ops.convert_to_tensor(x))


class AttentionDropout:
    """Dropout of attention weights.

    Args:
        rate: in `[0, 1)`.
        seed_generator: a keras.random.SeedGenerator.
    """

    def __init__(self, rate, seed_generator):
        self.rate = rate
        self.seed_generator = seed_generator

    def __call__(self, weights):
        """Returns the weights after dropout."""
        return keras.random.dropout(weights, self.rate, seed=self.seed_generator)

    def with_drawn_seed(self):
        """Returns a dropout for a single call of `attend`.

        On TensorFlow its seed is drawn here: a generator that is updated in one branch of tf.cond
        would not advance in the other.
        """
        if keras.backend.backend() != "tensorflow":
            return self
        from t2t_relpos.attention.tensorflow import dropout

        return dropout.SeededDropout(self.rate, dropout.as_seed(self.seed_generator.next()))
