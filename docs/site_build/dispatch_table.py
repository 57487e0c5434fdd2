"""Prints the tables of docs/how_it_works/dispatch.md: python docs/site_build/dispatch_table.py"""

from t2t_relpos.attention import explain
from t2t_relpos.attention.dispatch import BLOCK_REQUIREMENTS, QUADRATIC_MEMORY_ALLOWED, TABLE

# (backend, device, XLA, dtype, length or None, causal, rematerialize) of typical calls with K = 16
# and heads of size 64.
REQUESTS = [
    ("tensorflow", "cpu", False, "float32", 64, False, False),
    ("tensorflow", "cpu", False, "float32", 512, False, False),
    ("tensorflow", "cpu", False, "float32", 512, True, None),
    ("tensorflow", "cpu", False, "float32", None, False, False),
    ("tensorflow", "cpu", False, "float32", None, True, True),
    ("tensorflow", "gpu", False, "float32", None, False, False),
    ("tensorflow", "gpu", True, "float32", 512, False, False),
    ("tensorflow", "gpu", True, "float32", 4096, True, False),
    ("jax", "gpu", False, "float32", 512, False, False),
    ("jax", "gpu", False, "bfloat16", 4096, True, True),
    ("torch", "cpu", False, "float32", 512, False, False),
    ("torch", "gpu", False, "bfloat16", 4096, True, True),
]


def _name(row):
    """Returns the dotted name of a row's function in `t2t_relpos.attention`."""
    if isinstance(row.function, str):
        return row.function
    return f"{row.function.__module__.rpartition('.')[2]}.{row.function.__name__}"


def table_as_markdown():
    """Returns the dispatch table, with abbreviations for common requirements."""
    header = ["Implementation", "Function", "Requires", "Chosen for", "Saved `[T, S]` matrices"]
    lines = [header, ["---"] * len(header)]
    for row in TABLE:
        chosen = "; ".join(condition.text for condition in row.preferences) or "all"
        requires = "; ".join(_abbreviated(row.requirements))
        saved = str(row.saved_matrices)
        if row.saves_weights is not None:
            chosen += f". Saves weights for {row.saves_weights.text}"
            saved = f"0 or {saved}"
        lines.append([f"`{row.name}`", f"`{_name(row)}`", requires, chosen, saved])
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def requests_as_markdown():
    """Returns the table of the implementations of `REQUESTS`."""
    backends = {"tensorflow": "TensorFlow", "jax": "JAX", "torch": "PyTorch"}
    header = ["Backend", "Device", "XLA", "Dtype", "Length", "Causal", "`rematerialize`"]
    header.append("Implementation")
    lines = [header, ["---"] * len(header)]
    for backend, device, xla, dtype, length, causal, rematerialize in REQUESTS:
        options = {"backend": backend, "device": device, "xla": xla, "causal": causal}
        options["dtype"] = dtype
        explanation = explain(length, rematerialize=rematerialize, portable=False, **options)
        names = explanation.chosen, *explanation.otherwise
        uses_xla = xla or backend == "jax"
        lines.append(
            [
                backends[backend],
                device.upper(),
                "yes" if uses_xla else "no",
                dtype,
                "unknown" if length is None else f"{length:,}",
                "yes" if causal else "no",
                str(rematerialize),
                ", otherwise ".join(f"`{name}`" for name in names),
            ]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _abbreviated(requirements):
    """Yields the texts of requirements. All block requirements together have one text."""
    has_block_requirements = set(BLOCK_REQUIREMENTS) <= set(requirements)
    for requirement in requirements:
        if requirement is QUADRATIC_MEMORY_ALLOWED:
            yield "quadratic memory allowed"
        elif not has_block_requirements or requirement not in BLOCK_REQUIREMENTS:
            yield requirement.text
        elif requirement is BLOCK_REQUIREMENTS[0]:
            yield "block requirements"


if __name__ == "__main__":
    print(table_as_markdown(), requests_as_markdown(), sep="\n\n")
