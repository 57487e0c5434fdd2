"""Dropout of attention weights whose mask a recomputation can draw again."""

import keras


class AttentionDropout:
    """Sets weights to zero at a rate and scales up the others.

    Args:
        rate: at least 0 and below 1.
        seed_generator: a keras.random.SeedGenerator.
    """

    def __init__(self, rate, seed_generator):
        self.rate = rate
        self.seed_generator = seed_generator

    def __call__(self, weights):
        """The weights after dropout."""
        return keras.random.dropout(weights, self.rate, seed=self.seed_generator)

    def draw_seed(self):
        """A seed for one call, two integers, for those who draw the mask themselves."""
        return self.seed_generator.next()
