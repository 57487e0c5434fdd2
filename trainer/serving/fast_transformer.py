"""The Transformer of an exported model, with folded weights as variables."""

import keras
import tensorflow as tf

from t2t_relpos.models.folded import FoldedTransformer, fold_weights


class FastTransformer(tf.Module):
    """A copy of a Transformer as a `FoldedTransformer`, without Keras objects.

    Args:
        transformer: a `t2t_relpos.models.Transformer`.
        precision: `kernel_dtype` of `fold_weights`, "float32" or "bfloat16".
    """

    def __init__(self, transformer, precision="float32"):
        super().__init__(name="fast_transformer")
        self.config = transformer.config
        self.weights = keras.tree.map_structure(
            lambda weight: tf.Variable(weight, trainable=False),
            fold_weights(transformer, "float64", precision),
        )
        folded = FoldedTransformer(self.config, self.weights)
        self.start_search, self.score = folded.start_search, folded.score
