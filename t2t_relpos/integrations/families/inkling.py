"""Inkling, Inkling 2 and Inkling 2 Loop: language models without other positions than a^K.

Scores are `scale * q·k + r·A[i - j]`, causal, in a part of the layers in a sliding window. A has
`rel_extent` columns and is zero at larger distances, and r has a projection of its own. Inkling 2
adds a sink for each query. transformers makes masks, and for Inkling 2 distances, of `[T, S]` in
the text model. The exchanged text model hands a padding mask on as `[B, 1, 1, S]` instead, and the
distance of the first query and the first key in place of the distances.
"""

import copy
import functools

import torch
from torch.nn.functional import pad

from t2t_relpos.attention.attend import attend
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.masks import make_attention_mask
from t2t_relpos.integrations.exchange import is_exchanged
from t2t_relpos.integrations.families import Family
from t2t_relpos.integrations.families.attention import key_mask, mask_arguments


def _attend(module, query, key, value, table, masks, offset, **options):
    """Returns outputs `[B, T, N * H]` of an attention module.

    Args:
        module: the module.
        query: `[B, N, T, H]`, scaled.
        key: `[B, G, S, H]`, with those of the cache.
        value: `[B, G, S, H]`.
        table: `[D, rel_extent]`, columns by the distance i - j.
        masks: the result of `mask_arguments`.
        offset: key position of query 0.
        **options: `relative_query` and `sinks` of `attend`.
    """
    rate = module.attention_dropout if module.training else 0
    linear_memory = getattr(module, "flash_attention", None)
    outputs, _ = attend(
        query,
        key,
        value,
        table.T.flip(0),
        max_relative_position=(module.rel_extent - 1, 0),
        beyond="zero",
        query_offset=offset,
        dropout=AttentionDropout(rate) if rate else None,
        return_weights=False,
        rematerialize=linear_memory or (False if module.training else None),
        **masks,
        **_position_masks(module, (query.shape[2], key.shape[2]), masks, offset),
        **options,
    )
    return outputs.transpose(1, 2).flatten(2)


def _position_masks(module, lengths, masks, offset):
    """Returns the arguments of `attend` for causal attention in the sliding window of a module.

    A mask of pairs that a program has made may allow other keys. Those that transformers makes of
    packed sequences don't.
    """
    window = module.sliding_window
    if "mask" in masks:
        allowed = make_attention_mask(lengths, causal=True, window=window, query_offset=offset)
        if allowed is not None and (masks["mask"] & ~allowed).any():
            return {}
    return {"causal": True, "sliding_window": window}


def _is_special(module, options):
    """Returns whether transformers computes a call: weights are returned, or it is not causal."""
    weights = options.get("output_attentions", getattr(module.config, "output_attentions", False))
    causal = options.get("is_causal", getattr(module.config, "is_causal", True))
    return weights or causal is False or "past_key_values" in options


class RelativeLogits:
    """Returns the table of Inkling. It is called as a module, so that hooks can load the table."""

    def forward(self, relative_states, *positions):
        return super().forward(relative_states, *positions) if positions else self.proj


class Attention:
    """Attention of Inkling."""

    def forward(self, hidden_states, attention_mask=None, conv_mask=None, cache=None, **kwargs):
        masks = mask_arguments(attention_mask, hidden_states.shape[0])
        if masks is None or _is_special(self, kwargs):
            return super().forward(hidden_states, attention_mask, conv_mask, cache, **kwargs)
        key = self.k_sconv(self.k_proj(hidden_states), cache=cache, conv_mask=conv_mask)
        value = self.v_sconv(self.v_proj(hidden_states), cache=cache, conv_mask=conv_mask)
        query = self.q_norm(self.q_proj(hidden_states).unflatten(-1, (self.num_heads, -1)))
        relative_query = self.r_proj(hidden_states).unflatten(-1, (self.num_heads, -1))
        query, relative_query = query.transpose(1, 2), relative_query.transpose(1, 2)
        key = self.k_norm(key.unflatten(-1, (-1, self.head_dim))).transpose(1, 2)
        value = value.unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
        position = offset = 0
        if cache is not None:
            position, offset = _offsets(cache, query.shape[2], self.layer_idx)
            key, value = cache.update(key, value, self.layer_idx, kwargs=kwargs)
        query = query * self.scaling
        if not self.is_sliding and self.config.log_scaling_n_floor is not None:
            numbers = torch.arange(1, query.shape[2] + 1, device=query.device) + position
            tau = (numbers.float() / self.config.log_scaling_n_floor).clamp(min=1.0).log()
            tau = (1.0 + self.config.log_scaling_alpha * tau)[:, None]
            query, relative_query = ((x.float() * tau).to(x.dtype) for x in (query, relative_query))
        table = self.rel_logits_proj(relative_query)
        outputs = _attend(
            self, query, key, value, table, masks, offset, relative_query=relative_query
        )
        return self.o_proj(outputs), None


class RelativePositionBias:
    """Returns the relative queries `[B, N, T, D]` and the table of Inkling 2 if there are offsets.

    It returns the bias `[B, N, T, S]` if `relative_distance` is a tensor.
    """

    def forward(self, hidden_states, relative_distance, position_ids):
        if isinstance(relative_distance, torch.Tensor):
            return super().forward(hidden_states, relative_distance, position_ids)
        relative_query = self.linear(hidden_states).unflatten(-1, (self.num_heads, -1))
        return self.norm(relative_query, position_ids).transpose(1, 2), self.proj


class Attention2:
    """Attention of Inkling 2 and Inkling 2 Loop.

    `relative_distance` is a tensor of transformers, or the key position of query 0.
    """

    def forward(self, hidden_states, *args, **kwargs):
        masks = mask_arguments(kwargs.get("attention_mask"), hidden_states.shape[0])
        if args or masks is None or _is_special(self, kwargs):
            return super().forward(hidden_states, *args, **kwargs)
        kwargs.pop("attention_mask", None)
        outputs = self._attend(hidden_states, masks, **kwargs)
        return self.o_proj(outputs, hidden_states), None

    def _attend(
        self,
        hidden_states,
        masks,
        *,
        relative_distance,
        key_hidden_states=None,
        value_hidden_states=None,
        **options,
    ):
        key_inputs = hidden_states if key_hidden_states is None else key_hidden_states
        value_inputs = hidden_states if value_hidden_states is None else value_hidden_states
        position_ids = options["position_ids"]
        query = self.q_proj(hidden_states, position_ids) * self.scaling
        key, value = self.k_proj(key_inputs, **options), self.v_proj(value_inputs, **options)
        if (cache := options.pop("cache", None)) is not None:
            layer = self.layer_idx + options.pop("cache_offset", 0)
            key, value = cache.update(key, value, layer, kwargs=options)
        offset = relative_distance
        if isinstance(offset, torch.Tensor):
            offset = int(offset[0, 0])
        relative_query, table = self.relative_position_bias(hidden_states, offset, position_ids)
        tensors = {
            "relative_query": relative_query,
            "sinks": self.sink_proj(hidden_states).transpose(1, 2),
        }
        return _attend(self, query, key, value, table, masks, offset, **tensors)


# Text models


def _offsets(cache, length, layer):
    """Returns positions of query 0, by all tokens and by the keys that a layer of a cache keeps."""
    position = cache.get_query_offset(layer)
    return position, int(position - cache.get_mask_sizes(length, layer)[1])


def _first_layers(model):
    """Returns the first layer of each type that a text model has, by the name of masks."""
    types = {"hybrid": "full_attention", "hybrid_sliding": "sliding_attention"}
    layers = {}
    for index, layer_type in enumerate(model.config.layer_types):
        layers.setdefault(types[layer_type], index)
    return layers


def _padding_masks(model, inputs, attention_mask, position_ids, cache, options):
    """Returns masks of keys by type of layer, or None if transformers makes masks of pairs.

    `inputs` are tokens `[B, T]` or vectors `[B, T, D]`.
    """
    is_padding = attention_mask is None or (
        isinstance(attention_mask, torch.Tensor) and attention_mask.ndim == 2
    )
    if not is_padding or _is_special(model, options):
        return None
    if not all(is_exchanged(layer.self_attn) for layer in model.layers):
        return None
    if attention_mask is None and cache is None and _is_packed(position_ids):
        return None
    if attention_mask is not None and not torch.compiler.is_compiling() and attention_mask.all():
        attention_mask = None
    masks = {"linear_attention": None, "full_attention": None, "sliding_attention": None}
    if attention_mask is None:
        return masks
    length, attention_mask = inputs.shape[1], attention_mask.to(inputs.device)
    # Generated tokens, one at a time, are no padding.
    masks["linear_attention"] = attention_mask[:, -length:] if length > 1 else None
    for name, layer in _first_layers(model).items():
        size, first = attention_mask.shape[1], 0
        if cache is not None:
            size, first = cache.get_mask_sizes(length, layer)
        missing = max(0, first + size - attention_mask.shape[1])
        keys = pad(attention_mask, (0, missing))[:, first : first + size]
        masks[name] = key_mask(keys, keys)
    return masks


def _is_packed(position_ids):
    """Returns whether positions `[B, T]` start again within a sequence. torch.compile hides it."""
    if position_ids is None or position_ids.ndim != 2:
        return False
    return torch.compiler.is_compiling() or bool((position_ids.diff() != 1).any())


class TextModel:
    """Text model of Inkling that hands its padding mask on."""

    def forward(
        self,
        input_ids=None,
        attention_mask=None,
        position_ids=None,
        cache=None,
        inputs_embeds=None,
        use_cache=None,
        **kwargs,
    ):
        arguments = {
            "input_ids": input_ids,
            "position_ids": position_ids,
            "cache": cache,
            "inputs_embeds": inputs_embeds,
            "use_cache": use_cache,
            **kwargs,
        }
        masks = None
        if (input_ids is None) != (inputs_embeds is None):
            inputs = inputs_embeds if input_ids is None else input_ids
            masks = _padding_masks(self, inputs, attention_mask, position_ids, cache, kwargs)
        if masks is None:
            return super().forward(attention_mask=attention_mask, **arguments)
        return self._forward_with_masks(masks, arguments)

    def _forward_with_masks(self, masks, arguments):
        return super().forward(attention_mask=masks, **arguments)


class TextModel2(TextModel):
    """Text model of Inkling 2 and Inkling 2 Loop that hands its padding mask and offsets on.

    The method of transformers makes the distances of all pairs.
    """

    def __init_subclass__(cls, **kwargs):
        super().__init_subclass__(**kwargs)
        from transformers.utils.generic import merge_with_config_defaults
        from transformers.utils.output_capturing import capture_outputs

        # Records hidden states and router logits.
        cls._run_decorated = merge_with_config_defaults(capture_outputs(_run_layers))

    def _forward_with_masks(self, masks, arguments):
        return self._run_decorated(masks=masks, **arguments)


def _run_layers(
    model, *, masks, input_ids, position_ids, cache, inputs_embeds, use_cache=None, **kwargs
):
    """Returns the outputs of a text model of Inkling 2 or Inkling 2 Loop."""
    from transformers.cache_utils import DynamicCache
    from transformers.modeling_outputs import MoeModelOutputWithPast

    x = model.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
    if use_cache and cache is None:
        cache = DynamicCache(config=model.config)
    if position_ids is None:
        position_ids = torch.arange(x.shape[1], device=x.device)[None]
        position_ids = position_ids + (0 if cache is None else cache.get_seq_length())
    offsets = {
        name: 0 if cache is None else _offsets(cache, x.shape[1], layer)[1]
        for name, layer in _first_layers(model).items()
    }
    run = functools.partial(
        _run_layer, masks=masks, offsets=offsets, cache=cache, position_ids=position_ids, **kwargs
    )
    states = x, x.new_zeros(*x.shape[:2], 0, x.shape[2])
    start, end = (getattr(model.config, f"loop_layer_index_{x}", None) for x in ("start", "end"))
    for layer in model.layers[:start]:
        states = run(layer, states)
    if start is not None:
        states = _run_loop(model, run, states, range(start, end), cache)
        for layer in model.layers[end:]:
            states = run(layer, states)
    hidden_states = model.final_input(states[1], states[0])[0]
    return MoeModelOutputWithPast(
        last_hidden_state=model.norm(hidden_states).to(x.dtype), cache=cache
    )


def _run_layer(layer, states, *messages, masks, offsets, **options):
    """Returns (hidden states, states of the blocks before) after a layer."""
    hidden_states, blocks = states
    outputs = layer(
        hidden_states,
        blocks,
        *messages,
        attention_mask=masks[layer.attention_type],
        relative_distance=offsets[layer.attention_type],
        conv_mask=masks["linear_attention"],
        **options,
    )
    if layer.is_block_boundary:
        blocks = torch.cat([blocks.to(hidden_states.device), hidden_states.unsqueeze(-2)], dim=-2)
    return outputs, blocks


def _run_loop(model, run, states, indices, cache):
    """Returns the states after all passes over the layers `indices`.

    Each pass starts with the same states, and gets messages from the pass before it. It has layers
    of the cache of its own, after those of the model.
    """
    num_passes, num_layers = model.config.loop_num_passes, model.config.num_hidden_layers
    if cache is not None and len(cache.layers) == num_layers:
        copied = cache.layers[indices.start : indices.stop] * (num_passes - 1)
        cache.layers += [copy.deepcopy(layer) for layer in copied]
    first_states = states
    for index in indices:
        states = run(model.layers[index], states)
    for number in range(1, num_passes):
        # Without the block that the first layer of the pass has added.
        sources = states[1][..., first_states[1].shape[-2] + 1 :, :], states[0]
        offset = num_layers + (number - 1) * len(indices) - indices.start
        states = first_states
        for index in indices:
            messages = model.message_input(*sources, index - indices.start)
            states = run(model.layers[index], states, messages, cache_offset=offset)
    return states


# The comparison

_SIZES = {
    "vocab_size": 7,
    "hidden_size": 16,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "swa_num_attention_heads": 2,
    "swa_num_key_value_heads": 1,
    "swa_head_dim": 8,
    "sliding_window_size": 20,
    "d_rel": 4,
    "rel_extent": 150,
    "log_scaling_n_floor": 50,
    "moe_intermediate_size": 8,
    "n_routed_experts": 2,
    "num_experts_per_tok": 2,
    "pad_token_id": 0,
    "eos_token_id": 1,
    "attn_implementation": "eager",
}


def small_config(name, layer_types=("hybrid_sliding", "hybrid"), **options):
    """Returns the configuration of a text model that is compared, by its class."""
    import transformers

    sizes = _SIZES | {"layer_types": list(layer_types), "num_hidden_layers": len(layer_types)}
    return getattr(transformers, name)(**sizes, **options)


def _call(model, x, padding_mask):
    return model(inputs_embeds=x, attention_mask=padding_mask, use_cache=False)[0]


# The router computes in float32 only.
_COMMON = {"call": _call, "dtype": "float32", "since": "5.24"}
_MODULE = "transformers.models.inkling.modeling_inkling"
_MODULE_2 = "transformers.models.inkling2.modeling_inkling2"
_MODULE_LOOP = "transformers.models.inkling2_loop.modeling_inkling2_loop"


def _family_2(name, prefix, config):
    return Family(
        name=name,
        attention={f"{prefix}{x}Attention": Attention2 for x in ("Sliding", "Full")},
        required={f"{prefix}RelativePositionBias": RelativePositionBias},
        optional={f"{prefix}TextModel": TextModel2},
        encoder=f"{prefix}TextModel",
        small_config=config,
        **_COMMON,
    )


FAMILIES = [
    Family(
        name="Inkling",
        attention={f"{_MODULE}.InklingAttention": Attention},
        required={f"{_MODULE}.InklingRelativeLogits": RelativeLogits},
        optional={f"{_MODULE}.InklingTextModel": TextModel},
        encoder=f"{_MODULE}.InklingTextModel",
        small_config=lambda: small_config("InklingTextConfig", n_shared_experts=1),
        **_COMMON,
    ),
    _family_2(
        "Inkling 2",
        f"{_MODULE_2}.Inkling2",
        lambda: small_config("Inkling2TextConfig", n_layers_per_attn_res_block=1),
    ),
    _family_2(
        "Inkling 2 Loop",
        f"{_MODULE_LOOP}.Inkling2Loop",
        lambda: small_config(
            "Inkling2LoopTextConfig",
            layer_types=["hybrid_sliding", "hybrid", "hybrid_sliding", "hybrid"],
            n_layers_per_attn_res_block=1,
            loop_layer_index_start=1,
            loop_layer_index_end=3,
            loop_num_passes=2,
            loop_gate_rank=4,
        ),
    ),
]
