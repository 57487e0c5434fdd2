"""The Transformer of tensor2tensor: hparams, training, gradients and decoding."""

import os

import numpy as np
import tensorflow.compat.v1 as tf
from shared import hide_models

# Must come before the import of tensor2tensor, which selects tf.layers or tf.keras.layers. With
# tf.keras.layers, variables have other names.
tf.disable_v2_behavior()
tf.logging.set_verbosity(tf.logging.ERROR)

hide_models()

from tensor2tensor.data_generators import problem_hparams
from tensor2tensor.models import transformer
from tensor2tensor.utils import adafactor, avg_checkpoints, quantization, registry

ModeKeys = tf.estimator.ModeKeys
SESSION = tf.ConfigProto(intra_op_parallelism_threads=1, inter_op_parallelism_threads=1)


def hparams_of(case):
    hparams = registry.hparams(case.hparams_set)
    for name, value in case.hparams.items():
        assert name in hparams, name
        setattr(hparams, name, value)
    return hparams


def build(case, mode):
    hparams = hparams_of(case)
    source_size = case.source_vocab_size or case.vocab_size
    problem = problem_hparams.test_problem_hparams(source_size, case.vocab_size, hparams)
    problem.target_space_id = case.target_space_id
    problem.stop_at_eos = int(True)  # as in all text-to-text problems of t2t
    if case.language_model:
        # has_inputs is False in t2t's problems without inputs, and leaves out both.
        del problem.modality["inputs"], problem.vocab_size["inputs"]
    return transformer.Transformer(hparams, mode, problem)


def placeholders(names):
    return {name: tf.placeholder(tf.int32, [None, None, 1, 1]) for name in names}


def feed(features, batch):
    return {features[name]: array[..., None, None] for name, array in batch.items()}


def model_variables():
    return [v for v in tf.global_variables() if v.op.name.startswith("transformer/")]


def optimizer(case):
    hparams = hparams_of(case)
    if hparams.weight_dtype == "bfloat16":
        # It encodes the weights.
        return adafactor.adafactor_optimizer_from_hparams(hparams, 0.01)
    return tf.train.AdamOptimizer(3e-3, beta1=0.9, beta2=0.98, epsilon=1e-9)


def train(case, batches, folder, save_at):
    """Trains on `batches` and saves after the steps in `save_at`. Returns checkpoint prefixes.

    A batch is a dict of "targets" and, for a translation model, "inputs".
    """
    prefixes = []
    with tf.Graph().as_default(), tf.Session(config=SESSION) as session:
        tf.set_random_seed(case.seed)
        features = placeholders(case.features)
        _, losses = build(case, ModeKeys.TRAIN)(dict(features))
        step = tf.train.get_or_create_global_step()
        # tensor2tensor's optimizer creates its slots in this scope.
        with tf.variable_scope("training"):
            update = optimizer(case).minimize(losses["training"], global_step=step)
        kept = tf.global_variables() if case.slots else [*model_variables(), step]
        saver = tf.train.Saver(kept, max_to_keep=None)
        session.run(tf.global_variables_initializer())
        for number, batch in enumerate(batches, start=1):
            session.run(update, feed(features, batch))
            if number in save_at:
                prefixes.append(
                    saver.save(
                        session,
                        os.path.join(folder, "model.ckpt"),
                        global_step=step,
                        write_meta_graph=False,
                        write_state=False,
                    )
                )
    return prefixes


def average(prefixes, folder):
    """Runs t2t's avg_checkpoints. Returns the prefix of the averaged checkpoint."""
    output = os.path.join(folder, "averaged.ckpt")
    avg_checkpoints.FLAGS(["", "--checkpoints=" + ",".join(prefixes), "--output_path=" + output])
    with tf.Graph().as_default():
        avg_checkpoints.main([])
    os.remove(output + "-0.meta")
    os.remove(os.path.join(folder, "checkpoint"))
    return output + "-0"


def restore(session, prefix):
    tf.train.Saver(model_variables()).restore(session, prefix)


def decoded_weights(prefix):
    """Returns the values of the weights of a checkpoint with weight_dtype=bfloat16, by name."""
    reader = tf.train.load_checkpoint(prefix)
    names = [n for n in reader.get_variable_to_shape_map() if n.startswith("transformer/")]
    encoding = quantization.EighthPowerEncoding()
    with tf.Graph().as_default(), tf.Session(config=SESSION) as session:
        return session.run({name: encoding.decode(reader.get_tensor(name)) for name in names})


def forward_and_gradients(case, prefix, batch):
    """Returns logits and losses with and without label smoothing, and gradients by name."""
    results = {}
    for mode in (ModeKeys.TRAIN, ModeKeys.EVAL):
        with tf.Graph().as_default(), tf.Session(config=SESSION) as session:
            features = placeholders(case.features)
            logits, losses = build(case, mode)(dict(features))
            restore(session, prefix)
            variables = tf.trainable_variables()
            gradients = [
                tf.convert_to_tensor(gradient)
                for gradient in tf.gradients(losses["training"], variables)
            ]
            results[mode] = session.run(
                [logits, losses["training"], gradients], feed(features, batch)
            )
            names = [variable.op.name for variable in variables]
    logits, loss, gradients = results[ModeKeys.TRAIN]
    eval_logits, eval_loss, _ = results[ModeKeys.EVAL]
    np.testing.assert_allclose(logits, eval_logits, atol=1e-5)
    forward = {"logits": logits[:, :, 0, 0], "loss": loss, "eval_loss": eval_loss}
    return forward, dict(zip(names, gradients))


class Decoder:
    """Calls `model.infer` of one model on several batches and lengths."""

    def __init__(self, case, prefix, **options):
        self._graph = tf.Graph()
        with self._graph.as_default():
            # A language model continues its targets.
            features = placeholders(case.features[:1])
            (self._inputs,) = features.values()
            self._extra = tf.placeholder(tf.int32, [])
            self._results = build(case, ModeKeys.PREDICT).infer(
                dict(features), decode_length=self._extra, **options
            )
            self._session = tf.Session(config=SESSION)
            restore(self._session, prefix)
            self._nudge = [
                v.assign(v * (1 + 1e-6 * tf.random_normal(v.shape, seed=7)))
                for v in model_variables()
            ]

    def __call__(self, inputs, extra):
        """Returns ids `[B, L]` or `[B, beam, L]`, and scores or None."""
        fetched = {
            key: self._results[key]
            for key in ("outputs", "scores")
            if self._results[key] is not None
        }
        results = self._session.run(
            fetched, {self._inputs: inputs[..., None, None], self._extra: extra}
        )
        ids = results["outputs"]
        # t2t's slow greedy search returns [B, L, 1, 1].
        ids = ids[:, :, 0, 0] if ids.ndim == 4 else ids
        return ids.astype(np.int32), results.get("scores")

    def nudge_weights(self):
        """Changes each weight by a random relative amount of about 1e-6."""
        self._session.run(self._nudge)

    def close(self):
        self._session.close()
