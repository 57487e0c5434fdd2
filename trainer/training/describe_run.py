"""What a run is, as text."""

import math

import keras

from trainer.config import RunConfig
from trainer.data.buckets import report_lengths
from trainer.data.encoding import EncodedPairs


def describe(config: RunConfig, pairs: EncodedPairs, model: keras.Model) -> str:
    """The resolved settings of a run, the lengths of its data and the number of its parameters."""
    settings = [
        f"  {name} = {value}" for name, value in config.to_dict().items() if value is not None
    ]
    parameters = sum(math.prod(variable.shape) for variable in model.trainable_variables)
    return "\n".join(
        [
            "Settings:",
            *settings,
            f"Training data: {report_lengths(pairs, config.max_length)}",
            f"Parameters: {parameters:,}",
        ]
    )
