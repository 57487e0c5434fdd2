"""The Transformer as `model.fit` trains it: the loss of all replicas' tokens over their number."""

import keras
import numpy as np
import tensorflow as tf

from trainer.training.losses import PADDING, token_cross_entropy


class TokenStatistics(keras.metrics.Metric):
    """Loss and accuracy per target token, and how many tokens they are of, since the last reset.

    It is given sums over all replicas: every replica holds the same values, and the first one's are read.
    """

    def __init__(self, name="token_statistics", **kwargs):
        super().__init__(name=name, dtype="float64", **kwargs)
        self.totals = self.add_variable(
            shape=(4,), initializer="zeros", dtype="float64", aggregation="only_first_replica", name="totals"
        )

    def update_state(self, totals):
        """Adds the sums of a batch: `[loss, right tokens, target tokens, source tokens]`."""
        self.totals.assign_add(tf.cast(totals, tf.float64))

    def result(self):
        """`loss` and `accuracy` per target token; `tokens`, source and target; `target_tokens`."""
        loss, right, target_tokens, source_tokens = tf.unstack(tf.convert_to_tensor(self.totals))
        count = tf.maximum(target_tokens, 1.0)
        return {
            "loss": loss / count,
            "accuracy": right / count,
            "tokens": source_tokens + target_tokens,
            "target_tokens": target_tokens,
        }


class TrainingModel(keras.Model):
    """Trains a Transformer; is itself never saved.

    The loss of a step is the sum over the target tokens of all replicas over their number, so that it and its gradient do not
    depend on how the batch is spread. (Keras takes the mean of the replicas' means, which weighs tokens unequally.)

    Args:
        transformer: a model `{"inputs": [B, S], "targets": [B, T]} -> logits [B, T, V]`, ids 0 being padding. Made, as this model,
            in the scope of the strategy that trains it.
        label_smoothing: of the training loss; evaluation has none.

    `fit` and `evaluate` take datasets whose elements, or first parts of elements, are the Transformer's inputs. Logs are `loss`,
    `accuracy`, `tokens` (source and target) and `target_tokens`, of the epoch so far.
    """

    def __init__(self, transformer: keras.Model, label_smoothing: float = 0.0, **kwargs):
        super().__init__(**kwargs)
        self.transformer = transformer
        self.label_smoothing = label_smoothing
        self.statistics = TokenStatistics()
        if not transformer.built:
            ids = np.ones((1, 1), "int32")
            transformer({"inputs": ids, "targets": ids})
        self.built = True

    def call(self, inputs, training=False):
        return self.transformer(inputs, training=training)

    def compile(self, optimizer: keras.optimizers.Optimizer, **kwargs):
        """Sets the optimizer, and `run_eagerly`, `steps_per_execution` or `jit_compile` (without XLA by default)."""
        super().compile(optimizer=optimizer, jit_compile=kwargs.pop("jit_compile", False), **kwargs)
        with self.distribute_strategy.scope():
            self.optimizer.build(self.trainable_variables)

    @property
    def metrics(self):
        return [self.statistics]

    def train_step(self, data):
        batch = _inputs(data)
        tokens = sum_over_replicas(_count_tokens(batch))
        with tf.GradientTape() as tape:
            loss, right = self._sums(batch, self.label_smoothing, training=True)
            # The optimizer sums gradients over replicas.
            scaled = self.optimizer.scale_loss(loss / tf.maximum(tokens[0], 1.0))
        variables = self.trainable_variables
        gradients = [_dense(gradient) for gradient in tape.gradient(scaled, variables)]
        self.optimizer.apply(gradients, variables)
        return self._report(loss, right, tokens)

    def test_step(self, data):
        batch = _inputs(data)
        tokens = sum_over_replicas(_count_tokens(batch))
        loss, right = self._sums(batch, 0.0, training=False)
        return self._report(loss, right, tokens)

    def _sums(self, batch, label_smoothing, training):
        losses, right = token_cross_entropy(batch["targets"], self(batch, training=training), label_smoothing)
        return tf.reduce_sum(losses), tf.reduce_sum(right)

    def _report(self, loss, right, tokens):
        sums = sum_over_replicas(tf.stack([loss, right]))
        self.statistics.update_state(tf.concat([sums, tokens], axis=0))
        return self.statistics.result()

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # Keras would average a batch over the replicas here, which fails where they hold unlike numbers of rows, in order to
        # build what is built already.
        return


def sum_over_replicas(values: tf.Tensor) -> tf.Tensor:
    """The sum of every replica's tensor of float32 values, inside of a step; the tensor itself with one replica."""
    context = tf.distribute.get_replica_context()
    if context.num_replicas_in_sync == 1:
        return values
    return context.all_reduce(tf.distribute.ReduceOp.SUM, values)


def _inputs(data):
    return data[0] if isinstance(data, (tuple, list)) else data


def _count_tokens(batch):
    counts = [tf.math.count_nonzero(batch[side] != PADDING) for side in ("targets", "inputs")]
    return tf.cast(tf.stack(counts), tf.float32)


def _dense(gradient):
    # A table used both for looking up and as the softmax's matrix has a gradient of both kinds.
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(gradient.values, gradient.indices, gradient.dense_shape[0])
    return gradient
