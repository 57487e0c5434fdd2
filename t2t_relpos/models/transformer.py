"""The encoder-decoder Transformer."""

import keras
from keras import ops

from t2t_relpos import _checks
from t2t_relpos.backend import as_tensor, has_dynamic_shapes
from t2t_relpos.decoding import score_tokens
from t2t_relpos.layers.embeddings import (
    LearnedPositionEmbedding,
    SinusoidalPositionEncoding,
    TokenEmbedding,
)
from t2t_relpos.layers.layer_mixin import LayerMixin, quantized_dtype
from t2t_relpos.layers.packing import Packing
from t2t_relpos.layers.residual import Dropout, LayerNormalization
from t2t_relpos.layers.transformer_decoder import TransformerDecoder
from t2t_relpos.layers.transformer_encoder import TransformerEncoder
from t2t_relpos.models.config import NUM_TARGET_SPACES, TransformerConfig, check_config
from t2t_relpos.models.generation import (
    GenerationMixin,
    SearchFunctions,
    current_position,
    empty_state,
)


@keras.saving.register_keras_serializable(package="t2t_relpos")
class Transformer(GenerationMixin, LayerMixin, keras.Model):
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
        check_config(config)
        if config.relative_v2:
            raise ValueError(
                "Expected a model without encoder for relative_v2, tensor2tensor's "
                "self_attention_type dot_product_relative_v2: it has no vectors for keys after a "
                f"query. Received: position={config.position!r}. Use a CausalLM, or a relative "
                "`position`."
            )
        self.config = config
        policy = self.dtype_policy

        names = ("source_embedding", "target_embedding", "output_embedding")
        tables = embeddings(config, policy, names)
        self.source_embedding, self.target_embedding, self.output_embedding = tables
        self.source_position = position_layer(config, policy, "source_position")
        self.target_position = position_layer(config, policy, "target_position")
        self.embedding_dropout = Dropout(config.dropout, dtype=policy)
        arguments = block_arguments(config)
        self.encoder_layers = [
            TransformerEncoder(**arguments, dtype=policy, name=f"encoder_{i}")
            for i in range(config.num_encoder_layers)
        ]
        arguments["relative_cross_attention"] = config.relative_cross_attention
        self.decoder_layers = [
            TransformerDecoder(**arguments, dtype=policy, name=f"decoder_{i}")
            for i in range(config.num_decoder_layers)
        ]
        self.encoder_norm = final_norm(config, policy, "encoder_norm")
        self.decoder_norm = final_norm(config, policy, "decoder_norm")
        self._searches = SearchFunctions()
        self.build()

    def build(self, input_shape=None):
        """Creates all variables. Their shapes depend on the config only."""
        if self.built:
            return
        width = (None, None, self.config.hidden_dim)
        tables = self.source_embedding, self.target_embedding, self.output_embedding
        build_layers(tables, (None, None))
        build_layers((self.source_position, self.target_position, self.embedding_dropout), width)
        build_layers(self.encoder_layers, width)
        build_layers(self.decoder_layers, width, width)
        build_layers((self.encoder_norm, self.decoder_norm), width)
        if self.config.target_space_id is not None:
            self.target_space_embedding = self.add_weight(
                name="target_space_embedding",
                shape=(NUM_TARGET_SPACES, self.config.hidden_dim),
                initializer=keras.initializers.RandomNormal(stddev=self.config.hidden_dim**-0.5),
            )
        self.built = True

    @property
    def _source_vocab_size(self):
        return self.config.num_source_ids

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
            attention_layer: index of a decoder layer, from 0. Negative ones count from the last
                layer. Default: None, no weights.
            training: whether dropout is applied. Default: Keras's training mode.

        Raises:
            ValueError: if there is no such layer.
        """
        if attention_layer is not None:
            count = len(self.decoder_layers)
            attention_layer = _checks.layer_index(attention_layer, "attention_layer", count)
        states, attention = self._decode(inputs, attention_layer, training=training)
        return self._logits(states), attention

    def states(self, inputs, training=None):
        """Returns the decoder's outputs `[B, T, D]`, from which the call computes the logits.

        Use it for losses that do not need the tensor of all logits. Outputs at padding
        are undefined: TensorFlow without XLA does not compute them (see `Packing`).
        """
        # Packing needs dynamic shapes: the number of tokens changes from batch to batch.
        return self._decode(inputs, None, training=training, packed=has_dynamic_shapes())[0]

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

    def encode(self, source, max_length):
        """Returns the state before the first of at most `max_length` decoding steps.

        Args:
            source: int ids `[rows, S]`.
            max_length: number of steps that the caches have room for, an int or a scalar tensor.

        Returns:
            The state that `step` takes: a nested dict of tensors whose first dimension is rows. The
            entry under `"context"` never changes. All rows are at the same position.
        """
        encoded, mask = self.encode_source(source)
        context = {
            layer.name: layer.cross_attention.project_cache(encoded)
            for layer in self.decoder_layers
        }
        state = empty_state(self.decoder_layers, ops.shape(source)[0], max_length)
        return {"context": {"mask": mask, "caches": context}, **state}

    def step(self, ids, state):
        """Computes the logits of the next ids.

        Args:
            ids: int `[rows]`, the previous ids; 0 in the first step.
            state: the state that `encode` or the previous step returned.

        Returns:
            (logits `[rows, V]`, the state after this step).

        Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from t2t_relpos.decoding import beam_search
        >>> from t2t_relpos.models import Transformer
        >>> model = Transformer.from_preset("tiny", vocab_size=11)
        >>> state = model.encode(np.array([[5, 7, 1], [3, 1, 0]]), max_length=6)
        >>> result = beam_search(model.step, state, batch_size=2, max_length=6, beam_size=3)
        >>> tuple(result.ids.shape)
        (2, 1, 6)
        """
        context, position = state["context"], current_position(state)
        x = self.target_embedding(ops.expand_dims(ids, -1))
        if self.target_position is not None:
            x = self.target_position(x, start=position)
        caches = {}
        for layer in self.decoder_layers:
            x, caches[layer.name], _ = layer(
                x,
                encoder_padding_mask=context["mask"],
                self_attention_cache=state["caches"][layer.name],
                self_attention_cache_update_index=position,
                cross_attention_cache=context["caches"][layer.name],
                training=False,
            )
        logits = self._logits(self._normalize(x))[:, 0]
        return logits, {**state, "caches": caches, "position": state["position"] + 1}

    def score(self, source, targets, alpha=0.0, return_alignments=False, layer=None):
        """Returns the log-probabilities of given outputs.

        Args:
            source: int ids `[B, S]`, padded with 0.
            targets: int ids `[B, T]` including ends of sentences, padded with 0.
            alpha: exponent of the length penalty. With the same value, scores are equal to those
                of `beam_search`.
            return_alignments: whether to return (`TokenScores`, alignments).
            layer: index of the decoder layer whose cross-attention gives the alignments, from 0.
                Negative ones count from the last layer. Default: None, the last layer.

        Returns:
            `TokenScores`, or (`TokenScores`, alignments float32 `[B, T, S]`). Alignments are the
            cross-attention weights of the step that predicts `targets[:, t]`, the mean over the
            heads. They are 0 on padding of the source and not defined on padding of the targets.

        Raises:
            ValueError: if the decoder has no such layer, or `layer` is given without
                `return_alignments`.

        Example:
        >>> import numpy as np
        >>> from keras import ops
        >>> from t2t_relpos.models import Transformer
        >>> model = Transformer.from_preset("tiny", vocab_size=11)
        >>> source, targets = np.array([[5, 7, 9, 1]]), np.array([[3, 1, 0]])
        >>> scores, alignments = model.score(source, targets, return_alignments=True)
        >>> ops.convert_to_numpy(scores.lengths).tolist(), tuple(alignments.shape)
        ([2], (1, 3, 4))
        """
        number = None
        if return_alignments:
            number = -1 if layer is None else layer
            number = _checks.layer_index(number, "layer", len(self.decoder_layers))
        elif layer is not None:
            raise ValueError(
                "Expected `layer` only with `return_alignments=True`: it selects the alignments. "
                f"Received: layer={layer!r}"
            )
        inputs = {"inputs": as_tensor(source), "targets": as_tensor(targets)}
        logits, attention = self.logits_and_attention(
            inputs, attention_layer=number, training=False
        )
        scores = score_tokens(logits, inputs["targets"], alpha=alpha)
        if not return_alignments:
            return scores
        return scores, ops.mean(ops.cast(attention, "float32"), axis=1)

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


def embeddings(config, policy, names):
    """Returns a token embedding per name, or the same one for all if the config ties them."""
    size, width = config.vocab_size, config.hidden_dim
    if config.tie_embeddings:
        return [TokenEmbedding(size, width, dtype=policy, name="embedding")] * len(names)
    sizes = {"source_embedding": config.num_source_ids}
    return [TokenEmbedding(sizes.get(name, size), width, dtype=policy, name=name) for name in names]


def position_layer(config, policy, name):
    """Returns the layer that adds positions to embeddings, or None if the config has none."""
    if config.added_position == "learned":
        return LearnedPositionEmbedding(config.max_length, dtype=policy, name=name)
    if config.added_position == "sinusoidal":
        return SinusoidalPositionEncoding(dtype=policy, name=name)
    return None


def build_layers(layers, *shapes):
    """Builds each layer once. Some may be None."""
    for layer in dict.fromkeys(layers):
        if layer is not None:
            layer.build(*shapes)


def final_norm(config, policy, name):
    """Returns the normalization after the last block, or None with post-norm."""
    if not config.normalize_first:
        return None
    return LayerNormalization(epsilon=config.layer_norm_epsilon, dtype=policy, name=name)


def block_arguments(config):
    """Returns the arguments of an encoder or decoder block, without those of cross-attention."""
    names = (
        "intermediate_dim num_heads share_heads normalize_first dropout attention_dropout "
        "activation_dropout layer_norm_epsilon key_dim value_dim"
    )
    return {name: getattr(config, name) for name in names.split()} | {
        "use_bias": False,
        "max_relative_position": config.max_relative_position if config.relative else None,
        "use_key_table": config.relative and config.use_key_table,
        "use_value_table": config.relative and config.use_value_table,
    }
