"""Trains a small Transformer on one and on two devices of JAX with DataParallel.

tests/test_backends.py runs this program:

    XLA_FLAGS=--xla_force_host_platform_device_count=2 python data_parallel.py FOLDER
"""

import sys

import keras
import numpy as np

from t2t_relpos.models import Transformer, TransformerConfig

CONFIG = TransformerConfig(
    vocab_size=13,
    num_encoder_layers=1,
    num_decoder_layers=1,
    hidden_dim=6,
    intermediate_dim=7,
    num_heads=3,
    dropout=0.0,
)


def main(folder, count):
    # Both models get the same variable names.
    keras.utils.clear_session()
    devices = keras.distribution.list_devices("cpu")[:count]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))
    keras.utils.set_random_seed(7)
    model = Transformer(CONFIG)
    rng = np.random.default_rng(3)
    batch = {name: rng.integers(1, 13, (8, 5)).astype("int32") for name in ("inputs", "targets")}
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.5), loss)
    history = model.fit(batch, batch["targets"], batch_size=4, epochs=3, shuffle=False, verbose=0)
    variables = model.trainable_variables
    np.savez(
        f"{folder}/{count}.npz",
        loss=history.history["loss"],
        devices=[len(v.value.sharding.device_set) for v in variables],
        **{v.path: keras.ops.convert_to_numpy(v) for v in variables},
    )


if __name__ == "__main__":
    for count in (1, 2):
        main(sys.argv[1], count)
