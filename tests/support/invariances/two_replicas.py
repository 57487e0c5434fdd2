"""Writes the results of entries of `tests/test_invariances.py` in two replicas.

`contexts.py` runs this program: python two_replicas.py FILE NAME...
"""

import pathlib
import sys

import numpy as np
import tensorflow as tf

sys.path.insert(0, str(pathlib.Path(__file__).parents[1]))

from invariances.changes import joined, split_batch  # noqa: E402
from invariances.entries import ENTRIES  # noqa: E402
from invariances.results import plain, results  # noqa: E402


def results_in_replicas(entry, strategy):
    """Returns the results of an entry. The first replica has more batch entries."""
    parts = [plain(entry, each) for each in split_batch(entry, entry.arguments(), 2)]
    found = [None, None]
    with strategy.scope():
        subject = entry.make()

    def run():
        context = tf.distribute.get_replica_context()
        number = int(tf.get_static_value(context.replica_id_in_sync_group))
        found[number] = results(entry, subject, parts[number])

    strategy.run(run)
    return joined(entry, found)


def main(file, *names):
    [cpu] = tf.config.list_physical_devices("CPU")
    tf.config.set_logical_device_configuration(cpu, 2 * [tf.config.LogicalDeviceConfiguration()])
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    np.savez(
        file,
        **{
            f"{name}/{key}": x
            for name in names
            for key, x in results_in_replicas(ENTRIES[name], strategy).items()
        },
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
