"""The parts of a batch: shards of replicas, micro-batches, and their sums and dropout masks."""

from collections.abc import Callable

import keras
import tensorflow as tf

# Keras reduces seeds modulo 2^31 - 2. The stride is coprime to it, so all streams have different
# seeds.
_STRIDE = 1_640_531_527


def shard(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy):
    """Returns a dataset that gives every replica its shard of each batch.

    Of R replicas, replica r gets the batch entries r, r + R, r + 2R, … of every tensor. Entries are
    sorted by length, so every replica gets long and short ones. A replica may get one entry less
    than another, or none. Every worker creates the complete batch and takes its shard, so all
    workers must create the same batches, dicts of tensors. Pass the number of steps to `fit` and
    `evaluate` too, because Keras can't infer it.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return dataset

    def shards_of_worker(context):
        local = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * local
        numbers = tf.data.Dataset.range(first, first + local)
        shards = dataset.flat_map(
            lambda batch: numbers.map(
                lambda number: {side: ids[number::replicas] for side, ids in batch.items()}
            )
        )
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            # Without this, workers synchronize before every step to check that there is a batch.
            shards = shards.apply(
                tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            )
        return shards.prefetch(2 * local)

    return strategy.distribute_datasets_from_function(shards_of_worker)


def sum_over_replicas(values):
    """Returns a tensor or a list of tensors, summed over all replicas. Called in their context."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def split(batch: dict, device_tokens: int) -> dict:
    """Splits a batch into micro-batches of equal size.

    The last micro-batch is filled with entries of padding. An empty batch gives one entry of
    padding.

    Args:
        batch: ids by side, `[B, length of the side]`.
        device_tokens: maximum number of tokens of the longer side in a micro-batch, including
            padding. A longer batch entry forms its own micro-batch.

    Returns:
        Ids by side, `[number of micro-batches, batch entries, length of the side]`.

    Example:

    >>> import tensorflow as tf
    >>> from trainer.training.batch_parts import split
    >>> batch = {"inputs": tf.ones([5, 4], tf.int32), "targets": tf.ones([5, 3], tf.int32)}
    >>> parts = split(batch, device_tokens=9)
    >>> parts["inputs"].shape.as_list(), parts["targets"].shape.as_list()
    ([3, 2, 4], [3, 2, 3])
    """
    shapes = [tf.shape(ids) for ids in batch.values()]
    rows = shapes[0][0]
    longest = tf.reduce_max([shape[1] for shape in shapes])
    most = tf.maximum(device_tokens // tf.maximum(longest, 1), 1)
    count = tf.maximum(-(-rows // most), 1)
    size = tf.maximum(-(-rows // count), 1)
    missing = count * size - rows

    def stack(ids, length):
        return tf.reshape(tf.pad(ids, [[0, missing], [0, 0]]), [count, size, length])

    return {side: stack(ids, shape[1]) for (side, ids), shape in zip(batch.items(), shapes)}


def accumulate(compute: Callable, parts: dict, like, states: list[tf.Tensor]):
    """Returns the sums of a function's values over all micro-batches, and the last states.

    Args:
        compute: `compute(part, number) -> (values, ..., states)`.
        parts: micro-batches, from `split`.
        like: tensors or variables with the structure, shapes and dtypes of the values.
        states: tensors with the shapes and dtypes of the states.
    """
    count = tf.shape(next(iter(parts.values())))[0]

    def body(number, totals, _):
        part = {side: tf.gather(ids, number) for side, ids in parts.items()}
        *values, after = compute(part, number)
        return number + 1, tf.nest.map_structure(tf.add, totals, tuple(values)), after

    zeros = tf.nest.map_structure(lambda value: tf.zeros(value.shape, value.dtype), like)
    # No parallel iterations, so that only one micro-batch is in memory.
    _, totals, after = tf.while_loop(
        lambda number, *_: number < count,
        body,
        (tf.constant(0), zeros, states),
        parallel_iterations=1,
    )
    return *totals, after


class RandomStreams:
    """Independent random streams from a model's seed generators.

    A seed generator of Keras has a state [seed, number of the next draw], and every replica has a
    copy of it. Stream 0 is equal to Keras's. Other streams change the seed only, so the states stay
    equal on all replicas, regardless of the number of streams.
    """

    def __init__(self, model: keras.Model):
        variables = model.non_trainable_variables
        self._states = [state for state in variables if "int" in str(state.dtype)]

    def draw(self, number: tf.Tensor | int, function: Callable):
        """Calls a function whose random draws come from stream `number`, 0 to 2^31 - 3.

        Returns its result and the new states, for `set_states`. The generators do not change.
        """
        shift = tf.stack([tf.cast(number, tf.int64) * _STRIDE, 0])
        scope = keras.StatelessScope(
            state_mapping=[(state, state.value + shift) for state in self._states]
        )
        with scope:
            result = function()
        return result, [scope.get_current_value(state) - shift for state in self._states]

    def states(self) -> list[tf.Tensor]:
        return [tf.identity(state.value) for state in self._states]

    def set_states(self, states: list[tf.Tensor]):
        for state, value in zip(self._states, states):
            state.assign(value)
