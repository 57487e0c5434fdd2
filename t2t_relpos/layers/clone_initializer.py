"""Copies of initializers."""


def clone_initializer(initializer):
    """Returns a copy with its own random seed, or the same seed if one was given.

    One initializer object gives all weights of a shape the same values.
    """
    return initializer.__class__.from_config(initializer.get_config())
