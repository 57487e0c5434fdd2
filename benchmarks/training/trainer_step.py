"""The training step of this project, as `trainer.train` runs it, on batches in memory."""

import keras

from benchmarks.workers import tensorflow_with_threads
from t2t_relpos.models import Transformer, TransformerConfig
from trainer.recipes import RECIPES
from trainer.training.optimizer import FusedAdam, NoamSchedule
from trainer.training.training_model import TrainingModel


def make(settings):
    """Returns `prepare(batches)`, which returns a function that trains a model on the batches."""
    tf = tensorflow_with_threads(settings["threads"])
    keras.utils.set_random_seed(1)
    config = TransformerConfig.from_dict(settings["config"])
    precision = settings["precision"]
    policy = precision if precision == "float32" else f"mixed_{precision}"
    transformer = Transformer(config, dtype=policy)
    model = TrainingModel(transformer, settings["label_smoothing"])
    recipe = RECIPES[settings["preset"]]
    schedule = NoamSchedule(config.hidden_dim, recipe["warmup_steps"], recipe["learning_rate"])
    model.compile(
        FusedAdam(schedule, recipe["adam_beta1"], recipe["adam_beta2"], recipe["adam_epsilon"])
    )
    model.make_train_function()

    def prepare(batches):
        iterator = _cached_iterator(tf, batches)
        return lambda: [float(model.train_function(iterator)["loss"]) for _ in batches]

    return prepare


def _cached_iterator(tf, batches):
    def load(number):
        sides = tf.numpy_function(lambda i: batches[i], [number], (tf.int32, tf.int32))
        return {
            name: tf.ensure_shape(side, [None, None])
            for name, side in zip(("inputs", "targets"), sides)
        }

    dataset = tf.data.Dataset.range(len(batches)).map(load).cache()
    for _ in dataset:
        pass
    return iter(dataset)
