"""Seeds of the dropouts within a block."""

# Far larger than the usual differences between the seeds of blocks.
_STEP = 1_000_003


def sublayer_seed(seed, number):
    """Returns the seed of a sublayer: different for every number, or None without a seed.

    With the same seed, dropouts of the same shape would drop the same units.

    Args:
        seed: seed of the block, an int or None.
        number: number of the sublayer. Number 0 gets the seed of the block.
    """
    if seed is None or number == 0:
        return seed
    return (seed + number * _STEP) % 2**31
