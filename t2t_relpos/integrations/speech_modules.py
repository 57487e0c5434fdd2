"""Modules of transformers' speech models whose attention is computed by `attend`.

Each class is a subclass of the class of transformers with the same name. It has no weights of its
own, so that `replace_attention` only exchanges the classes of modules, and sets the attribute
`flash_attention` if it is True. Requires PyTorch and a version of transformers in `VERSIONS`.
"""

import functools
import inspect
import types

import torch
import transformers
from torch.distributed.fsdp import FSDPModule

# Refuses other backends of Keras, also if a saved model imports this module.
import t2t_relpos.integrations.torch  # noqa: F401
from t2t_relpos.attention.attend import attend
from t2t_relpos.attention.dropout import AttentionDropout

# (lowest, first that is not supported)
VERSIONS = ("5.18", "5.25")


def check_version():
    """Raises ImportError if this version of transformers is not known."""
    version = transformers.__version__
    number, *limits = (tuple(map(int, text.split(".")[:2])) for text in (version, *VERSIONS))
    if not limits[0] <= number < limits[1]:
        raise ImportError(
            f"Expected transformers >= {VERSIONS[0]} and < {VERSIONS[1]}, whose speech models this "
            f"version of t2t_relpos knows. Received: transformers {version}. Install one of these "
            "versions."
        )


check_version()

from transformers.models.seamless_m4t_v2 import modeling_seamless_m4t_v2 as seamless  # noqa: E402
from transformers.models.speecht5 import modeling_speecht5 as speecht5  # noqa: E402
from transformers.models.vits import modeling_vits as vits  # noqa: E402
from transformers.models.wav2vec2_bert import modeling_wav2vec2_bert as wav2vec2_bert  # noqa: E402

# The attention of all models


def _attend(module, projected, tables, distances, masks, chunks=None, **options):
    """Returns (outputs `[B, T, N * H]`, weights or None) of projected queries, keys and values.

    The options are `head_dim`, `dropout`, the rate in training, and `return_weights`.
    """
    shape = (*projected[0].shape[:-1], -1, options["head_dim"])
    query, key, value = (x.view(shape).transpose(1, 2) for x in projected)
    rate = options["dropout"] if module.training else 0
    linear_memory = getattr(module, "flash_attention", None)
    attend_all = functools.partial(
        attend,
        key_table=tables[0],
        value_table=tables[1] if len(tables) > 1 else None,
        max_relative_position=distances,
        dropout=AttentionDropout(rate) if rate else None,
        return_weights=options["return_weights"],
        rematerialize=linear_memory or (False if module.training else None),
    )
    run = attend_all if chunks is None else functools.partial(_attend_in_chunks, attend_all, chunks)
    outputs, weights = run(query * module.scaling, key, value, **masks)
    return outputs.transpose(1, 2).flatten(2), weights


def _attend_in_chunks(attend_all, chunks, query, key, value, key_mask=None):
    """Returns the results of `attend` for keys in the chunk of a query and the chunks before it."""
    (size, left), length = chunks, query.shape[2]
    if attend_all.keywords["return_weights"] and length > size:
        chunk = torch.arange(length, device=query.device) // size
        before = chunk[:, None] - chunk
        mask = (before >= 0) & (before <= (left if left >= 0 else length))
        return attend_all(query, key, value, mask=mask, key_mask=key_mask)
    outputs, weights = [], None
    for start in range(0, length, size):
        queries = slice(start, start + size)
        keys = slice(max(start - left * size, 0) if left >= 0 else 0, start + size)
        masks = {} if key_mask is None else {"key_mask": key_mask[:, keys]}
        x, weights = attend_all(query[:, :, queries], key[:, :, keys], value[:, :, keys], **masks)
        outputs.append(x)
    # Weights are returned of a single chunk only.
    return torch.cat(outputs, dim=2), weights


def _masks(attention_mask, batch_size):
    """Returns the arguments of `attend` for a mask, or None if `attend` has no such mask.

    It has masks `[B, 1, 1, S]` and `[B, 1, T, S]` that are bool, or float of 0 and the minimum of a
    dtype, unless torch.compile hides the values.
    """
    if attention_mask is None:
        return {}
    if not isinstance(attention_mask, torch.Tensor) or attention_mask.ndim != 4:
        return None
    if attention_mask.dtype != torch.bool:
        attention_mask = _as_bool(attention_mask)
    if attention_mask is None or attention_mask.shape[1:3] != (1, 1):
        return None if attention_mask is None else {"mask": attention_mask}
    return {"key_mask": attention_mask[:, 0, 0].expand(batch_size, -1)}


def _as_bool(mask):
    """Returns a mask of 0 and the minimum as bool, True = attend. None: it has other values."""
    if torch.compiler.is_compiling() or not mask.is_floating_point():
        return None
    # The minimum of bfloat16 is above that of float32.
    lowest = max(torch.finfo(dtype).min for dtype in (mask.dtype, torch.bfloat16))
    attended = mask == 0
    return attended if (attended | (mask <= lowest)).all() else None


def _key_mask(padding_mask, device):
    """Returns a padding mask `[B, S]` in the form `[B, 1, 1, S]`, which encoders hand on."""
    if padding_mask is None or padding_mask.ndim != 2:
        return padding_mask
    return padding_mask.to(device, torch.bool)[:, None, None, :]


def _key_mask_of_encoder(padding_mask, hidden_states):
    """Returns `_key_mask`. In a graph, it is not None.

    Without a mask, transformers' encoders of SpeechT5 and VITS would make a float mask
    `[B, 1, T, T]` there, whose values `_as_bool` can't read.
    """
    if padding_mask is None and torch.compiler.is_compiling():
        padding_mask = hidden_states.new_ones(hidden_states.shape[:2], dtype=torch.bool)
    return _key_mask(padding_mask, hidden_states.device)


class _Replaced:
    """Shows in its text form that `attend` computes the attention of a module."""

    def extra_repr(self):
        return ", ".join(filter(None, [super().extra_repr(), "attention by t2t_relpos"]))


# w2v-BERT 2.0 and SeamlessM4T v2
#
# Their encoders make a mask `[B, 1, T, T]` of a padding mask. So the exchanged encoders call those
# of transformers without it, and hand it on in the keyword arguments, which reach all layers. State
# of a module would be lost when gradient checkpointing calls a layer again.


def _conformer_attention(module, hidden_states, masks, options, chunks=None):
    """Returns (outputs `[B, T, D]`, weights or None) of a module with "relative_key" positions."""
    left, right = module.left_max_position_embeddings, module.right_max_position_embeddings
    asked = options.get("output_attentions")
    outputs, weights = _attend(
        module,
        [linear(hidden_states) for linear in (module.linear_q, module.linear_k, module.linear_v)],
        (module.distance_embedding(torch.arange(left + right + 1, device=hidden_states.device)),),
        (left, right),
        masks,
        chunks,
        head_dim=module.head_size,
        dropout=module.dropout.p,
        return_weights=bool(module.config.output_attentions if asked is None else asked),
    )
    return module.linear_out(outputs), weights


def _takes_key_mask(encoder):
    """Returns whether all layers of an encoder are exchanged."""
    layers = Wav2Vec2BertEncoderLayer, SeamlessM4Tv2ConformerEncoderLayer
    return all(
        isinstance(layer, layers) and isinstance(layer.self_attn, ATTENTIONS)
        for layer in encoder.layers
    )


def _zero_padding(hidden_states, padding_mask):
    """Returns hidden states that are 0 where a mask `[B, T]` is, as transformers' encoders do."""
    if padding_mask is None:
        return hidden_states
    return hidden_states.masked_fill(~padding_mask.bool().unsqueeze(-1), 0.0)


def _arguments_of_layer(hidden_states, attention_mask, **kwargs):
    """Returns the arguments of a layer of transformers, from those of an exchanged encoder."""
    if "key_mask" in kwargs:
        padding_mask = kwargs.pop("key_mask")
        attention_mask = _key_mask(padding_mask, hidden_states.device)
        kwargs["conv_attention_mask"] = padding_mask
    return {"attention_mask": attention_mask, **kwargs}


class Wav2Vec2BertSelfAttention(_Replaced, wav2vec2_bert.Wav2Vec2BertSelfAttention):
    """Attention of w2v-BERT 2.0 with `position_embeddings_type="relative_key"`."""

    def forward(
        self, hidden_states, attention_mask=None, relative_position_embeddings=None, **kwargs
    ):
        masks = _masks(attention_mask, hidden_states.shape[0])
        if masks is None or kwargs.get("is_causal"):
            return super().forward(
                hidden_states, attention_mask, relative_position_embeddings, **kwargs
            )
        return _conformer_attention(self, hidden_states, masks, kwargs)


class Wav2Vec2BertEncoderLayer(wav2vec2_bert.Wav2Vec2BertEncoderLayer):
    """Encoder layer of w2v-BERT 2.0 that takes the `key_mask` of the encoder."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        kwargs = _arguments_of_layer(hidden_states, attention_mask, **kwargs)
        return super().forward(hidden_states, **kwargs)


class Wav2Vec2BertEncoder(wav2vec2_bert.Wav2Vec2BertEncoder):
    """Encoder of w2v-BERT 2.0 that hands its padding mask on as `key_mask`."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        if kwargs.get("is_causal") or not _takes_key_mask(self):
            return super().forward(hidden_states, attention_mask, **kwargs)
        hidden_states = _zero_padding(hidden_states, attention_mask)
        return super().forward(hidden_states, key_mask=attention_mask, **kwargs)


class SeamlessM4Tv2ConformerSelfAttention(_Replaced, seamless.SeamlessM4Tv2ConformerSelfAttention):
    """Attention of SeamlessM4T v2's speech encoder.

    `chunks` is (frames of a chunk, chunks on the left that a frame attends to, or -1 for all).
    """

    def forward(self, hidden_states, attention_mask=None, chunks=None, **kwargs):
        masks = _masks(attention_mask, hidden_states.shape[0])
        if masks is None or kwargs.get("is_causal"):
            return super().forward(hidden_states, attention_mask, **kwargs)
        return _conformer_attention(self, hidden_states, masks, kwargs, chunks)


class SeamlessM4Tv2ConformerEncoderLayer(seamless.SeamlessM4Tv2ConformerEncoderLayer):
    """Encoder layer of SeamlessM4T v2 that takes the `key_mask` of the encoder."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        kwargs = _arguments_of_layer(hidden_states, attention_mask, **kwargs)
        return super().forward(hidden_states, **kwargs)


class SeamlessM4Tv2ConformerEncoder(seamless.SeamlessM4Tv2ConformerEncoder):
    """Encoder of SeamlessM4T v2 that hands its padding mask on as `key_mask`, and `chunks`."""

    def forward(self, hidden_states, attention_mask=None, **kwargs):
        chunks, size = None, self.config.speech_encoder_chunk_size
        if size is not None:
            chunks = size, self.config.speech_encoder_left_chunk_num
            # transformers ignores it beside a mask, which chunks always make.
            kwargs.pop("is_causal", None)
        if kwargs.get("is_causal") or not _takes_key_mask(self):
            return super().forward(hidden_states, attention_mask, **kwargs)
        hidden_states = _zero_padding(hidden_states, attention_mask)
        return super().forward(hidden_states, key_mask=attention_mask, chunks=chunks, **kwargs)

    def _apply_chunk_attention(self, attention_mask, hidden_states):
        """Returns no mask of pairs if layers take `chunks`."""
        if _takes_key_mask(self):
            return attention_mask
        return super()._apply_chunk_attention(attention_mask, hidden_states)


# SpeechT5


class SpeechT5Encoder(speecht5.SpeechT5Encoder):
    """Encoder of SpeechT5 that hands the padding mask on as `[B, 1, 1, T]`."""

    def forward(self, hidden_states, attention_mask=None, *args, **kwargs):
        attention_mask = _key_mask_of_encoder(attention_mask, hidden_states)
        return super().forward(hidden_states, attention_mask, *args, **kwargs)


class SpeechT5RelativePositionalEncoding(speecht5.SpeechT5RelativePositionalEncoding):
    """Returns the key table `[2M, H]` for the distances `(M - 1, M)`.

    Row `i` of the embedding is of the key at distance `M - i`, so the order of rows is reversed.
    """

    def forward(self, hidden_states):
        rows = torch.arange(2 * self.max_length, device=hidden_states.device)
        return self.pe_k(rows.flip(0))


class SpeechT5Attention(_Replaced, speecht5.SpeechT5Attention):
    """Attention of SpeechT5's encoder. Its `position_bias` is the key table."""

    def forward(
        self,
        hidden_states,
        *args,
        attention_mask=None,
        position_bias=None,
        output_attentions=False,
        **kwargs,
    ):
        masks = _masks(attention_mask, hidden_states.shape[0])
        if args or kwargs or masks is None or position_bias is None:
            return super().forward(
                hidden_states,
                *args,
                attention_mask=attention_mask,
                position_bias=_vectors_of_pairs(position_bias, hidden_states),
                output_attentions=output_attentions,
                **kwargs,
            )
        right = len(position_bias) // 2
        outputs, weights = _attend(
            self,
            [linear(hidden_states) for linear in (self.q_proj, self.k_proj, self.v_proj)],
            (position_bias,),
            (right - 1, right),
            masks,
            head_dim=self.head_dim,
            dropout=self.dropout,
            return_weights=bool(output_attentions),
        )
        return self.out_proj(outputs), weights


def _vectors_of_pairs(table, hidden_states):
    """Returns the vectors `[T, T, H]` that the encoder of transformers makes, or None."""
    if table is None:
        return None
    right = len(table) // 2
    positions = torch.arange(hidden_states.shape[1], device=hidden_states.device)
    return table[(positions - positions[:, None]).clamp(1 - right, right) + right - 1]


# VITS


class VitsEncoder(vits.VitsEncoder):
    """Text encoder of VITS that hands the padding mask on as `[B, 1, 1, T]`."""

    def forward(self, hidden_states, padding_mask, attention_mask=None, *args, **kwargs):
        if all(isinstance(layer.attention, VitsAttention) for layer in self.layers):
            attention_mask = _key_mask_of_encoder(attention_mask, hidden_states)
        return super().forward(hidden_states, padding_mask, attention_mask, *args, **kwargs)


class VitsAttention(_Replaced, vits.VitsAttention):
    """Attention of VITS's text encoder, whose vectors are zero beyond the window."""

    def forward(
        self,
        hidden_states,
        key_value_states=None,
        attention_mask=None,
        output_attentions=None,
    ):
        masks = _masks(attention_mask, hidden_states.shape[0])
        if masks is None:
            return super().forward(
                hidden_states, key_value_states, attention_mask, output_attentions
            )
        outputs, weights = _attend(
            self,
            [linear(hidden_states) for linear in (self.q_proj, self.k_proj, self.v_proj)],
            # One more distance on both sides, whose vector is zero.
            [torch.nn.functional.pad(x[0], (0, 0, 1, 1)) for x in (self.emb_rel_k, self.emb_rel_v)],
            self.window_size + 1,
            masks,
            head_dim=self.head_dim,
            dropout=self.dropout,
            return_weights=bool(output_attentions),
        )
        return self.out_proj(outputs), weights


# Exchange of classes

ATTENTIONS = (
    Wav2Vec2BertSelfAttention,
    SeamlessM4Tv2ConformerSelfAttention,
    SpeechT5Attention,
    VitsAttention,
)
# Class of transformers -> class of this module.
REPLACEMENTS = {
    replacement.__bases__[-1]: replacement
    for replacement in (
        *ATTENTIONS,
        Wav2Vec2BertEncoderLayer,
        Wav2Vec2BertEncoder,
        SeamlessM4Tv2ConformerEncoderLayer,
        SeamlessM4Tv2ConformerEncoder,
        SpeechT5Encoder,
        SpeechT5RelativePositionalEncoding,
        VitsEncoder,
    )
}
_EXCHANGED = tuple(REPLACEMENTS.values())
_ATTENTIONS_OF_TRANSFORMERS = tuple(kind.__bases__[-1] for kind in ATTENTIONS)


def exchange_classes(model, *, restore, flash_attention=None):
    """Exchanges the classes of modules. Returns the number of attention modules.

    If one of them can't be exchanged, nothing changes.
    """
    exchanges = _exchanges(model, restore=restore)
    for module, kind in exchanges:
        if type(module) is not kind:
            module.__class__ = kind
            if "_old_forward" in vars(module):
                module._old_forward = types.MethodType(kind.forward, module)
    attentions = [x for x, _ in exchanges if isinstance(x, _ATTENTIONS_OF_TRANSFORMERS)]
    for module in attentions:
        vars(module).pop("flash_attention", None)
        if flash_attention and not restore:
            module.flash_attention = True
    return len(attentions)


def check_module(model):
    """Raises ValueError unless a model is a module of PyTorch."""
    if isinstance(model, torch.nn.Module):
        return
    received = repr(model) if model is None or isinstance(model, str) else type(model).__name__
    hint = ""
    if isinstance(model, str):
        hint = " Load the model first, by `from_pretrained`."
    elif isinstance(getattr(model, "model", None), torch.nn.Module):
        hint = " Pass its attribute `model`."
    raise ValueError(f"Expected a `torch.nn.Module`. Received: {received}.{hint}")


def _check_not_compiled(model):
    """Raises ValueError if torch.compile has wrapped a module, which may keep the old attention."""
    for module in model.modules():
        if isinstance(module, torch._dynamo.OptimizedModule) or module._compiled_call_impl:
            raise ValueError(
                "Expected a model that is not compiled. Received: a "
                f"{type(getattr(module, '_orig_mod', module)).__name__} that torch.compile has "
                "compiled. Exchange the attention before `torch.compile` or `Module.compile`."
            )


def _exchanges(model, *, restore):
    """Returns pairs of a module and its class after the exchange, or raises ValueError."""
    check_module(model)
    _check_not_compiled(model)
    exchanges = []
    for name, module in _exchangeable(model).items():
        kind = type(module)
        if isinstance(module, FSDPModule):
            raise ValueError(
                f"Expected modules that `fully_shard` has not wrapped. Received: a "
                f"{kind.__name__}. Exchange the attention before `fully_shard`."
            )
        if isinstance(module, _EXCHANGED):
            kind = kind.__bases__[-1] if restore else kind
        elif overridden := _overridden(kind):
            if not restore:
                _check_may_stay(name, module, overridden)
            continue
        elif not restore:
            kind = _exchanged_class(kind)
        _check_forward(module)
        exchanges.append((module, kind))
    return exchanges


def _exchangeable(model):
    """Returns the modules whose classes are exchanged, by name, as they are."""
    found = {}
    for name, module in model.named_modules():
        if isinstance(module, speecht5.SpeechT5Encoder):
            # The decoder has modules of the same classes, without relative positions.
            kinds = (
                speecht5.SpeechT5Encoder,
                speecht5.SpeechT5Attention,
                speecht5.SpeechT5RelativePositionalEncoding,
            )
            inner = module.named_modules(prefix=name)
            found |= {inner_name: x for inner_name, x in inner if isinstance(x, kinds)}
        elif _has_relative_attention(module):
            found[name] = module
    return found


def _original(kind):
    """Returns the class of transformers that a class is, or is a subclass of."""
    return next(base for base in kind.__mro__ if base in REPLACEMENTS)


def _overridden(kind):
    """Returns the methods of a class of transformers that a subclass has its own of."""
    original = _original(kind)
    names = {
        name
        for base in kind.__mro__[: kind.__mro__.index(original)]
        for name, value in vars(base).items()
        # Classes of layers wrap `forward` of each subclass.
        if callable(value) and inspect.unwrap(value) is not _method(original, name)
    }
    return sorted(names & {"__call__", *vars(original)} - {"__init__"})


def _method(kind, name):
    return inspect.unwrap(getattr(kind, name, None))


@functools.cache
def _exchanged_class(kind):
    """Returns the class of this module for a class of transformers or an empty subclass of it."""
    replacement = REPLACEMENTS[_original(kind)]
    if kind in REPLACEMENTS:
        return replacement
    attributes = {"__module__": kind.__module__, "__doc__": kind.__doc__, "__reduce_ex__": _reduce}
    return type(kind.__name__, (replacement, kind), attributes)


def _reduce(module, protocol):
    """Pickles a module by the class that a program knows."""
    _, _, *state = object.__reduce_ex__(module, protocol)
    return _new_module, (type(module).__bases__[-1],), *state


def _new_module(kind):
    exchanged = _exchanged_class(kind)
    return exchanged.__new__(exchanged)


def _check_may_stay(name, module, overridden):
    """Raises ValueError if a module with methods of its own can't stay beside exchanged ones.

    Encoders and layers can: they hand masks of pairs on.
    """
    required = *_ATTENTIONS_OF_TRANSFORMERS, speecht5.SpeechT5RelativePositionalEncoding
    if isinstance(module, required):
        raise ValueError(
            f"Expected modules with the methods of transformers. Received: {name or 'a module'}, a "
            f"{type(module).__name__}, which is a {_original(type(module)).__name__} with methods "
            f"of its own: {', '.join(overridden)}. Nothing is exchanged. Use the class of "
            "transformers, or call `t2t_relpos.attention.attend` in your method."
        )


def _has_relative_attention(module):
    """Returns whether a module is attention with tables, or its layer or encoder."""
    if isinstance(module, vits.VitsEncoder):
        return all(_has_relative_attention(layer.attention) for layer in module.layers)
    encoders = wav2vec2_bert.Wav2Vec2BertEncoder, seamless.SeamlessM4Tv2ConformerEncoder
    if isinstance(module, encoders):
        return all(_has_relative_attention(layer) for layer in module.layers)
    if isinstance(module, vits.VitsAttention):
        return bool(module.window_size)
    layers = wav2vec2_bert.Wav2Vec2BertEncoderLayer, seamless.SeamlessM4Tv2ConformerEncoderLayer
    if isinstance(module, layers):
        return _has_relative_attention(module.self_attn)
    attentions = (
        wav2vec2_bert.Wav2Vec2BertSelfAttention,
        seamless.SeamlessM4Tv2ConformerSelfAttention,
    )
    return isinstance(module, attentions) and module.position_embeddings_type == "relative_key"


def _check_forward(module):
    """Raises ValueError if a `forward` of the instance would hide that of a new class.

    accelerate's hooks are such a `forward`. They call `_old_forward`, which is exchanged.
    """
    forward = vars(module).get("_old_forward", vars(module).get("forward"))
    if forward is not None and getattr(forward, "__func__", None) is not type(module).forward:
        raise ValueError(
            f"Expected modules without a `forward` of their own. Received: a "
            f"{type(module).__name__} whose `forward` is {forward!r}. It would hide the exchanged "
            "attention. Exchange the attention first."
        )


def attention_names(model):
    """Returns a description of the attention modules of a model, for an error."""
    names = {}
    for module in model.modules():
        name = type(module).__name__
        if "Attention" in name:
            kind = getattr(module, "position_embeddings_type", None)
            description = name if kind is None else f"{name} with position embeddings {kind!r}"
            names[description] = names.get(description, 0) + 1
    return ", ".join(f"{count} {name}" for name, count in names.items()) or "no attention module"
