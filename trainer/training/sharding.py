"""Division of batches into one shard per replica."""

import tensorflow as tf


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
