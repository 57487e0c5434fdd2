"""The Keras model for `fit`: a Transformer or a language model with the mean loss per token."""

from typing import NamedTuple

import keras
import numpy as np
import tensorflow as tf

from t2t_relpos.attention.call import lengths_up_to
from t2t_relpos.models import CausalLM, Transformer, TransformerConfig

from ..data.tokenizer import PAD_ID
from ..model_dir import LANGUAGE_MODEL
from .batch_parts import RandomStreams, accumulate, split, sum_over_replicas
from .compiled_steps import CompiledOnReplicas, CompiledStep
from .label_smoothed_cross_entropy import label_smoothed_cross_entropy
from .optimizer import LossScale


def make_model(
    architecture: TransformerConfig, kind: str, dtype: str | None = None
) -> Transformer | CausalLM:
    """Returns a new model of a `ModelDirectory.kind` with all its variables.

    `dtype` is the Keras dtype policy of the layers. Default: the global one.
    """
    model = CausalLM if kind == LANGUAGE_MODEL else Transformer
    return model(config=architecture, dtype=dtype)


class Longest(NamedTuple):
    """The number of ids of the longest sequence of training and evaluation batches, or None."""

    train: int | None = None
    dev: int | None = None


class TokenStatistics(keras.metrics.Metric):
    """Metric of loss and accuracy per target token, and of the number of tokens.

    It is updated with sums over all replicas, so its value is equal on all replicas.
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
        """Adds the sums of a batch: `[loss, correct tokens, target tokens, source tokens]`."""
        self.totals.assign_add(tf.cast(totals, tf.float64))

    def result(self):
        loss, correct, target_tokens, source_tokens = tf.unstack(tf.convert_to_tensor(self.totals))
        count = tf.maximum(target_tokens, 1.0)
        return {
            "loss": loss / count,
            "accuracy": correct / count,
            "tokens": source_tokens + target_tokens,
            "target_tokens": target_tokens,
        }


class TrainingModel(keras.Model):
    """A Keras model that trains a Transformer or a language model. Only that model is saved.

    The loss of a step is the mean over the target tokens of all replicas, so it does not depend on
    the distribution of the batch. (Keras takes the mean of the replicas' means, which weights
    tokens unequally.)

    `fit` and `evaluate` take datasets of a Transformer's inputs, or of `{"targets": [B, T]}` for a
    language model. Logs are `loss`, `accuracy`, `tokens` (source and target) and `target_tokens`
    since the last reset of metrics. Training logs also have the `gradient_norm` of the last step
    before clipping, and `loss_scale` in float16.

    Args:
        transformer: built Transformer with inputs `{"inputs": [B, S], "targets": [B, T]}`, or
            `CausalLM`. It must be created in the scope of the same strategy as this model. If its
            compute dtype is float16, it is trained with a `LossScale`.
        label_smoothing: label smoothing of the training loss. Evaluation does not use it.
        device_tokens: tokens of the longer side in a micro-batch, see `batch_parts.split`. None
            disables micro-batches.
        clip_norm: maximum global norm of a step's gradients, or None.
        longest: `Longest` numbers of ids, so that graphs have no implementation of attention for
            other lengths. Default: no limits.
    """

    def __init__(
        self,
        transformer: Transformer | CausalLM,
        label_smoothing: float = 0.0,
        device_tokens: int | None = None,
        clip_norm: float | None = None,
        longest: Longest | None = None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.longest = longest or Longest()
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
        return self.transformer(_inputs(inputs), training=training)

    def compile(self, optimizer: keras.optimizers.Optimizer, **kwargs):
        """Sets the optimizer and options of `keras.Model.compile`. XLA is off by default.

        With a MirroredStrategy, `jit_compile` compiles the loss and the gradients of each replica.
        """
        super().compile(optimizer=optimizer, jit_compile=kwargs.pop("jit_compile", False), **kwargs)
        # Gradients are already summed over replicas.
        self.optimizer._all_reduce_sum_gradients = lambda gradients_and_variables: (
            gradients_and_variables
        )
        self._compute = self._differentiate
        if self.jit_compile and self._mirrored is not None:
            self._compute = CompiledOnReplicas(self._differentiate)
        with self.distribute_strategy.scope():
            self.optimizer.build(self.trainable_variables)
            if self.transformer.compute_dtype == "float16":
                self.loss_scale = LossScale(self.optimizer)

    def _maybe_symbolic_build(self, iterator=None, data_batch=None):
        # The model is built. Keras would reduce a batch over replicas, whose sizes differ.
        pass

    @property
    def _mirrored(self):
        strategy = self.distribute_strategy
        return strategy if isinstance(strategy, tf.distribute.MirroredStrategy) else None

    @property
    def metrics(self):
        return [self.statistics]

    def train_step(self, batch):
        tokens = sum_over_replicas(_count_tokens(batch))
        factor = 1.0 / tf.maximum(tokens[0], 1.0)
        if self.loss_scale:
            factor *= self.loss_scale.scale.value
        sums, gradients, states = self._compute(batch, factor)
        self._random.set_states(states)
        return self._report(sums, tokens, self._update(gradients))

    def _differentiate(self, batch, factor):
        """Returns the replica's sums, the gradients of loss * factor, and the new random states."""
        variables = self.trainable_variables
        context = tf.distribute.get_replica_context()
        replicas, replica = context.num_replicas_in_sync, context.replica_id_in_sync_group

        def differentiate(part, number):
            with tf.GradientTape() as tape:
                sums, states = self._random.draw(
                    number * replicas + replica,
                    lambda: self._sums(part, self.label_smoothing, training=True),
                )
                scaled = sums[0] * factor
            gradients = tape.gradient(
                scaled, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
            )
            return sums, [_dense(gradient) for gradient in gradients], states

        if self.device_tokens is None:
            return differentiate(batch, 0)
        parts = split(batch, self.device_tokens)
        like = tf.zeros([2]), variables
        return accumulate(differentiate, parts, like, self._random.states())

    def _update(self, gradients):
        """Applies the replica's gradients and returns entries for the logs."""
        variables, logs = self.trainable_variables, {}
        gradients = sum_over_replicas(gradients)
        if self.loss_scale:
            logs["loss_scale"] = tf.identity(self.loss_scale.scale.value)
            gradients = [gradient / logs["loss_scale"] for gradient in gradients]
        logs["gradient_norm"] = norm = tf.linalg.global_norm(gradients)
        if self.clip_norm is not None:
            gradients, _ = tf.clip_by_global_norm(gradients, self.clip_norm, use_norm=norm)
        if self.loss_scale:
            self.loss_scale.apply(gradients, variables, tf.math.is_finite(norm))
        else:
            self.optimizer.apply(gradients, variables)
        return logs

    def test_step(self, batch):
        tokens = sum_over_replicas(_count_tokens(batch))
        return self._report(self._sums(batch, 0.0, training=False), tokens, {})

    def _sums(self, batch, label_smoothing, training):
        with lengths_up_to(self.longest.train if training else self.longest.dev):
            states = self.transformer.states(_inputs(batch), training=training)
        table = tf.convert_to_tensor(self.transformer.output_embedding.embeddings)
        losses, correct = label_smoothed_cross_entropy(
            batch["targets"], states, table, label_smoothing
        )
        return tf.stack([tf.reduce_sum(losses), tf.reduce_sum(correct)])

    def _report(self, sums, tokens, others):
        self.statistics.update_state(tf.concat([sum_over_replicas(sums), tokens], axis=0))
        logs = self.statistics.result() | others
        if isinstance(self.distribute_strategy, tf.distribute.MultiWorkerMirroredStrategy):
            # With several workers, Keras reduces logs along the first axis.
            logs = {name: value[None] for name, value in logs.items()}
        return logs

    def make_train_function(self, force=False):
        if not self.jit_compile:
            super().make_train_function(force)
        elif force or self.train_function is None:
            self.train_function = CompiledStep(self.train_step, self._mirrored)

    def make_test_function(self, force=False):
        # Disable XLA, which would compile each of the many shapes of evaluation batches.
        self.jit_compile, jit_compile = False, self.jit_compile
        super().make_test_function(force)
        self.jit_compile = jit_compile


def mean_loss(
    model: Transformer | CausalLM, batches: tf.data.Dataset, longest: int | None = None
) -> tuple[float, int]:
    """Returns the mean loss per target token, without dropout and smoothing, and their number.

    `longest` is the number of ids of the longest sequence. Default: unknown.
    """
    training = TrainingModel(model, longest=Longest(dev=longest))
    training.compile(keras.optimizers.SGD())  # Not used, but Keras requires one.
    logs = training.evaluate(batches, verbose=0, return_dict=True)
    return float(logs["loss"]), round(float(logs["target_tokens"]))


def _inputs(batch):
    """Returns the inputs of the model: a language model takes the ids of its texts."""
    return batch if "inputs" in batch else batch["targets"]


def _count_tokens(batch):
    """Returns the numbers of target and source tokens. A language model has no source."""
    sides = batch["targets"], batch.get("inputs", tf.constant([PAD_ID]))
    counts = [tf.math.count_nonzero(ids != PAD_ID) for ids in sides]
    return tf.cast(tf.stack(counts), tf.float32)


def _dense(gradient):
    # The embedding table is also the output projection, so its gradient has a sparse part.
    if isinstance(gradient, tf.IndexedSlices):
        return tf.math.unsorted_segment_sum(
            gradient.values, gradient.indices, gradient.dense_shape[0]
        )
    return gradient
