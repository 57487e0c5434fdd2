"""The training step of the real tensor2tensor, on our batches: its graph, in a session. Runs in tensor2tensor's own environment.

Model and loss are tensor2tensor's. Its optimizer does not run on the TensorFlow that can still be installed; TensorFlow's Adam stands
in its place.
"""

import os
import sys
import types
from pathlib import Path

REFERENCE = Path(__file__).parents[2] / "tests/reference"


def make(settings):
    """Trains a new model, of drawn weights, on given batches."""
    # What records for tests runs without, unless told otherwise.
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "1")
    sys.path.insert(0, str(REFERENCE))
    import t2t_transformer as t2t
    import tensorflow.compat.v1 as tf

    config = settings["config"]
    hparams = hparams_of(config) | {"label_smoothing": settings["label_smoothing"]}
    case = types.SimpleNamespace(
        hparams_set="transformer_base",
        hparams=hparams,
        vocab_size=config["vocab_size"],
        target_space_id=config["target_space_id"] or 0,
    )
    tf.set_random_seed(1)
    pair = t2t.placeholder(), t2t.placeholder()
    _, losses = t2t.build(case, t2t.ModeKeys.TRAIN)(dict(zip(("inputs", "targets"), pair)))
    update = tf.train.AdamOptimizer(1e-4, beta1=0.9, beta2=0.98, epsilon=1e-9).minimize(
        losses["training"]
    )
    threads = {
        "intra_op_parallelism_threads": settings["threads"],
        "inter_op_parallelism_threads": 1,
    }
    session = tf.Session(config=tf.ConfigProto(**threads))
    session.run(tf.global_variables_initializer())

    def prepare(batches):
        feeds = [t2t.feed(pair, batch) for batch in batches]
        return lambda: {
            "losses": [float(session.run([losses["training"], update], feed)[0]) for feed in feeds]
        }

    return prepare


def hparams_of(config: dict) -> dict:
    """tensor2tensor's hparams of our architecture, which has relative positions.

    Args:
        config: settings of a `TransformerConfig`.
    """
    first = config["normalize_first"]
    return {
        "num_encoder_layers": config["num_encoder_layers"],
        "num_decoder_layers": config["num_decoder_layers"],
        "hidden_size": config["hidden_dim"],
        "filter_size": config["intermediate_dim"],
        "num_heads": config["num_heads"],
        "self_attention_type": "dot_product_relative",
        "max_relative_position": config["max_relative_position"],
        "pos": None,
        "layer_preprocess_sequence": "n" if first else "none",
        "layer_postprocess_sequence": "da" if first else "dan",
        "layer_prepostprocess_dropout": config["dropout"],
        "attention_dropout": config["attention_dropout"],
        "relu_dropout": config["activation_dropout"],
        "norm_epsilon": config["layer_norm_epsilon"],
        "shared_embedding_and_softmax_weights": config["tie_embeddings"],
        "use_target_space_embedding": config["target_space_id"] is not None,
    }
