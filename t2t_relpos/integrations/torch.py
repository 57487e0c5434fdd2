"""Relative attention as a module of PyTorch. It needs no environment variable for Keras."""

try:
    import torch
except ModuleNotFoundError as error:
    raise ImportError(
        "Expected the package torch. Received: an environment without it. Install it: pip install "
        "'t2t-relpos[torch]'.",
        name="torch",
    ) from error

import keras
from torch import nn
from torch.nn import functional
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm

# `t2t_relpos.integrations` chooses the backend, unless Keras is imported already.
if keras.backend.backend() != "torch":
    raise ImportError(
        "Expected Keras to compute with PyTorch. Received: the backend "
        f"{keras.backend.backend()!r}, from the environment variable KERAS_BACKEND, keras.json or "
        "an earlier import of Keras. Import t2t_relpos.integrations before keras, with "
        'KERAS_BACKEND unset or "torch". A process can\'t change the backend after the import.'
    )

from t2t_relpos import _checks, backend
from t2t_relpos.attention import attend
from t2t_relpos.attention.band import Distances
from t2t_relpos.attention.dropout import AttentionDropout

__all__ = ["RelativeMultiheadAttention"]

_TABLES = "key_table", "value_table"


class RelativeMultiheadAttention(nn.MultiheadAttention):
    """Multi-head attention with relative positions, as a module of PyTorch.

    The constructor, the shapes and the call are those of `torch.nn.MultiheadAttention`. The module
    has its parameters and, in addition, `key_table` and `value_table`. It replaces `self_attn` of
    `torch.nn.TransformerEncoderLayer` and `torch.nn.TransformerDecoderLayer`. Differences:

    - **`batch_first` is True by default.**
    - Fully masked queries get the bias of `out_proj`, from zeros. PyTorch returns NaN.
    - Returned weights are those before dropout.
    - If T != S, the queries are at the last T positions of the keys. With `is_causal` and no
      `attn_mask`, query i attends to the keys up to i + S - T.

    Args:
        embed_dim: width D of the queries and of the outputs.
        num_heads: number of heads N.
        dropout: fraction of the weights set to zero in training, drawn from PyTorch's random number
            generator. Default: 0.
        bias: whether projections have biases. Default: True.
        add_bias_kv: must be False: added keys have no position.
        add_zero_attn: must be False.
        kdim: width of the keys. Default: D.
        vdim: width of the values. Default: D.
        batch_first: whether inputs are `[B, T, D]` instead of `[T, B, D]`. Default: True.
        device: device of the parameters. Default: PyTorch's.
        dtype: dtype of the parameters. Default: PyTorch's.
        max_relative_position: clipping distance K, or a pair (left, right) of them.
        use_key_table: whether scores depend on distances (a^K). Default: True.
        use_value_table: whether outputs depend on distances (a^V). Default: True.
        share_heads: whether all heads have the same tables. Default: True.
        flash_attention: True for memory linear in length at any length, and for the fused kernel on
            NVIDIA GPUs. Calls then need `need_weights=False`. Default: None, by length.

    Attributes:
        key_table: a^K, a parameter `[left + right + 1, H]`, or `[N, left + right + 1, H]` if
            `share_heads` is False. None if off.
        value_table: a^V, likewise.

    Raises:
        ValueError: if an argument has an unsupported value.

    Example:
    >>> import torch
    >>> from t2t_relpos.integrations.torch import RelativeMultiheadAttention
    >>> attention = RelativeMultiheadAttention(8, num_heads=2, max_relative_position=16)
    >>> x = torch.randn(3, 7, 8)
    >>> outputs, weights = attention(x, x, x)
    >>> tuple(outputs.shape), tuple(weights.shape)
    ((3, 7, 8), (3, 7, 7))

    Reference: Shaw et al. 2018, section 3.
    """

    def __init__(
        self,
        embed_dim,
        num_heads,
        dropout=0.0,
        bias=True,
        add_bias_kv=False,
        add_zero_attn=False,
        kdim=None,
        vdim=None,
        batch_first=True,
        device=None,
        dtype=None,
        *,
        max_relative_position,
        use_key_table=True,
        use_value_table=True,
        share_heads=True,
        flash_attention=None,
    ):
        for name, added in (("add_bias_kv", add_bias_kv), ("add_zero_attn", add_zero_attn)):
            if added:
                raise ValueError(
                    f"Expected `{name}` to be False, because added keys have no position. "
                    f"Received: {name}={added!r}."
                )
        distances = _checks.max_relative_position(max_relative_position)
        of_parameters = {"device": device, "dtype": dtype}
        super().__init__(
            embed_dim,
            num_heads,
            dropout,
            bias,
            kdim=kdim,
            vdim=vdim,
            batch_first=batch_first,
            **of_parameters,
        )
        self.max_relative_position, self.share_heads = distances, share_heads
        self.flash_attention = flash_attention
        shape = Distances.of(distances).num_ids, self.head_dim
        shape = shape if share_heads else (num_heads, *shape)
        for name, used in zip(_TABLES, (use_key_table, use_value_table), strict=True):
            table = nn.Parameter(torch.empty(shape, **of_parameters)) if used else None
            self.register_parameter(name, table)
        self._reset_tables()

    def _reset_parameters(self):
        self._qkv_same_embed_dim = self.in_proj_weight is not None
        super()._reset_parameters()
        # Otherwise, `nn.TransformerEncoderLayer` would compute plain attention in evaluation.
        self._qkv_same_embed_dim = False
        self._reset_tables()

    def _reset_tables(self):
        for name in _TABLES:
            # The constructor of PyTorch's class calls `_reset_parameters` before there are tables.
            if (table := getattr(self, name, None)) is not None:
                nn.init.xavier_uniform_(table)

    @classmethod
    @torch.enable_grad()  # Values that a parametrization computes need `requires_grad`.
    def from_multihead_attention(cls, module, max_relative_position, **kwargs):
        """Returns a module with the weights of a `torch.nn.MultiheadAttention` and zero tables.

        Its outputs are those of `module`, except for fully masked queries. It has copies of the
        weights, and `batch_first` and `training` of `module`. The copies are plain parameters: if
        `module` has a parametrization, weight or spectral normalization, or pruning, they have the
        values that `module` computes with. Frozen weights stay frozen. Hooks stay with `module`.

        Args:
            module: a `torch.nn.MultiheadAttention` without `add_bias_kv` and `add_zero_attn`, or
                a subclass of it with the same `forward`.
            max_relative_position: clipping distance K, or a pair (left, right) of them.
            **kwargs: `use_key_table`, `use_value_table` or `share_heads`.

        Raises:
            ValueError: if `module` is not supported, as modules of PEFT and quantized modules, or a
                weight is missing.

        Example:
        >>> import torch
        >>> from t2t_relpos.integrations.torch import RelativeMultiheadAttention
        >>> layer = torch.nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        >>> layer.self_attn = RelativeMultiheadAttention.from_multihead_attention(
        ...     layer.self_attn, max_relative_position=16
        ... )
        >>> tuple(layer(torch.randn(3, 7, 8)).shape)
        (3, 7, 8)
        """
        _check_multihead_attention(module)
        result = cls(
            module.embed_dim,
            module.num_heads,
            module.dropout,
            add_bias_kv=module.bias_k is not None,
            add_zero_attn=module.add_zero_attn,
            kdim=module.kdim,
            vdim=module.vdim,
            batch_first=module.batch_first,
            device="meta",
            max_relative_position=max_relative_position,
            **kwargs,
        )
        # They set attributes before each call. PyTorch never calls those of `out_proj`.
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, (WeightNorm, SpectralNorm, BasePruningMethod)):
                hook(module, ())
        for name, parameter in list(result.named_parameters()):
            if name not in _TABLES:
                path, _, attribute = name.rpartition(".")
                copied = _copy_of_parameter(module, name, parameter.shape)
                result.get_submodule(path).register_parameter(attribute, copied)
        for name in _TABLES:
            if (table := getattr(result, name)) is not None:
                zeros = result.out_proj.weight.new_zeros(table.shape)
                result.register_parameter(name, nn.Parameter(zeros))
        return result.train(module.training)

    def forward(
        self,
        query,
        key,
        value,
        key_padding_mask=None,
        need_weights=True,
        attn_mask=None,
        average_attn_weights=True,
        is_causal=False,
    ):
        """Returns (outputs, weights or None) with the shapes of `torch.nn.MultiheadAttention`.

        Args:
            query: `[B, T, D]`, `[T, B, D]` if `batch_first` is False, or `[T, D]`.
            key: `[B, S, kdim]`, likewise.
            value: `[B, S, vdim]`, likewise, of the length of `key`.
            key_padding_mask: bool `[B, S]` or `[S]`, **True = masked**, or float with 0 and -inf.
                Default: None.
            need_weights: whether weights are returned. With False, memory is linear in length for
                long sequences. Default: True.
            attn_mask: bool `[T, S]` or `[B * N, T, S]`, **True = masked**, or float. A float mask
                is added to the scores, and memory is quadratic in length. Default: None.
            average_attn_weights: whether the weights are averaged over heads. Default: True.
            is_causal: whether keys after a query are masked. `attn_mask` must then be the causal
                mask or None, and is not read if T = S. Default: False.

        Raises:
            ValueError: if an input or a mask has an unsupported shape, dtype or value.
        """
        if query.is_nested:
            return self._forward_nested(query, key, value, key_padding_mask, attn_mask), None
        inputs, is_batched = (query, key, value), query.dim() == 3
        self._check_inputs(*inputs, is_batched=is_batched)
        if not is_batched:
            inputs = [x[None] for x in inputs]
            key_padding_mask = None if key_padding_mask is None else key_padding_mask[None]
        elif not self.batch_first:
            inputs = [x.transpose(0, 1) for x in inputs]
        if query is key is value:
            inputs = [inputs[0]] * 3
        query, key, value = self._project(*inputs)
        lengths = query.shape[2], key.shape[2]
        causal = is_causal and (attn_mask is None or lengths[0] == lengths[1])
        mask, bias = (None, None) if causal else self._pair_mask(attn_mask, query.shape[0], lengths)
        outputs, weights = attend(
            query * self.head_dim**-0.5,
            key,
            value,
            self.key_table,
            self.value_table,
            max_relative_position=self.max_relative_position,
            mask=mask,
            bias=bias,
            key_mask=_key_mask(key_padding_mask, (key.shape[0], lengths[1])),
            causal=causal,
            dropout=AttentionDropout(self.dropout) if self.training and self.dropout else None,
            return_weights=need_weights,
            rematerialize=self.flash_attention or None,
        )
        outputs = self.out_proj(outputs.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if not is_batched:
            return outputs[0], None if weights is None else weights[0]
        return outputs if self.batch_first else outputs.transpose(0, 1), weights

    def _check_inputs(self, *inputs, is_batched):
        """Raises ValueError if query, key and value have unsupported shapes or dtypes."""
        sizes = {"D": self.embed_dim, "Dk": self.kdim, "Dv": self.vdim}
        axes = (("query", "T", "D"), ("key", "S", "Dk"), ("value", "S", "Dv"))
        for (name, length, width), x in zip(axes, inputs, strict=True):
            spec = f"B {length} {width}" if self.batch_first else f"{length} B {width}"
            spec = spec if is_batched else f"{length} {width}"
            sizes = _checks.check(x, name, spec, "float", sizes)

    def _project(self, query, key, value):
        """Returns queries, keys and values of heads, `[B, N, length, H]`."""
        if query is key is value and self.in_proj_weight is not None:
            projected = functional.linear(query, self.in_proj_weight, self.in_proj_bias)
            heads = projected.unflatten(-1, (3, self.num_heads, self.head_dim))
            return heads.permute(2, 0, 3, 1, 4).unbind()
        inputs = query, key, value
        kernels = self.q_proj_weight, self.k_proj_weight, self.v_proj_weight
        if self.in_proj_weight is not None:
            kernels = self.in_proj_weight.chunk(3)
        biases = [None] * 3 if self.in_proj_bias is None else self.in_proj_bias.chunk(3)
        projected = map(functional.linear, inputs, kernels, biases)
        return [x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2) for x in projected]

    def _pair_mask(self, attn_mask, batch, lengths):
        """Returns (bool mask, True = attend; scores to add), or None for one that isn't needed."""
        if attn_mask is None:
            return None, None
        sizes = {"T": lengths[0], "S": lengths[1], "B*N": batch * self.num_heads}
        _checks.check(attn_mask, "attn_mask", "T S | B*N T S", sizes=sizes)
        if attn_mask.dim() == 3:
            attn_mask = attn_mask.unflatten(0, (batch, self.num_heads))
        if attn_mask.dtype == torch.bool:
            return ~attn_mask, None
        # A softmax of -inf only would be NaN.
        is_masked = _is_masked(attn_mask, "attn_mask")
        return ~is_masked, attn_mask.masked_fill(is_masked, 0)

    def _forward_nested(self, query, key, value, *masks):
        """Returns nested outputs. `nn.TransformerEncoder` passes sequences without padding so."""
        if not (query is key is value) or masks != (None, None):
            raise ValueError(
                "Expected nested tensors in self-attention without masks. Received: other inputs "
                "or a mask. Convert them with torch.nested.to_padded_tensor."
            )
        lengths = [len(x) for x in query.unbind()]
        padded = query.to_padded_tensor(0.0)
        positions = torch.arange(padded.shape[1], device=padded.device)
        is_padding = positions >= torch.tensor(lengths, device=padded.device)[:, None]
        options = {"key_padding_mask": is_padding, "need_weights": False}
        outputs = type(self).forward(self, padded, padded, padded, **options)[0]
        return torch.nested.as_nested_tensor([x[:n] for x, n in zip(outputs, lengths, strict=True)])


def _check_multihead_attention(module):
    """Raises ValueError unless a module computes as `torch.nn.MultiheadAttention`."""
    name = f"{type(module).__module__}.{type(module).__qualname__}"
    is_plain = isinstance(module, nn.MultiheadAttention)
    if not is_plain or isinstance(module, RelativeMultiheadAttention):
        raise ValueError(
            f"Expected a torch.nn.MultiheadAttention. Received: {name}. Unwrap it first: "
            "`merge_and_unload` of PEFT, `_orig_mod` of torch.compile."
        )
    # `_old_forward` is that of a module with a hook of accelerate.
    forward = getattr(vars(module).get("_old_forward", module.forward), "__func__", None)
    if forward is not nn.MultiheadAttention.forward:
        raise ValueError(
            "Expected a torch.nn.MultiheadAttention, or a subclass with the same `forward`. "
            f"Received: {name} with another `forward`, whose results are unknown. Copy its weights "
            "into a torch.nn.MultiheadAttention first."
        )


def _copy_of_parameter(module, name, shape):
    """Returns a copy of the value that a module computes with, a parameter. None: no bias.

    Parametrizations, pruning and PEFT replace a parameter by an attribute of the same name.
    """
    path, _, attribute = name.rpartition(".")
    value = getattr(module.get_submodule(path), attribute, None)
    if value is None and attribute.endswith("bias"):
        return None
    is_tensor = isinstance(value, torch.Tensor)
    if not is_tensor or value.shape != shape or not value.is_floating_point():
        received = f"shape {tuple(value.shape)}, {value.dtype}" if is_tensor else f"{value!r}"
        raise ValueError(
            f"Expected `{name}` of shape {tuple(shape)} and a floating-point dtype. Received: "
            f"{received}. Removed and quantized weights are not supported."
        )
    copy = value.detach().clone(memory_format=torch.contiguous_format)
    return nn.Parameter(copy, requires_grad=value.requires_grad)


def _is_masked(mask, name):
    """Returns where a float mask is -inf, bool."""
    if not mask.is_floating_point():
        raise ValueError(
            f"Expected `{name}` to be a bool or a float tensor. Received: dtype {mask.dtype}. "
            f"Convert it with `{name}.bool()`. True = masked."
        )
    return mask == float("-inf")


def _key_mask(key_padding_mask, shape):
    """Returns the bool mask of keys, True = attend, of PyTorch's mask `[B, S]`, or None."""
    if key_padding_mask is None:
        return None
    sizes = dict(zip("BS", shape, strict=True))
    _checks.check(key_padding_mask, "key_padding_mask", "B S", sizes=sizes)
    if key_padding_mask.dtype == torch.bool:
        return ~key_padding_mask
    is_masked = _is_masked(key_padding_mask, "key_padding_mask")
    if backend.can_be_read(key_padding_mask):
        others = key_padding_mask[~is_masked & (key_padding_mask != 0)]
        if len(others):
            raise ValueError(
                "Expected a float `key_padding_mask` with the values 0 and -inf. Received: "
                f"{others[0].item()}. Pass other numbers in `attn_mask`."
            )
    return ~is_masked
