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
    workers must create the same batches.

    Args:
        dataset: batches over all replicas, dicts of tensors.
        strategy: the strategy of the model.

    Returns:
        A dataset for `fit` and `evaluate` of a model of that strategy. The number of steps must be
        passed too, because Keras can't infer it.
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
    """Returns a tensor or a list of tensors, summed over all replicas.

    Must be called in the replica context of a training or evaluation step.
    """
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
    count = tf.maximum(_divide_up(rows, most), 1)
    size = tf.maximum(_divide_up(rows, count), 1)
    missing = count * size - rows

    def stack(ids, length):
        return tf.reshape(tf.pad(ids, [[0, missing], [0, 0]]), [count, size, length])

    return {side: stack(ids, shape[1]) for (side, ids), shape in zip(batch.items(), shapes)}


def accumulate(compute: Callable, parts: dict, like, states: list[tf.Tensor]):
    """Returns the sums of a function's values over all micro-batches.

    Args:
        compute: `compute(part, number) -> (values, ..., states)`. The values are summed. The states
            are equal for all micro-batches.
        parts: micro-batches, from `split`.
        like: tensors or variables with the structure, shapes and dtypes of the values.
        states: tensors with the shapes and dtypes of the states.

    Returns:
        The sums, ..., and the states of the last micro-batch.
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


def _divide_up(number, by):
    return -(-number // by)


class RandomStreams:
    """Independent random streams from a model's seed generators.

    A seed generator of Keras has a state [seed, number of the next draw], and every replica has a
    copy of it. Stream 0 is equal to Keras's. Other streams change the seed only, so the states stay
    equal on all replicas, regardless of the number of streams.

    Args:
        model: a built model.
    """

    def __init__(self, model: keras.Model):
        variables = model.non_trainable_variables
        self._states = [state for state in variables if "int" in str(state.dtype)]

    def draw(self, number: tf.Tensor | int, function: Callable):
        """Calls a function whose random draws come from a stream. The generators do not change.

        Args:
            number: number of the stream, from 0 to 2^31 - 3.
            function: function without arguments.

        Returns:
            The result of the function, and the new states of the generators, for `set_states`.
        """
        shift = tf.stack([tf.cast(number, tf.int64) * _STRIDE, 0])
        scope = keras.StatelessScope(
            state_mapping=[(state, state.value + shift) for state in self._states]
        )
        with scope:
            result = function()
        return result, [scope.get_current_value(state) - shift for state in self._states]

    def states(self) -> list[tf.Tensor]:
        """Returns the states of the generators."""
        return [tf.identity(state.value) for state in self._states]

    def set_states(self, states: list[tf.Tensor]):
        """Sets the states of the generators."""
        for state, value in zip(self._states, states):
            state.assign(value)
