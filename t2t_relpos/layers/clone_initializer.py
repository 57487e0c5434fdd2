"""Copies of initializers."""


def clone_initializer(initializer):
    """Returns a copy: a seeded initializer shared by weights would give all the same values."""
    return initializer.__class__.from_config(initializer.get_config())
