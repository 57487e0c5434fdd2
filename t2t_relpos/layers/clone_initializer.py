"""Copies initializers."""

import keras


def clone_initializer(initializer):
    """Returns a copy of an initializer, with a new random seed unless it has an explicit seed.

    A single initializer object would give all weights of the same shape the same values. Keras also
    accepts functions, which `keras.initializers.get` makes of arrays too, and None. They are
    returned unchanged.
    """
    if not isinstance(initializer, keras.initializers.Initializer):
        return initializer
    return initializer.__class__.from_config(initializer.get_config())
