"""`explain` reports which implementation `attend` chooses for a call."""

import dataclasses
import operator

from t2t_relpos.attention.dispatch import TABLE, select
from t2t_relpos.attention.request import Request


@dataclasses.dataclass(frozen=True)
class Explanation:
    """The name of the chosen implementation, and the reasons against the others."""

    chosen: str
    reasons: dict[str, str]

    def __str__(self):
        lines = [f"{self.chosen}: chosen"]
        return "\n".join([*lines, *(f"{name}: {text}" for name, text in self.reasons.items())])


def explain(length_q, length_k=None, max_relative_position=16, **options):
    """Reports which implementation `attend` chooses, and why not the others.

    Args:
        length_q: number of queries T.
        length_k: number of keys S. Default: T.
        max_relative_position: clipping distance K. None: no tables.
        **options: `causal`, `query_offset`, `return_weights` and `rematerialize`, as in `attend`.
            `offset_per_entry`: whether each batch entry has its own query offset. `ids_rank`: rank
            of `relative_ids`. `seeded_dropout`: False for a dropout function. `portable`: whether
            to use standard operations only. `xla`: whether XLA compiles the call. `backend`: name
            of the Keras backend. `device`: "cpu", "gpu" or "tpu". The last four default to those of
            the current context.

    Returns:
        An `Explanation`: `chosen` is the name of the implementation. `reasons` maps the names of
        the others to the reasons against them.

    Raises:
        ValueError: if an option, the backend or the device is unknown, or no implementation meets
            the request.

    Example:
    >>> from t2t_relpos.attention import explain
    >>> explain(5000, causal=True, backend="tensorflow", xla=False, device="cpu").chosen
    'rematerialized_blocks'
    """
    positional = ("length_q", "length_k", "max_relative_position")
    fields = [x.name for x in dataclasses.fields(Request) if x.name not in positional]
    for name in options:
        if name not in fields:
            raise ValueError(
                f"Expected options among {', '.join(fields)}. Received: {name}. A layer with "
                "`flash_attention=True` passes `rematerialize=True`."
            )
    lengths = operator.index(length_q), operator.index(length_q if length_k is None else length_k)
    request = Request(*lengths, max_relative_position, **options)
    chosen = select(request)[0].implementation.name
    unmet = {row.name: row.unmet_condition(request) for row in TABLE if row.name != chosen}
    return Explanation(
        chosen,
        {name: f"requires {c.text}" if c else "after the chosen row" for name, c in unmet.items()},
    )
