"""The Transformer as `model.fit` trains it: the loss of all replicas' tokens over their number."""

import keras
import numpy as np
import tensorflow as tf

from t2t_relpos.models import Transformer
from trainer.training.gradient_updates import LossScale, clip, sum_over_replicas
from trainer.training.keras_compat import WithoutSymbolicBuild, skip_gradient_sum
from trainer.training.losses import PADDING
from trainer.training.micro_batches import accumulate, cut
from trainer.training.projected_loss import projected_cross_entropy
from trainer.training.random_streams import RandomStreams


class TokenStatistics(keras.metrics.Metric):
    """Loss and accuracy per target token, and how many tokens they are of, since the last reset.

    It is given sums over all replicas: every replica holds the same values, and the first one's are
    read.
    """

    def __init__(self, name="token_statistics", **kwargs):
        super().__init__(name=name, dtype="float64", **kwargs)
        self.totals = self.add_variable(
            shape=(4,),
            initializer="zeros",
            dtype="float64",
            aggregation="only_first_replica",
            name="totals",
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


class TrainingModel(WithoutSymbolicBuild, keras.Model):
    """Trains a Transformer; is itself never saved.

    The loss of a step is the sum over the target tokens of all replicas over their number, so that
    it and its gradient do not depend on how the batch is spread. (Keras takes the mean of the
    replicas' means, which weighs tokens unequally.)

    Args:
        transformer: takes `{"inputs": [B, S], "targets": [B, T]}`, ids 0 being padding. Made, as
            this model, in the scope of the strategy that trains it. One that computes in float16 is
            trained with a `LossScale`.
        label_smoothing: of the training loss; evaluation has none.
        device_tokens: tokens of the longer side that a replica computes at once in training, see
            `micro_batches.split`: the sum of the gradients of its micro-batches is that of the
            whole. None: the part is one piece.
        clip_norm: largest global norm of the gradient of a step; None: it is not clipped.

    `fit` and `evaluate` take datasets whose elements, or first parts of elements, are the
    Transformer's inputs. Logs are `loss`, `accuracy`, `tokens` (source and target) and
    `target_tokens`, of the epoch so far; of training also `gradient_norm`, that of the last step
    before it is clipped, and in float16 `loss_scale`, the last step's.
    """

    def __init__(
        self,
        transformer: Transformer,
        label_smoothing: float = 0.0,
        device_tokens: int | None = None,
        clip_norm: float | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.transformer = transformer
        self.label_smoothing = label_smoothing
        self.device_tokens = device_tokens
        self.clip_norm = clip_norm
        self.loss_scale = None
        self.statistics = TokenStatistics()
        if not transformer.built:
            ids = np.ones((1, 1), "int32")
            transformer({"inputs": ids, "targets": ids})
        self._random = RandomStreams(transformer)
        self.built = True

    def call(self, inputs, training=False):
        return self.transformer(inputs, training=training)

    def compile(self, optimizer: keras.optimizers.Optimizer, **kwargs):
        """Sets the optimizer, and `run_eagerly`, `steps_per_execution` or `jit_compile` (without
        XLA by default).
        """
        super().compile(optimizer=optimizer, jit_compile=kwargs.pop("jit_compile", False), **kwargs)
        skip_gradient_sum(self.optimizer)
        with self.distribute_strategy.scope():
            self.optimizer.build(self.trainable_variables)
            if self.transformer.compute_dtype == "float16":
                self.loss_scale = LossScale(self.optimizer)

    @property
    def metrics(self):
        return [self.statistics]

    def train_step(self, data):
        batch = _inputs(data)
        tokens = sum_over_replicas(_count_tokens(batch))
        factor = 1.0 / tf.maximum(tokens[0], 1.0)
        if self.loss_scale:
            factor *= self.loss_scale.scale.value
        sums, gradients = self._differentiate(batch, factor)
        updated = self._update(gradients)
        return self._report(sums, tokens, updated)

    def _differentiate(self, batch, factor):
        """Loss and right tokens summed over this replica's part of a batch, and the gradients of
        the loss times a factor.
        """
        variables = self.trainable_variables
        context = tf.distribute.get_replica_context()
        replicas, replica = context.num_replicas_in_sync, context.replica_id_in_sync_group

        def differentiate(piece, number):
            with tf.GradientTape() as tape:
                sums, states = self._random.draw(
                    number * replicas + replica,
                    lambda: self._sums(piece, self.label_smoothing, training=True),
                )
                scaled = sums[0] * factor
            gradients = tape.gradient(
                scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return sums, [_dense(gradient) for gradient in gradients], states

        if self.device_tokens is None:
            sums, gradients, states = differentiate(batch, 0)
        else:
            pieces = cut(batch, self.device_tokens)
            sums, gradients, states = accumulate(
                differentiate, pieces, (tf.zeros([2]), variables), self._random.states()
            )
        self._random.move_to(states)
        return sums, gradients

    def _update(self, gradients):
        variables = self.trainable_variables
        gradients = sum_over_replicas(gradients)
        found = {}
        if self.loss_scale:
            found["loss_scale"] = tf.identity(self.loss_scale.scale.value)
            gradients = [gradient / found["loss_scale"] for gradient in gradients]
        found["gradient_norm"] = norm = tf.linalg.global_norm(gradients)
        if self.clip_norm is not None:
            gradients = clip(gradients, norm, self.clip_norm)
        if self.loss_scale:
            self.loss_scale.apply(gradients, variables, tf.math.is_finite(norm))
        else:
            self.optimizer.apply(gradients, variables)
        return found

    def test_step(self, data):
        batch = _inputs(data)
        tokens = sum_over_replicas(_count_tokens(batch))
        return self._report(self._sums(batch, 0.0, training=False), tokens, {})

    def _sums(self, batch, label_smoothing, training):
        states = self.transformer.states(batch, training=training)
        table = tf.convert_to_tensor(self.transformer.output_embedding.embeddings)
        losses, right = projected_cross_entropy(batch["targets"], states, table, label_smoothing)
        return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(right)])

    def _report(self, sums, tokens, others):
        self.statistics.update_state(tf.concat([sum_over_replicas(sums), tokens], axis=0))
        logs = self.statistics.result() | others
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # Of several workers Keras takes the mean along the first axis, which scalars have not.
            logs = {name: value[None] for name, value in logs.items()}
        return logs

    def make_test_function(self, force=False):
        # XLA would compile each of the many shapes of evaluation batches.
        self.jit_compile, jit_compile = False, self.jit_compile
        super().make_test_function(force)
        self.jit_compile = jit_compile


def _inputs(data):
    return data[0] if isinstance(data, (tuple, list)) else data


def _count_tokens(batch):
    counts = [tf.math.count_nonzero(batch[side] != PADDING) for side in ("targets", "inputs")]
    return tf.cast(tf.stack(counts), tf.float32)


def _dense(gradient):
    # A table used both for the embedding and as the softmax's matrix has a gradient of both kinds.
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(
            gradient.values, gradient.indices, gradient.dense_shape[0]
        )
    return gradient
