"""The training step of tensor2tensor. Runs in tensor2tensor's environment.

Model and loss are tensor2tensor's. The optimizer is TensorFlow's Adam, because tensor2tensor's
does not run on TensorFlow 2.15.
"""

import os
import sys
import types
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "tests/reference"


def make(settings):
    """Returns `prepare(batches)`, which returns a function that trains a model on the batches."""
    # tests/reference turns oneDNN off unless the variable is set.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    sys.path.insert(0, str(REFERENCE))
    import t2t_transformer as t2t
    import tensorflow.compat.v1 as tf

    config = settings["config"]
    case = types.SimpleNamespace(
        hparams_set="transformer_base",
        hparams=hparams_from_config(config) | {"label_smoothing": settings["label_smoothing"]},
        vocab_size=config["vocab_size"],
        target_space_id=config["target_space_id"] or 0,
    )
    tf.set_random_seed(1)
    pair = t2t.placeholder(), t2t.placeholder()
    _, losses = t2t.build(case, t2t.ModeKeys.TRAIN)(dict(zip(("inputs", "targets"), pair)))
    adam = tf.train.AdamOptimizer(1e-4, beta1=0.9, beta2=0.98, epsilon=1e-9)
    fetches = [losses["training"], adam.minimize(losses["training"])]
    threads = {
        "intra_op_parallelism_threads": settings["threads"],
        "inter_op_parallelism_threads": 1,
    }
    session = tf.Session(config=tf.ConfigProto(**threads))
    session.run(tf.global_variables_initializer())

    def prepare(batches):
        feeds = [t2t.feed(pair, batch) for batch in batches]
        return lambda: {"losses": [float(session.run(fetches, feed)[0]) for feed in feeds]}

    return prepare


def hparams_from_config(config: dict) -> dict:
    """Returns tensor2tensor's hparams of a Transformer with relative positions.

    Args:
        config: fields of a `TransformerConfig`.
    """
    pre_norm = config["normalize_first"]
    return {
        "num_encoder_layers": config["num_encoder_layers"],
        "num_decoder_layers": config["num_decoder_layers"],
        "hidden_size": config["hidden_dim"],
        "filter_size": config["intermediate_dim"],
        "num_heads": config["num_heads"],
        "self_attention_type": "dot_product_relative",
        "max_relative_position": config["max_relative_position"],
        "pos": None,
        "layer_preprocess_sequence": "n" if pre_norm else "none",
        "layer_postprocess_sequence": "da" if pre_norm else "dan",
        "layer_prepostprocess_dropout": config["dropout"],
        "attention_dropout": config["attention_dropout"],
        "relu_dropout": config["activation_dropout"],
        "norm_epsilon": config["layer_norm_epsilon"],
        "shared_embedding_and_softmax_weights": config["tie_embeddings"],
        "use_target_space_embedding": config["target_space_id"] is not None,
    }
