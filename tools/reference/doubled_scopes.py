"""Records variable names if tensor2tensor is imported before tf.disable_v2_behavior().

Writes `doubled_scopes.json`: the settings of several models, and the names and shapes of their
variables.
"""

import json

import tensorflow.compat.v1 as tf
from shared import FOLDER, hide_models

hide_models()

from tensor2tensor.data_generators import problem_hparams
from tensor2tensor.models import transformer
from tensor2tensor.utils import registry

tf.disable_v2_behavior()

VOCAB_SIZE = 37
SMALL = {"hidden_size": 24, "filter_size": 40, "num_heads": 4, "num_hidden_layers": 2}
RELATIVE = {"max_relative_position": 3, **SMALL}
SEPARATE = {"shared_embedding_and_softmax_weights": False, "pos": "emb", **SMALL}
ModeKeys = tf.estimator.ModeKeys
# (hparams set, overrides, mode)
MODELS = (
    ("transformer_relative_tiny", RELATIVE, ModeKeys.TRAIN),
    ("transformer_relative_tiny", RELATIVE, ModeKeys.PREDICT),
    ("transformer_tiny", SEPARATE, ModeKeys.TRAIN),
    ("transformer_base_v1", SMALL, ModeKeys.EVAL),
)


def variables(hparams_set, overrides, mode):
    hparams = registry.hparams(hparams_set)
    for name, value in overrides.items():
        setattr(hparams, name, value)
    problem = problem_hparams.test_problem_hparams(VOCAB_SIZE, VOCAB_SIZE, hparams)
    with tf.Graph().as_default():
        inputs, targets = (tf.placeholder(tf.int32, [None, None, 1, 1]) for _ in range(2))
        model = transformer.Transformer(hparams, mode, problem)
        if mode == ModeKeys.PREDICT:
            model.infer({"inputs": inputs}, decode_length=3)
        else:
            model({"inputs": inputs, "targets": targets})
        return {v.op.name: v.shape.as_list() for v in tf.global_variables()}


def record():
    records = [
        {
            "hparams_set": hparams_set,
            "overrides": overrides,
            "mode": mode,
            "vocab_size": VOCAB_SIZE,
            "variables": variables(hparams_set, overrides, mode),
        }
        for hparams_set, overrides, mode in MODELS
    ]
    text = json.dumps(records, indent=1, sort_keys=True) + "\n"
    (FOLDER / "doubled_scopes.json").write_text(text)
