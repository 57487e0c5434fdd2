"""The encoder-decoder Transformer."""

import keras
from keras import ops

from t2t_relpos._backend import is_tensorflow_without_xla
from t2t_relpos.layers.dropout import Dropout
from t2t_relpos.layers.layer_normalization import LayerNormalization
from t2t_relpos.layers.packing import Packing
from t2t_relpos.layers.position_encodings import (
    LearnedPositionEmbedding,
    SinusoidalPositionEncoding,
)
from t2t_relpos.layers.token_embedding import TokenEmbedding
from t2t_relpos.layers.transformer_decoder import TransformerDecoder
from t2t_relpos.layers.transformer_encoder import TransformerEncoder
from t2t_relpos.models.config import TransformerConfig
from t2t_relpos.models.generation import Generates, SearchFunctions
from t2t_relpos.models.score_pairs import ScoresPairs

NUM_TARGET_SPACES = 32


@keras.saving.register_keras_serializable(package="t2t_relpos")
class Transformer(Generates, ScoresPairs, keras.Model):
    """An encoder-decoder Transformer, by default with relative positions only.

    Ids: 0 is padding (and, as the first input of the decoder, "go": the zero
    vector), 1 ends a sentence. Padded source positions are hidden as keys. The
    targets are shifted right inside.

    Args:
        config: a `TransformerConfig`.
        **kwargs: `name`, `dtype` of `keras.Model`.

    Call arguments:
        inputs: a dict of int ids: `"inputs"` `[B, S]`, `"targets"` `[B, T]`.
        training: whether dropouts are on.

    Returns:
        logits, float32 `[B, T, V]`; those at `t` predict `targets[:, t]`.

    Raises:
        ValueError: ids of a float dtype or, in eager calls, out of range.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from t2t_relpos.models import Transformer, TransformerConfig
    >>> small = {"num_encoder_layers": 1, "num_decoder_layers": 1}
    >>> model = Transformer(TransformerConfig.from_preset("tiny", vocab_size=11, **small))
    >>> inputs, targets = np.array([[5, 7, 1]]), np.array([[3, 1]])
    >>> tuple(model({"inputs": inputs, "targets": targets}).shape)
    (1, 2, 11)

    Plain Keras trains it: the targets are also the labels, and padding has no
    weight.

    >>> loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    >>> model.compile("adam", loss)
    >>> data = {"inputs": inputs, "targets": targets}
    >>> history = model.fit(data, targets, sample_weight=(targets != 0), verbose=0)

    Reference: Shaw et al. 2018; Vaswani et al. 2017; t2t `Transformer`.
    """

    def __init__(self, config, **kwargs):
        super().__init__(**kwargs)
        if not isinstance(config, TransformerConfig):
            raise ValueError(
                "Expected `config` to be a TransformerConfig, for instance "
                "TransformerConfig.from_preset('tiny', vocab_size=8000). "
                f"Received: {config!r}"
            )
        self.config = config
        policy = self.dtype_policy

        def embedding(name):
            return TokenEmbedding(config.vocab_size, config.hidden_dim, dtype=policy, name=name)

        self.source_embedding = embedding(
            "embedding" if config.tie_embeddings else "source_embedding"
        )
        if config.tie_embeddings:
            self.target_embedding = self.output_embedding = self.source_embedding
        else:
            self.target_embedding = embedding("target_embedding")
            self.output_embedding = embedding("output_embedding")
        self.source_position = self._position_layer("source_position")
        self.target_position = self._position_layer("target_position")
        self.embedding_dropout = Dropout(config.dropout, dtype=policy)
        self.encoder_layers = [
            self._block(TransformerEncoder, f"encoder_{i}")
            for i in range(config.num_encoder_layers)
        ]
        self.decoder_layers = [
            self._block(TransformerDecoder, f"decoder_{i}")
            for i in range(config.num_decoder_layers)
        ]
        self.encoder_norm = self._final_norm("encoder_norm")
        self.decoder_norm = self._final_norm("decoder_norm")
        self._searches = SearchFunctions()
        self.build()

    def _position_layer(self, name):
        if self.config.position == "learned":
            return LearnedPositionEmbedding(
                self.config.max_length, dtype=self.dtype_policy, name=name
            )
        if self.config.position.endswith("sinusoidal"):
            return SinusoidalPositionEncoding(dtype=self.dtype_policy, name=name)
        return None

    def _block(self, block, name):
        config = self.config
        relative = config.relative
        extra = {}
        if block is TransformerDecoder:
            extra["relative_cross_attention"] = config.relative_cross_attention
        return block(
            config.intermediate_dim,
            config.num_heads,
            use_bias=False,
            max_relative_position=config.max_relative_position if relative else None,
            use_key_table=relative and config.use_key_table,
            use_value_table=relative and config.use_value_table,
            share_heads=config.share_heads,
            normalize_first=config.normalize_first,
            dropout=config.dropout,
            attention_dropout=config.attention_dropout,
            activation_dropout=config.activation_dropout,
            layer_norm_epsilon=config.layer_norm_epsilon,
            dtype=self.dtype_policy,
            name=name,
            **extra,
        )

    def _final_norm(self, name):
        if not self.config.normalize_first:
            return None
        epsilon = self.config.layer_norm_epsilon
        return LayerNormalization(epsilon=epsilon, dtype=self.dtype_policy, name=name)

    def build(self, input_shape=None):
        """Makes all variables; their shapes depend on the config only."""
        if self.built:
            return
        width = (None, None, self.config.hidden_dim)
        for embedding in (self.source_embedding, self.target_embedding, self.output_embedding):
            if not embedding.built:
                embedding.build((None, None))
        for position in (self.source_position, self.target_position):
            if position is not None:
                position.build(width)
        self.embedding_dropout.build(width)
        for layer in self.encoder_layers:
            layer.build(width)
        for layer in self.decoder_layers:
            layer.build(width, width)
        for norm in (self.encoder_norm, self.decoder_norm):
            if norm is not None:
                norm.build(width)
        if self.config.target_space_id is not None:
            self.target_space_embedding = self.add_weight(
                name="target_space_embedding",
                shape=(NUM_TARGET_SPACES, self.config.hidden_dim),
                initializer=keras.initializers.RandomNormal(stddev=self.config.hidden_dim**-0.5),
            )
        self.built = True

    @property
    def vocab_size(self):
        """V, the number of ids."""
        return self.config.vocab_size

    @classmethod
    def from_preset(cls, preset, **settings):
        """Returns an untrained model with the sizes of a preset.

        Args:
            preset: a key of `t2t_relpos.models.PRESETS`.
            **settings: `vocab_size`, and any other fields of `TransformerConfig` to replace.

        Example:
        >>> from t2t_relpos.models import Transformer
        >>> Transformer.from_preset("tiny", vocab_size=11).config.num_heads
        4
        """
        return cls(TransformerConfig.from_preset(preset, **settings))

    def export(self, filepath, *args, input_signature=None, **kwargs):
        """Exports the model as `keras.Model.export`, by default for any batch size and length."""
        if input_signature is None:
            ids = keras.InputSpec(shape=(None, None), dtype="int32")
            input_signature = [{"inputs": ids, "targets": ids}]
        return super().export(filepath, *args, input_signature=input_signature, **kwargs)

    def compute_output_shape(self, input_shape):
        return (*input_shape["targets"], self.config.vocab_size)

    def call(self, inputs, training=None):
        _check_inputs(inputs)
        return self.logits_and_attention(inputs, training=training)[0]

    def logits_and_attention(self, inputs, attention_layer=None, training=None):
        """Returns the logits and a layer's cross-attention weights `[B, N, T, S]` or None."""
        states, attention = self._decode(inputs, attention_layer, training)
        return self._logits(states), attention

    def states(self, inputs, training=None):
        """What the call multiplies with the rows of `output_embedding`: `[B, T, D]`.

        For losses that make no tensor of all logits, or fewer of them. What
        stands after the last target of a row means nothing: on TensorFlow, but
        with XLA, padding is not computed (see `Packing`).
        """
        # The number of tokens changes from batch to batch.
        return self._decode(inputs, None, training, packed=is_tensorflow_without_xla())[0]

    def _decode(self, inputs, attention_layer, training, packed=False):
        encoded, mask, of_source = self._encode(inputs["inputs"], training, packed)
        x = self.target_embedding(inputs["targets"])
        # Not the ids: the gradient of what stands first, of zeros that are normalized, may be
        # infinite, and no mask makes that 0.
        x = ops.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        packing = Packing(ops.not_equal(inputs["targets"], 0)) if packed else None
        x = self._enter(x, self.target_position, packing, training)
        attention = None
        arguments = {"encoder_padding_mask": mask, "training": training}
        arguments |= {"packing": packing, "encoder_packing": of_source}
        for number, layer in enumerate(self.decoder_layers):
            if number == attention_layer:
                x, attention = layer(x, encoded, return_attention_scores=True, **arguments)
            else:
                x = layer(x, encoded, **arguments)
        x = self._normalize(x)
        return x if packing is None else packing.unpack(x), attention

    def encode_source(self, source, training=None):
        """The encoder only: ids `[B, S]` -> (`[B, S, D]`, bool `[B, S]`, True = real)."""
        return self._encode(source, training)[:2]

    def _encode(self, source, training, packed=False):
        mask = ops.not_equal(source, 0)
        x = self.source_embedding(source)
        if self.config.target_space_id is not None:
            space = ops.convert_to_tensor(self.target_space_embedding)
            x = x + ops.cast(space[self.config.target_space_id], x.dtype)
        packing = Packing(mask) if packed else None
        x = self._enter(x, self.source_position, packing, training)
        for layer in self.encoder_layers:
            x = layer(x, padding_mask=mask, packing=packing, training=training)
        return (x if self.encoder_norm is None else self.encoder_norm(x)), mask, packing

    def _enter(self, x, position, packing, training):
        """What the first layer takes of embedded ids."""
        if position is not None:
            x = position(x)
        if packing is not None:
            x = packing.pack(x)
        return self.embedding_dropout(x, training=training)

    def _normalize(self, x):
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def _logits(self, states):
        return ops.cast(self.output_embedding(states, reverse=True), "float32")

    def encode(self, source, max_length):
        """Encodes sources and starts a decoding of at most `max_length` steps.

        Args:
            source: int ids `[rows, S]`.
            max_length: number of steps that the caches have room for, an int or
                a scalar tensor.

        Returns:
            The state that `step` takes: a nested dict; the first dimension of
            every tensor is rows. The entry under `"context"` stays the same
            from step to step.
        """
        encoded, mask = self.encode_source(source)
        rows = ops.shape(source)[0]
        layers = self.decoder_layers
        return {
            "context": {
                "mask": mask,
                "layers": {layer.name: layer.project_encoded(encoded) for layer in layers},
            },
            "cache": {layer.name: layer.start_cache(rows, max_length) for layer in layers},
            "position": ops.zeros((rows,), dtype="int32"),
        }

    def step(self, ids, state):
        """One step of decoding.

        Args:
            ids: int `[rows]`, the ids chosen last; 0 at the first step.
            state: as `encode` and this method return it.

        Returns:
            (logits `[rows, V]` of the next ids, the state after this step).
        """
        context, position = state["context"], state["position"]
        x = self.target_embedding(ops.expand_dims(ids, -1))
        if self.target_position is not None:
            x = self.target_position(x, start=position)
        cache = {}
        for layer in self.decoder_layers:
            x, cache[layer.name] = layer.step(
                x,
                state["cache"][layer.name],
                position,
                context["layers"][layer.name],
                context["mask"],
            )
        state = {"context": context, "cache": cache, "position": position + 1}
        return self._logits(self._normalize(x))[:, 0], state

    def get_config(self):
        return {**super().get_config(), "config": self.config.to_dict()}

    @classmethod
    def from_config(cls, config):
        config = dict(config)
        return cls(TransformerConfig.from_dict(config.pop("config")), **config)


def _check_inputs(inputs):
    names = {"inputs", "targets"}
    if not isinstance(inputs, dict) or not names <= inputs.keys():
        received = f"keys {sorted(inputs)}" if isinstance(inputs, dict) else type(inputs).__name__
        raise ValueError(
            "Expected a dict of int ids with the keys 'inputs' [B, S] and 'targets' [B, T]. "
            f"Received: {received}."
        )
