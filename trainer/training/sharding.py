"""Every replica's share of a batch."""

import tensorflow as tf


def shard(dataset: tf.data.Dataset, strategy: tf.distribute.Strategy):
    """A dataset that gives every replica its share of each batch, wherever the replica runs.

    Of R replicas number r has the rows r, r + R, r + 2R, … of every tensor: rows are sorted by
    length, and so all have long and short ones. A replica may have one row less than another, or
    none. Every worker makes the whole batch and takes its own rows; so all workers have to make the
    same batches.

    Args:
        dataset: batches over all replicas.
        strategy: that trains.

    Returns:
        What `fit` and `evaluate` of a model of that strategy take, with the number of steps: of
            itself it tells another. With one
        replica the dataset.
    """
    replicas = strategy.num_replicas_in_sync
    if replicas == 1:
        return dataset

    def of_worker(context):
        local = replicas // context.num_input_pipelines
        first = context.input_pipeline_id * local

        def shares(*batch):
            def take(replica):
                return tf.nest.map_structure(
                    lambda tensor: tensor[replica::replicas], batch if len(batch) > 1 else batch[0]
                )

            return tf.data.Dataset.range(first, first + local).map(take)

        made = dataset.flat_map(shares).prefetch(2 * local)
        if dataset.cardinality() == tf.data.INFINITE_CARDINALITY:
            # Otherwise the workers would ask one another before every step whether there is a
            # batch.
            made = made.apply(tf.data.experimental.assert_cardinality(tf.data.INFINITE_CARDINALITY))
        return made

    return strategy.distribute_datasets_from_function(of_worker)
