"""A decoder-only language model."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.layers.embeddings import TokenEmbedding
from t2t_relpos.layers.layer_mixin import LayerMixin, quantized_dtype
from t2t_relpos.layers.residual import Dropout, LayerNormalization
from t2t_relpos.layers.transformer_decoder import TransformerDecoder
from t2t_relpos.models.config import TransformerConfig
from t2t_relpos.models.folded import FoldedLanguageModel, can_fold, fold_language_model
from t2t_relpos.models.generation import (
    GenerationMixin,
    SearchFunctions,
    cache_capacity,
    current_position,
    empty_caches,
    start_unfolded,
)


@keras.saving.register_keras_serializable(package="t2t_relpos")
class CausalLM(GenerationMixin, LayerMixin, keras.Model):
    """A language model of decoder blocks with relative positions.

    Id 0 is padding and id 1 ends a text. The model shifts ids right: the logits at `t` predict
    `ids[:, t]`. For training, pass the same ids as inputs and labels.

    Args:
        vocab_size: V.
        num_layers: number of decoder blocks.
        hidden_dim: D.
        intermediate_dim: width of the feed-forward networks.
        num_heads: N. Must divide D.
        max_relative_position: clipping distance K.
        dropout: rate of all dropouts. Default: 0.0.
        share_heads: whether the heads of a layer share relative tables. Default: True.
        **kwargs: `name`, `dtype` of `keras.Model`.

    Call arguments:
        ids: int `[B, T]`.
        training: whether dropout is applied.

    Returns:
        logits, float32 `[B, T, V]`.

    Raises:
        ValueError: if ids are not one tensor of rank 2, have a float dtype or, in eager calls, are
            out of range.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from t2t_relpos.models import CausalLM
    >>> model = CausalLM(
    ...     vocab_size=11, num_layers=1, hidden_dim=8, intermediate_dim=16, num_heads=2,
    ...     max_relative_position=4,
    ... )
    >>> ids = np.array([[5, 7, 9, 1], [3, 1, 0, 0]])
    >>> model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    >>> history = model.fit(ids, ids, sample_weight=(ids != 0), verbose=0)
    >>> model.generate(ids[:, :2], sampler="greedy", max_length=6)[:, :2].tolist()
    [[5, 7], [3, 1]]
    """

    _continues_source = True

    def __init__(
        self,
        vocab_size,
        num_layers,
        hidden_dim,
        intermediate_dim,
        num_heads,
        max_relative_position,
        dropout=0.0,
        share_heads=True,
        **kwargs,
    ):
        super().__init__(**kwargs)
        self.settings = {
            "vocab_size": _checks.positive_int(vocab_size, "vocab_size"),
            "num_layers": _checks.positive_int(num_layers, "num_layers"),
            "hidden_dim": _checks.positive_int(hidden_dim, "hidden_dim"),
            "intermediate_dim": intermediate_dim,
            "num_heads": num_heads,
            "max_relative_position": max_relative_position,
            "dropout": _checks.rate(dropout, "dropout"),
            "share_heads": share_heads,
        }
        policy = self.dtype_policy
        self._searches = SearchFunctions()
        self.embedding = TokenEmbedding(vocab_size, hidden_dim, dtype=policy, name="embedding")
        self.embedding_dropout = Dropout(dropout, dtype=policy)
        self.blocks = [
            TransformerDecoder(
                intermediate_dim,
                num_heads,
                dropout=dropout,
                normalize_first=True,
                max_relative_position=max_relative_position,
                share_heads=share_heads,
                dtype=policy,
                name=f"block_{i}",
            )
            for i in range(num_layers)
        ]
        self.norm = LayerNormalization(epsilon=1e-5, dtype=policy, name="norm")
        self.build()

    @property
    def vocab_size(self):
        """V, the number of ids."""
        return self.settings["vocab_size"]

    @property
    def config(self):
        """The `TransformerConfig` of the blocks."""
        settings = {n: x for n, x in self.settings.items() if n != "num_layers"}
        layers = self.settings["num_layers"]
        return TransformerConfig(
            num_encoder_layers=layers,
            num_decoder_layers=layers,
            layer_norm_epsilon=self.norm.epsilon,
            **settings,
        )

    def build(self, input_shape=None):
        """Creates all variables. Their shapes depend on the settings only."""
        if self.built:
            return
        width = (None, None, self.settings["hidden_dim"])
        self.embedding.build((None, None))
        self.embedding_dropout.build(width)
        for block in self.blocks:
            block.build(width)
        self.norm.build(width)
        self.built = True

    def export(self, filepath, *args, input_signature=None, **kwargs):
        """Exports the model like `keras.Model.export`, by default for any batch size and length."""
        if input_signature is None:
            ids = keras.InputSpec(shape=(None, None), dtype="int32", name="ids")
            input_signature = [ids]
        return super().export(filepath, *args, input_signature=input_signature, **kwargs)

    def call(self, ids, training=None):
        advice = "Pass one tensor. For a single sequence, pass a batch of one."
        _checks.check(ids, "ids", "B T", advice=advice, required=True)
        x = ops.pad(self.embedding(ids), [[0, 0], [1, 0], [0, 0]])[:, :-1]
        x = self.embedding_dropout(x, training=training)
        for block in self.blocks:
            x = block(x, training=training)
        return self._logits(x)

    def _logits(self, x):
        return ops.cast(self.embedding(self.norm(x), reverse=True), "float32")

    def encode(self, source, max_length):
        """Returns the state of `step` before the first id, with room for `max_length` ids."""
        rows = ops.shape(source)[0]
        return {
            "caches": empty_caches(self.blocks, rows, max_length),
            "position": ops.zeros((rows,), dtype="int32"),
        }

    def step(self, ids, state):
        """Computes the logits of the next ids.

        Args:
            ids: int `[rows]`, the previous ids. 0 in the first step.
            state: the state that `encode` or the previous step returned.

        Returns:
            (logits `[rows, V]`, the state after this step).
        """
        x, position, caches = self.embedding(ops.expand_dims(ids, -1)), current_position(state), {}
        for block in self.blocks:
            x, caches[block.name] = block(
                x,
                self_attention_cache=state["caches"][block.name],
                self_attention_cache_update_index=position,
                training=False,
            )
        return self._logits(x)[:, 0], {"caches": caches, "position": state["position"] + 1}

    capacity = cache_capacity

    def start_search(self, source, max_length, num_hypotheses, *, growing=True):
        """Returns (state, step function) for a search, as `Transformer.start_search`.

        Args:
            source: int ids `[B, S]`, the prompts.
            max_length: number of steps, an int or a scalar tensor.
            num_hypotheses: hypotheses per sentence, an int or a scalar tensor.
            growing: as in `Transformer.start_search`. Default: True.
        """
        if can_fold(self, self.blocks):
            folded = FoldedLanguageModel(self.config, fold_language_model(self))
            return folded.start_search(source, max_length, num_hypotheses, growing=growing)

        def logits_of(source, ids):
            return self(ids, training=False)

        return start_unfolded(self, CausalLM, logits_of, source, max_length)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.settings["vocab_size"])

    def compute_output_spec(self, ids, training=None):
        return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype="float32")

    def get_config(self):
        return {**super().get_config(), **self.settings, **quantized_dtype(self)}
