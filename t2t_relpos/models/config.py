"""Architectures as a frozen dataclass that converts to and from JSON."""

import dataclasses

from t2t_relpos import _checks
from t2t_relpos._suggestions import did_you_mean
from t2t_relpos.models.presets import PRESETS

# Rows of tensor2tensor's target space embedding.
NUM_TARGET_SPACES = 32
_ADDED = ("sinusoidal", "learned")
_RELATIVE = ("relative", "relative_v2")
POSITIONS = (
    *_RELATIVE,
    *_ADDED,
    *(f"{relative}+{added}" for relative in _RELATIVE for added in _ADDED),
    "none",
)


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig:
    """Architecture of a `Transformer` or a `CausalLM`.

    Args:
        vocab_size: V, number of ids of source and target, including padding (0) and end of
            sentence (1).
        source_vocab_size: number of ids of the source, if it has a separate vocabulary. Requires
            `tie_embeddings=False`. Default: None, `vocab_size`. It has no effect in a `CausalLM`.
        num_encoder_layers: number of encoder layers. A `CausalLM` has none, whatever the number.
        num_decoder_layers: number of decoder layers.
        hidden_dim: D, the width of the model.
        intermediate_dim: width of the feed-forward networks.
        num_heads: N. Must divide D, unless `key_dim` and `value_dim` are set.
        position: "relative" (in every self-attention), "sinusoidal" or "learned" (added to the
            embeddings), "relative+sinusoidal", "relative+learned", or "none". With "relative_v2"
            instead of "relative", larger distances have no vectors, as in
            `RelativeMultiHeadAttentionV2`. Only a `CausalLM` supports it.
        max_relative_position: clipping distance K of relative positions, or a pair (left, right) of
            them. With "relative_v2", distances of K and more have no vectors.
        use_key_table: whether relative positions are added to keys (a^K in the paper's Table 3).
        use_value_table: whether relative positions are added to values (a^V).
        share_heads: whether the heads of a layer share relative tables.
        relative_cross_attention: whether the decoder's attention to the encoder
            has relative positions too. Requires a relative `position`.
        normalize_first: pre-norm (True) or post-norm (False).
        tie_embeddings: whether source, target and output share one `[V, D]`
            table. Otherwise there are three.
        dropout: dropout rate of embeddings and of the outputs of sublayers.
        attention_dropout: dropout rate of attention weights.
        activation_dropout: dropout rate inside the feed-forward networks.
        layer_norm_epsilon: epsilon of the layer normalizations.
        max_length: number of learned positions.
        target_space_id: row of t2t's target space embedding, which is added to
            every encoder position. None: no such embedding.
        key_dim: H, size of an attention head for queries and keys. Default: None, D / N.
        value_dim: size of an attention head for values. Default: None, D / N.

    Raises:
        ValueError: if a setting is out of range.

    Example:
    >>> from t2t_relpos.models import TransformerConfig
    >>> config = TransformerConfig.from_preset(
    ...     "tiny", vocab_size=11, num_encoder_layers=1, num_decoder_layers=1, hidden_dim=8)
    >>> config.hidden_dim, config.max_relative_position, config.dropout
    (8, 16, 0.3)
    >>> TransformerConfig.from_dict(config.to_dict()) == config
    True
    """

    vocab_size: int
    num_encoder_layers: int = 6
    num_decoder_layers: int = 6
    hidden_dim: int = 512
    intermediate_dim: int = 2048
    num_heads: int = 8
    position: str = "relative"
    max_relative_position: int | tuple[int, int] = 16
    use_key_table: bool = True
    use_value_table: bool = True
    share_heads: bool = True
    relative_cross_attention: bool = False
    normalize_first: bool = True
    tie_embeddings: bool = True
    dropout: float = 0.1
    attention_dropout: float = 0.0
    activation_dropout: float = 0.0
    layer_norm_epsilon: float = 1e-6
    max_length: int = 256
    target_space_id: int | None = None
    key_dim: int | None = None
    value_dim: int | None = None
    source_vocab_size: int | None = None

    def __post_init__(self):
        for field in dataclasses.fields(self):
            name, value = field.name, _checks.plain(getattr(self, field.name))
            object.__setattr__(self, name, value)
            if field.type is int:
                _checks.positive_int(value, name)
            elif field.type is bool and not isinstance(value, bool):
                raise ValueError(
                    f"Expected `{name}` to be True or False. Received: {name}={value!r}"
                )
        self._check_sizes()
        for name in ("dropout", "attention_dropout", "activation_dropout"):
            _checks.rate(getattr(self, name), name)
        self._check_position()
        if not self.layer_norm_epsilon > 0:
            raise ValueError(
                "Expected `layer_norm_epsilon` above 0. "
                f"Received: layer_norm_epsilon={self.layer_norm_epsilon!r}"
            )
        if self.target_space_id not in (None, *range(NUM_TARGET_SPACES)):
            raise ValueError(
                f"Expected `target_space_id` to be None or in [0, {NUM_TARGET_SPACES}). "
                f"Received: target_space_id={self.target_space_id!r}"
            )

    def _check_sizes(self):
        """Raises ValueError if optional sizes are not positive, or sizes contradict each other."""
        for name in ("key_dim", "value_dim", "source_vocab_size"):
            if getattr(self, name) is not None:
                _checks.positive_int(getattr(self, name), name)
        if None in (self.key_dim, self.value_dim) and self.hidden_dim % self.num_heads:
            raise ValueError(
                "Expected `num_heads` to divide `hidden_dim`, or both `key_dim` and `value_dim`. "
                f"Received: num_heads={self.num_heads}, hidden_dim={self.hidden_dim}"
            )
        if self.tie_embeddings and self.source_vocab_size not in (None, self.vocab_size):
            raise ValueError(
                "Expected `tie_embeddings=False` with `source_vocab_size`, because tables of "
                f"{self.source_vocab_size} and {self.vocab_size} ids can't be the same. Received: "
                "tie_embeddings=True."
            )

    def _check_position(self):
        """Raises ValueError if the settings of positions are out of range."""
        distances = _checks.max_relative_position(self.max_relative_position)
        if self.relative_v2:
            _checks.one_distance(distances, f"position={self.position!r}")
        object.__setattr__(self, "max_relative_position", distances)
        if self.position not in POSITIONS:
            raise ValueError(
                f"Expected `position` to be one of {', '.join(POSITIONS)}. "
                f"Received: position={self.position!r}"
            )
        if self.relative_cross_attention and not self.relative:
            raise ValueError(
                "Expected a relative `position` with relative_cross_attention. "
                f"Received: position={self.position!r}"
            )

    @property
    def relative(self):
        """Whether self-attentions use relative positions."""
        return self.position.startswith("relative")

    @property
    def relative_v2(self):
        """Whether only distances below K have vectors."""
        return self.position.startswith("relative_v2")

    @property
    def added_position(self):
        """The position encoding that is added to embeddings: "sinusoidal", "learned" or None."""
        added = self.position.rpartition("+")[2]
        return added if added in _ADDED else None

    @property
    def num_positions(self):
        """The number of learned positions, or None if lengths have no limit."""
        return self.max_length if self.added_position == "learned" else None

    @property
    def num_source_ids(self):
        """The number of ids of the source."""
        return self.source_vocab_size or self.vocab_size

    @property
    def head_dims(self):
        """Sizes of an attention head: (for queries and keys, for values)."""
        default = self.hidden_dim // self.num_heads
        return self.key_dim or default, self.value_dim or default

    @classmethod
    def from_preset(cls, preset, **settings):
        """Returns the config of a preset with some settings replaced.

        Args:
            preset: a key of `t2t_relpos.models.PRESETS`.
            **settings: `vocab_size`, which no preset has, and other settings to
                replace.

        Raises:
            ValueError: if there is no such preset or setting.
        """
        if preset not in PRESETS:
            raise ValueError(
                f"Expected `preset` to be one of {', '.join(sorted(PRESETS))}. "
                f"Received: {preset!r}.{did_you_mean(preset, PRESETS)}"
            )
        return cls.from_dict({**PRESETS[preset], **settings})

    @classmethod
    def from_dict(cls, settings):
        """Returns the config that `to_dict` converted to a dict.

        Raises:
            ValueError: if a name is unknown, `vocab_size` is missing or a value is invalid.
        """
        names = [field.name for field in dataclasses.fields(cls)]
        for name in settings:
            if name not in names:
                raise ValueError(
                    f"Expected names of settings among {', '.join(names)}. "
                    f"Received: {name!r}.{did_you_mean(name, names)}"
                )
        if "vocab_size" not in settings:
            raise ValueError("Expected `vocab_size`, which no preset sets. Received: none.")
        return cls(**settings)

    def to_dict(self):
        """Returns all settings as a dict of JSON types."""
        settings = dataclasses.asdict(self)
        return {name: list(x) if isinstance(x, tuple) else x for name, x in settings.items()}


def check_config(config):
    """Raises ValueError unless a model's argument `config` is a `TransformerConfig`."""
    if not isinstance(config, TransformerConfig):
        raise ValueError(
            "Expected `config` to be a TransformerConfig, for instance "
            "TransformerConfig.from_preset('tiny', vocab_size=8000). "
            f"Received: {config!r}"
        )
