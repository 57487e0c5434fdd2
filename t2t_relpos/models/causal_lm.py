"""A decoder-only language model."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.backend import as_tensor, has_dynamic_shapes
from t2t_relpos.decoding import score_tokens
from t2t_relpos.layers.layer_mixin import LayerMixin, quantized_dtype
from t2t_relpos.layers.packing import Packing
from t2t_relpos.layers.residual import Dropout
from t2t_relpos.layers.transformer_decoder import TransformerDecoder
from t2t_relpos.models.config import TransformerConfig, check_config
from t2t_relpos.models.generation import (
    GenerationMixin,
    SearchFunctions,
    current_position,
    empty_state,
)
from t2t_relpos.models.transformer import (
    block_arguments,
    build_layers,
    embeddings,
    final_norm,
    position_layer,
)

# The defaults of arguments that a config replaces. Those of the others are None.
_DEFAULTS = {"dropout": 0.0, "share_heads": True}


@keras.saving.register_keras_serializable(package="t2t_relpos")
class CausalLM(GenerationMixin, LayerMixin, keras.Model):
    """A language model of decoder blocks with relative positions.

    Id 0 is padding and id 1 ends a text. The model shifts ids right: the logits at `t` predict
    `ids[:, t]`. For training, pass the same ids as inputs and labels.

    Args:
        vocab_size: V, number of ids.
        num_layers: number of decoder blocks.
        hidden_dim: D.
        intermediate_dim: width of the feed-forward networks.
        num_heads: N, number of heads. Must divide D.
        max_relative_position: clipping distance K, or a pair (left, right), of which only the left
            one matters.
        dropout: rate of the dropouts of embeddings, sublayers and attention weights. Default: 0.0.
        share_heads: whether the heads of a layer share relative tables. Default: True.
        config: a `TransformerConfig`, instead of the arguments above. It allows other positions,
            post-norm, and separate tables of embeddings and logits. The model has
            `num_decoder_layers` blocks and ignores the settings of an encoder. Its attention
            projections have no biases, as in tensor2tensor. Default: None.
        **kwargs: `name`, `dtype` of `keras.Model`.

    Call arguments:
        ids: int `[B, T]`.
        training: whether dropout is applied.

    Returns:
        logits, float32 `[B, T, V]`.

    Raises:
        ValueError: if a setting is missing, out of range, or given with `config`; if ids are not
            one tensor of rank 2, have a float dtype or, in eager calls, are out of range.

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
    >>> model.generate(ids[:, :2], max_length=6)[:, :2].tolist()
    [[5, 7], [3, 1]]

    With a config:

    >>> from t2t_relpos.models import TransformerConfig
    >>> config = TransformerConfig(
    ...     vocab_size=11, num_decoder_layers=1, hidden_dim=8, intermediate_dim=16, num_heads=2,
    ...     position="relative_v2+sinusoidal", max_relative_position=64)
    >>> CausalLM(config=config).generate(ids[:, :0], max_length=6).shape
    (2, 6)

    Reference: t2t `Transformer` without inputs, with `config`.
    """

    _continues_source = True
    _default_sampler = "greedy"

    def __init__(
        self,
        vocab_size=None,
        num_layers=None,
        hidden_dim=None,
        intermediate_dim=None,
        num_heads=None,
        max_relative_position=None,
        dropout=0.0,
        share_heads=True,
        *,
        config=None,
        **kwargs,
    ):
        super().__init__(**kwargs)
        settings = {
            "vocab_size": vocab_size,
            "num_layers": num_layers,
            "hidden_dim": hidden_dim,
            "intermediate_dim": intermediate_dim,
            "num_heads": num_heads,
            "max_relative_position": max_relative_position,
            "dropout": dropout,
            "share_heads": share_heads,
        }
        if config is None:
            self.config = _config_of(settings)
            distances = self.config.max_relative_position
            self.settings = settings | {"max_relative_position": distances}
        else:
            _check_config(config, settings)
            self.config = config
            self.settings = {"config": config.to_dict()}
        config, policy = self.config, self.dtype_policy
        self._searches = SearchFunctions()
        names = ("embedding", "output_embedding")
        self.embedding, self.output_embedding = embeddings(config, policy, names)
        self.position = position_layer(config, policy, "position")
        self.embedding_dropout = Dropout(config.dropout, dtype=policy)
        arguments = block_arguments(config) | {"relative_v2": config.relative_v2}
        self.blocks = [
            TransformerDecoder(
                **arguments | {"use_bias": "config" not in self.settings},
                dtype=policy,
                name=f"block_{i}",
            )
            for i in range(config.num_decoder_layers)
        ]
        self.norm = final_norm(config, policy, "norm")
        self.build()

    def build(self, input_shape=None):
        """Creates all variables. Their shapes depend on the settings only."""
        if self.built:
            return
        width = (None, None, self.config.hidden_dim)
        build_layers((self.embedding, self.output_embedding), (None, None))
        build_layers((self.position, self.embedding_dropout, *self.blocks, self.norm), width)
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
        return self._logits(self._states(ids, training=training))

    def states(self, ids, training=None):
        """Returns the outputs `[B, T, D]` from which the call computes the logits.

        Use it for losses that do not need the tensor of all logits. Outputs at padding are
        undefined, as for `Transformer.states`.
        """
        packing = Packing(ops.not_equal(ids, 0)) if has_dynamic_shapes() else None
        return self._states(ids, packing, training=training)

    def _states(self, ids, packing=None, *, training):
        x = ops.pad(self.embedding(ids), [[0, 0], [1, 0], [0, 0]])[:, :-1]
        if self.position is not None:
            x = self.position(x)
        if packing is not None:
            x = packing.pack(x)
        x = self.embedding_dropout(x, training=training)
        for block in self.blocks:
            x = block(x, packing=packing, training=training)
        x = self._normalize(x)
        return x if packing is None else packing.unpack(x)

    def _normalize(self, x):
        return x if self.norm is None else self.norm(x)

    def encode(self, source, max_length):
        """Returns the state of `step` before the first id, with room for `max_length` ids."""
        return empty_state(self.blocks, ops.shape(source)[0], max_length)

    def step(self, ids, state):
        """Computes the logits of the next ids.

        Args:
            ids: int `[rows]`, the previous ids. 0 in the first step.
            state: the state that `encode` or the previous step returned.

        Returns:
            (logits `[rows, V]`, the state after this step).
        """
        x, position, caches = self.embedding(ops.expand_dims(ids, -1)), current_position(state), {}
        if self.position is not None:
            x = self.position(x, start=position)
        for block in self.blocks:
            x, caches[block.name] = block(
                x,
                self_attention_cache=state["caches"][block.name],
                self_attention_cache_update_index=position,
                training=False,
            )
        logits = self._logits(self._normalize(x))[:, 0]
        return logits, {"caches": caches, "position": state["position"] + 1}

    def score(self, ids, alpha=0.0):
        """Returns the log-probabilities of given texts.

        Args:
            ids: int ids `[B, T]` including ends of texts, padded with 0.
            alpha: exponent of the length penalty. With the same value, scores are equal to those
                of `beam_search`.

        Returns:
            `TokenScores`.

        Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from t2t_relpos.models import CausalLM
        >>> model = CausalLM(11, 1, 8, 16, 2, 4)
        >>> scores = model.score(np.array([[5, 7, 9, 1], [3, 1, 0, 0]]))
        >>> ops.convert_to_numpy(scores.lengths).tolist(), tuple(scores.token_scores.shape)
        ([4, 2], (2, 4))
        """
        ids = as_tensor(ids)
        return score_tokens(self(ids, training=False), ids, alpha=alpha)

    def compute_output_shape(self, input_shape):
        return (*input_shape, self.vocab_size)

    def compute_output_spec(self, ids, training=None):
        return keras.KerasTensor(self.compute_output_shape(ids.shape), dtype="float32")

    def get_config(self):
        return {**super().get_config(), **self.settings, **quantized_dtype(self)}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        if "config" in config:
            config["config"] = TransformerConfig.from_dict(config["config"])
        return cls(**config)


def _config_of(settings):
    """Returns the `TransformerConfig` of the constructor's arguments.

    Raises:
        ValueError: if an argument is missing or out of range.
    """
    missing = [name for name, value in settings.items() if value is None]
    if missing:
        raise ValueError(
            f"Expected either `config`, or all arguments up to `max_relative_position`. "
            f"Received: no {', '.join(missing)}."
        )
    settings = dict(settings)
    layers = settings.pop("num_layers")
    _checks.positive_int(layers, "num_layers")
    return TransformerConfig(
        num_encoder_layers=layers,
        num_decoder_layers=layers,
        attention_dropout=settings["dropout"],
        layer_norm_epsilon=1e-5,
        **settings,
    )


def _check_config(config, settings):
    """Raises ValueError unless a config is the only setting."""
    check_config(config)
    given = [name for name, value in settings.items() if value != _DEFAULTS.get(name)]
    if given:
        raise ValueError(
            f"Expected no other settings with `config`. Received: {', '.join(given)}. Set them in "
            "the config."
        )
