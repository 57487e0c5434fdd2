"""The encoder-decoder Transformer."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos._backend import is_tensorflow_without_xla
from t2t_relpos.layers.layer_mixin import LayerMixin, quantized_dtype
from t2t_relpos.layers.packing import Packing
from t2t_relpos.layers.residual import Dropout
from t2t_relpos.models import transformer_layers
from t2t_relpos.models.config import NUM_TARGET_SPACES, TransformerConfig
from t2t_relpos.models.generation import GenerationMixin, SearchFunctions
from t2t_relpos.models.score_pairs import ScoresPairs
from t2t_relpos.models.transformer_steps import TransformerSteps


@keras.saving.register_keras_serializable(package="t2t_relpos")
class Transformer(TransformerSteps, GenerationMixin, ScoresPairs, LayerMixin, keras.Model):
    """An encoder-decoder Transformer, by default with relative positions only.

    Id 0 is padding and id 1 ends a sentence. Keys at padding positions of the source are masked.
    The model shifts targets right. The first input of the decoder is the zero vector.

    Args:
        config: a `TransformerConfig`.
        **kwargs: `name`, `dtype` of `keras.Model`.

    Call arguments:
        inputs: a dict of int ids: `"inputs"` `[B, S]`, `"targets"` `[B, T]`.
        training: whether dropout is applied.

    Returns:
        logits, float32 `[B, T, V]`. `logits[:, t]` predict `targets[:, t]`.

    Raises:
        ValueError: if the inputs are not such a dict, ids are not of rank 2, have a float dtype or,
            in eager calls, are out of range.

    Example:
    >>> import keras
    >>> import numpy as np
    >>> from t2t_relpos.models import Transformer, TransformerConfig
    >>> config = TransformerConfig.from_preset(
    ...     "tiny", vocab_size=11, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=8)
    >>> model = Transformer(config)
    >>> inputs, targets = np.array([[5, 7, 1]]), np.array([[3, 1]])
    >>> tuple(model({"inputs": inputs, "targets": targets}).shape)
    (1, 2, 11)

    To train it with Keras, pass the targets as inputs and labels, and weights of 0 for padding.

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

        names = ("source_embedding", "target_embedding", "output_embedding")
        tables = transformer_layers.embeddings(config, policy, names)
        self.source_embedding, self.target_embedding, self.output_embedding = tables
        self.source_position = transformer_layers.position(config, policy, "source_position")
        self.target_position = transformer_layers.position(config, policy, "target_position")
        self.embedding_dropout = Dropout(config.dropout, dtype=policy)
        self.encoder_layers = transformer_layers.encoder(config, policy)
        self.decoder_layers = transformer_layers.decoder(config, policy)
        self.encoder_norm = transformer_layers.final_norm(config, policy, "encoder_norm")
        self.decoder_norm = transformer_layers.final_norm(config, policy, "decoder_norm")
        self._searches = SearchFunctions()
        self.build()

    def build(self, input_shape=None):
        """Creates all variables. Their shapes depend on the config only."""
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
        >>> sizes = {"num_encoder_layers": 1, "num_decoder_layers": 1, "hidden_dim": 8}
        >>> Transformer.from_preset("tiny", vocab_size=11, **sizes).config.num_heads
        4
        """
        return cls(TransformerConfig.from_preset(preset, **settings))

    def export(self, filepath, *args, input_signature=None, **kwargs):
        """Exports the model like `keras.Model.export`, by default for any batch size and length."""
        if input_signature is None:
            ids = {"shape": (None, None), "dtype": "int32"}
            names = ("inputs", "targets")
            input_signature = [{name: keras.InputSpec(name=name, **ids) for name in names}]
        return super().export(filepath, *args, input_signature=input_signature, **kwargs)

    def compute_output_shape(self, input_shape):
        return (*input_shape["targets"], self.config.vocab_size)

    def compute_output_spec(self, inputs, training=None):
        shapes = {name: x.shape for name, x in inputs.items()}
        return keras.KerasTensor(self.compute_output_shape(shapes), dtype="float32")

    def call(self, inputs, training=None):
        _check_inputs(inputs)
        return self.logits_and_attention(inputs, training=training)[0]

    def logits_and_attention(self, inputs, attention_layer=None, training=None):
        """Returns the logits and a layer's cross-attention weights `[B, N, T, S]` or None.

        Args:
            inputs: as in a call of the model.
            attention_layer: index of a decoder layer, from 0. Default: None, no weights.
            training: whether dropout is applied. Default: Keras's training mode.

        Raises:
            ValueError: if there is no such layer.
        """
        count = len(self.decoder_layers)
        if attention_layer is not None and attention_layer not in range(count):
            raise ValueError(
                f"Expected `attention_layer` to be None or an int from 0 to {count - 1}. Received: "
                f"{attention_layer!r}."
            )
        states, attention = self._decode(inputs, attention_layer, training=training)
        return self._logits(states), attention

    def states(self, inputs, training=None):
        """Returns the decoder's outputs `[B, T, D]`, from which the call computes the logits.

        Use it for losses that do not need the tensor of all logits. Outputs at padding
        are undefined: TensorFlow without XLA does not compute them (see `Packing`).
        """
        # Packing needs dynamic shapes: the number of tokens changes from batch to batch.
        return self._decode(inputs, None, training=training, packed=is_tensorflow_without_xla())[0]

    def _decode(self, inputs, attention_layer, *, training, packed=False):
        encoded, mask, source_packing = self._encode(
            inputs["inputs"], training=training, packed=packed
        )
        x = self.target_embedding(inputs["targets"])
        # Shift the embeddings, not the ids: the gradient of a normalized zero vector may be
        # infinite, and a mask would not make it 0.
        x = ops.pad(x, [[0, 0], [1, 0], [0, 0]])[:, :-1]
        packing = Packing(ops.not_equal(inputs["targets"], 0)) if packed else None
        x = self._enter(x, self.target_position, packing, training=training)
        attention = None
        arguments = {"encoder_padding_mask": mask, "training": training}
        arguments |= {"packing": packing, "encoder_packing": source_packing}
        for number, layer in enumerate(self.decoder_layers):
            if number == attention_layer:
                x, attention = layer(x, encoded, return_attention_scores=True, **arguments)
            else:
                x = layer(x, encoded, **arguments)
        x = self._normalize(x)
        return x if packing is None else packing.unpack(x), attention

    def encode_source(self, source, training=None):
        """Returns the encoder's outputs `[B, S, D]`, and a mask `[B, S]`, False on padding."""
        return self._encode(source, training=training)[:2]

    def _encode(self, source, *, training, packed=False):
        mask = ops.not_equal(source, 0)
        x = self.source_embedding(source)
        if self.config.target_space_id is not None:
            space = ops.convert_to_tensor(self.target_space_embedding)
            x = x + ops.cast(space[self.config.target_space_id], x.dtype)
        packing = Packing(mask) if packed else None
        x = self._enter(x, self.source_position, packing, training=training)
        for layer in self.encoder_layers:
            x = layer(x, padding_mask=mask, packing=packing, training=training)
        return (x if self.encoder_norm is None else self.encoder_norm(x)), mask, packing

    def _enter(self, x, position, packing, *, training):
        """Returns the input of the first layer from embedded ids."""
        if position is not None:
            x = position(x)
        if packing is not None:
            x = packing.pack(x)
        return self.embedding_dropout(x, training=training)

    def _normalize(self, x):
        return x if self.decoder_norm is None else self.decoder_norm(x)

    def _logits(self, states):
        return ops.cast(self.output_embedding(states, reverse=True), "float32")

    def get_config(self):
        config = {**super().get_config(), "config": self.config.to_dict()}
        return {**config, **quantized_dtype(self)}

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
    advice, sizes = "Pass batches of the same size, each as one tensor.", {}
    for name, axes in (("inputs", "B S"), ("targets", "B T")):
        sizes = _checks.check(
            inputs[name], f"inputs[{name!r}]", axes, sizes=sizes, advice=advice, required=True
        )
