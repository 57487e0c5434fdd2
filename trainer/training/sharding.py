"""Division of batches among replicas."""

import functools

import tensorflow as tf


def shard(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy):
    """Returns a dataset that gives every replica its shard of each batch.

    Of R replicas, number r has the rows r, r + R, r + 2R, … of every tensor. Rows are sorted by
    length, so all replicas have long and short ones. A replica may have one row less than another,
    or none. Every worker makes the whole batch and takes its rows, so all workers must make the
    same batches.

    Args:
        dataset: batches over all replicas.
        strategy: the strategy that trains.

    Returns:
        A dataset for `fit` and `evaluate` of a model of that strategy. Give them the number of
        steps too: Keras does not find it out.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return dataset

    def shards_of_worker(context):
        local = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * local
        numbers = tf.data.Dataset.range(first, first + local)
        shards = dataset.flat_map(functools.partial(_shards, numbers, replicas))
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            # Otherwise workers ask each other before every step whether there is a batch.
            shards = shards.apply(
                tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY)
            )
        return shards.prefetch(2 * local)

    return strategy.distribute_datasets_from_function(shards_of_worker)


def _shards(numbers, replicas, *batch):
    batch = batch if len(batch) > 1 else batch[0]
    return numbers.map(
        lambda number: tf.nest.map_structure(lambda tensor: tensor[number::replicas], batch)
    )
