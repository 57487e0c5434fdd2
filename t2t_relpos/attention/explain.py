"""`explain`: which implementation `attend` chooses for a call, and why not the others."""

import dataclasses

import keras

from t2t_relpos import _checks
from t2t_relpos.attention import dispatch, limits
from t2t_relpos.attention.call import AttentionCall
from t2t_relpos.attention.dropout import AttentionDropout
from t2t_relpos.attention.masks import combine_masks
from t2t_relpos.backend import as_tensor


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The name of the chosen implementation, and the reasons against the others.

    Args:
        chosen: name of the chosen implementation. With unknown lengths, the first that the graph
            may run.
        reasons: dict of the reasons against the others, by name.
        otherwise: with unknown lengths, the names of the implementations that the graph runs for
            lengths that fail the conditions of `chosen`, in order of preference.
        conditions: with unknown lengths, dict of the conditions on lengths, by name.
        saved_matrices: number of matrices `[T, S]` per sequence and head that `chosen` saves for
            the gradient. 0: memory is linear in the length.
        skips_keys: whether `chosen` skips the keys outside of the sliding window. `S` is then the
            number of keys that a block of queries reads. False: there is no window, or it is
            applied as a mask, which does not save time.
    """

    chosen: str
    reasons: dict[str, str]
    otherwise: tuple[str, ...] = ()
    conditions: dict[str, str] = dataclasses.field(default_factory=dict)
    saved_matrices: int = 0
    skips_keys: bool = False

    def __str__(self):
        lines = []
        for name in (self.chosen, *self.otherwise):
            condition = f" if {self.conditions[name]}" if name in self.conditions else ""
            lines.append(f"{name}: {'otherwise ' if lines else ''}chosen{condition}")
        return "\n".join([*lines, *(f"{name}: {text}" for name, text in self.reasons.items())])


def explain(length_q, length_k=None, max_relative_position=16, *, dropout=0.0, **options):
    """Reports which implementation `attend` chooses, and why not the others.

    `RelativeMultiHeadAttention.explain` passes the settings of a layer.

    Args:
        length_q: number of queries T. None: unknown, as in a graph that is traced for all lengths.
        length_k: number of keys S. Default: T.
        max_relative_position: clipping distance K, or a pair (left, right). None: no tables.
        dropout: as in `attend`, or the rate of an `AttentionDropout`. Default: 0.0.
        **options: `relative_query`, `beyond`, `mask`, `query_mask`, `key_mask`, `bias`, `causal`,
            `query_offset`, `sliding_window`, `relative_ids`, `sinks`, `return_weights`,
            `return_log_sums` and `rematerialize`, as in `attend`. True stands for any tensor of
            `relative_query`, `bias` and `sinks`. `grouped_queries`: whether there are fewer heads
            of keys than of queries. Without tensors, `ids_rank`: rank of `relative_ids`.
            `offset_per_entry`: whether each batch entry has its own query offset.
            `seeded_dropout`: False for a dropout function. `dtype`: that of queries, by default
            `keras.config.floatx()`. `key_dim`: H, by default 64. `value_dim`: Hv, by default
            `key_dim`. `portable`: whether to use standard operations only. `xla`: whether XLA
            compiles the call. `backend`: name of the Keras backend. `device`: "cpu", "gpu" or
            "tpu", in any case. The last four default to those of the current context. A GPU is one
            of NVIDIA, of the architecture Hopper or later.

    Returns:
        An `Explanation`: `chosen` is the name of the implementation. `reasons` maps the names of
        the others to the reasons against them. With unknown lengths, `otherwise` names the
        implementations for lengths that fail the `conditions` of `chosen`, in order of preference.
        `saved_matrices` is the number of matrices `[T, S]` per sequence and head that `chosen`
        saves for the gradient. `skips_keys` says whether keys outside of a sliding window take no
        time; `S` is then the number of keys that a block of queries reads.

    Raises:
        ValueError: if an argument has a value that `attend` refuses, an option, the backend or the
            device is unknown, or no implementation meets the call.

    Example:
    >>> from t2t_relpos.attention import explain
    >>> explain(5000, causal=True, backend="tensorflow", xla=False, device="cpu").chosen
    'rematerialized_blocks'
    >>> in_graph = explain(None, backend="tensorflow", xla=False, device="gpu")
    >>> in_graph.chosen, in_graph.otherwise
    ('full_matrix', ('blocks',))
    """
    # The fields that are neither positional arguments nor tensors, and arguments of `attend`.
    names = [x.name for x in dataclasses.fields(AttentionCall) if x.kw_only and x.repr]
    names = [*_ARGUMENTS, *(x for x in names if x not in ("has_relative_query", "needs_log_sums"))]
    for name in options:
        if name not in names:
            raise ValueError(
                f"Expected options among {', '.join(names)}. Received: {name}. A layer with "
                "`flash_attention=True` passes `rematerialize=True`."
            )
    length_k = length_q if length_k is None else length_k
    call = AttentionCall.from_arguments(
        _length(length_q, "length_q"),
        _length(length_k, "length_k"),
        None
        if max_relative_position is None
        else _checks.max_relative_position(max_relative_position),
        **_checked_options(_as_fields(options) | _dropout_fields(dropout)),
    )
    rows = [candidate.implementation for candidate in dispatch.select(call)]
    chosen, *otherwise = [row.name for row in rows]
    unmet = {row.name: row.match(call)[0] for row in dispatch.TABLE if row not in rows}
    return Explanation(
        chosen,
        {name: f"requires {c.text}" if c else "after the chosen row" for name, c in unmet.items()},
        tuple(otherwise),
        {row.name: "; ".join(_texts_on_lengths(row, call)) for row in rows[:-1]},
        rows[0].num_saved(call),
        # Rows without blocks, and those with a condition on the window, apply a mask.
        call.sliding_window is not None
        and rows[0].sizes is not None
        and dispatch.SUITS_WINDOW not in rows[0].preferences,
    )


def _length(length, name):
    """Returns a length as an int, or `UNKNOWN` for None."""
    if length is None:
        return limits.UNKNOWN
    if not _checks.is_integer(length) or length < 0:
        raise ValueError(
            f"Expected `{name}` to be an integer of at least 0, or None if it is unknown. "
            f"Received: {name}={length!r}."
        )
    return int(length)


# Arguments of `attend` that are no fields of an `AttentionCall` without tensors.
_ARGUMENTS = (
    *("relative_query", "beyond", "mask", "query_mask", "key_mask", "bias", "relative_ids"),
    *("sinks", "return_log_sums"),
)


def _as_fields(options):
    """Returns options with fields of an `AttentionCall` for the tensors of `attend`.

    Masks remain: implementations differ in the shapes that they support.
    """
    fields = {name: x for name, x in options.items() if name not in _ARGUMENTS}
    if "beyond" in options:
        fields["beyond"] = options["beyond"]
    fields["mask"] = combine_masks(as_tensor(options.get("mask")))
    fields["key_mask"] = as_tensor(options.get("key_mask"))
    ids = options.get("relative_ids")
    if ids is not None:
        fields["ids_rank"] = len(as_tensor(ids).shape)
    names = {
        "has_bias": ("bias",),
        "has_relative_query": ("relative_query",),
        "needs_log_sums": ("sinks", "return_log_sums"),
    }
    for field, arguments in names.items():
        values = [options.get(name) for name in arguments]
        if any(x is not None and x is not False for x in values):
            fields[field] = True
    return fields


def _dropout_fields(dropout):
    """Returns the fields of an `AttentionCall` for a dropout of `attend`, or for a rate."""
    if isinstance(dropout, AttentionDropout):
        return {"dropout": dropout}
    if callable(dropout):
        return {"dropout": dropout, "seeded_dropout": False}
    return {"dropout": None if dropout is None else _checks.rate(dropout, "dropout") or None}


def _checked_options(options):
    """Returns the options of an `AttentionCall`. Raises ValueError for those that no call has."""
    dtype = keras.backend.standardize_dtype(options.get("dtype"))
    if "float" not in dtype:
        raise ValueError(f"Expected a floating-point `dtype`. Received: {dtype}.")
    if options.get("ids_rank") not in (None, 2, 3):
        raise ValueError(
            "Expected `ids_rank` to be 2 for relative ids [T, S], 3 for [B, T, S], or None. "
            f"Received: {options['ids_rank']!r}."
        )
    key_dim = _checks.positive_int(options.get("key_dim", 64), "key_dim")
    value_dim = options.get("value_dim")
    depths = {
        "key_dim": key_dim,
        "value_dim": key_dim if value_dim is None else _checks.positive_int(value_dim, "value_dim"),
    }
    device = options.get("device")
    devices = {"device": device.lower()} if isinstance(device, str) else {}
    return options | depths | devices | {"dtype": dtype}


def _texts_on_lengths(row, call):
    """Returns the texts of a row's conditions that depend on unknown lengths."""
    conditions = row.requirements + row.preferences
    return [each.text for each in conditions if each.holds(call) is limits.UNKNOWN]
