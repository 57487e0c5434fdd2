"""Copies initializers."""


def clone_initializer(initializer):
    """Returns a copy of an initializer, with a new random seed unless it has an explicit seed.

    A single initializer object would give all weights of the same shape the same values.
    """
    return initializer.__class__.from_config(initializer.get_config())
