"""Writes docs/how_it_works/parity.md, which lists the largest error of each compared quantity.

    python tests/reference/compare.py > docs/how_it_works/parity.md

Exits with status 1 if an error exceeds its limit.
"""

import os
import pathlib
import string
import sys

os.environ.setdefault("KERAS_BACKEND", "tensorflow")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import compare_attention
import compare_layers
import compare_models
import compare_subwords
import keras
import numpy as np
import tensorflow as tf

TEMPLATE = pathlib.Path(__file__).parent / "parity_template.md"
DECODING = (
    "beam ids",
    "beam scores",
    "greedy ids",
    "greedy scores",
    "ids, single vs. batch",
    "scores, single vs. batch",
)
CONTINUATIONS = (
    "beam ids",
    "beam scores",
    "greedy ids",
    "ids, cached vs. uncached",
    "scores, cached vs. uncached",
)
FORWARD = tuple(name for name in compare_models.LIMITS if name not in (*DECODING, *CONTINUATIONS))
FAMILIES = (*compare_attention.FAMILIES, *compare_layers.FAMILIES)
COUNTED = (
    "beam ids",
    "greedy ids",
    "ids, single vs. batch",
    "ids, cached vs. uncached",
    "weights that differ",
)


def table(head, rows):
    """Returns a Markdown table."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def cell(measurement):
    if measurement is None:
        return "–"
    if measurement.quantity in COUNTED:
        return f"{measurement.error:.0f} of {measurement.count}"
    count = f" ({measurement.count})" if measurement.quantity == "gradients" else ""
    return f"{measurement.error:.1e}{count}"


def model_table(measurements, quantities):
    found = {(m.case, m.quantity): m for m in measurements}
    limits = ["*limit*", *(f"{compare_models.LIMITS[q]:.0e}" for q in quantities)]
    limits = [text.replace("0e+00", "0") for text in limits]
    rows = [
        [f"`{case}`", *(cell(found.get((case, quantity))) for quantity in quantities)]
        for case in sorted({m.case for m in measurements if m.quantity in quantities})
    ]
    return table(["model", *quantities], [limits, *rows])


def is_language_model(measurement):
    return compare_models.recorded_model(measurement.case).is_language_model


def attention_rows(measured):
    """Yields a table row for each (family, dtype, measurements) in `measured`."""
    for family, dtype, measurements in measured:
        row = [f"`{family.theirs}`", f"`{family.ours}`", dtype]
        row.append(str(len({m.case for m in measurements})))
        for is_gradient in (False, True):
            chosen = [m for m in measurements if m.quantity.startswith("gradient") == is_gradient]
            worst = max(chosen, key=lambda m: m.error)
            row.append(f"{worst.error:.1e} (≤ {worst.limit:.0e})")
        yield row


def measure_attention():
    for family in FAMILIES:
        for dtype in compare_attention.DTYPES:
            paths = family.paths(dtype)
            measurements = [m for path in paths for m in compare_attention.compare(family, path)]
            if measurements:
                yield family, dtype, measurements


def subword_rows(measured):
    for name, size, encoded, strings, decoded, id_rows in measured:
        yield [f"`{name}`", str(size), f"{encoded} of {strings}", f"{decoded} of {id_rows}"]


def main():
    models = list(compare_models.measurements())
    attention = list(measure_attention())
    subwords = list(compare_subwords.rows())
    template = string.Template(TEMPLATE.read_text())
    versions = (
        f"Keras {keras.__version__}",
        f"TensorFlow {tf.__version__}",
        f"NumPy {np.__version__}",
    )
    head = ["tensor2tensor", "t2t_relpos", "dtype", "cases", "output (limit)", "gradients (limit)"]
    page = template.substitute(
        versions=", ".join(versions),
        forward=model_table(models, FORWARD),
        decoding=model_table([m for m in models if not is_language_model(m)], DECODING),
        continuations=model_table([m for m in models if is_language_model(m)], CONTINUATIONS),
        attention=table(head, attention_rows(attention)),
        subwords=table(
            ["vocabulary", "size", "strings encoded differently", "ids decoded differently"],
            subword_rows(subwords),
        ),
    )
    print(page.rstrip())
    above = [m for m in models if not m.holds]
    above += [m for *_, measurements in attention for m in measurements if not m.holds]
    for measurement in above:
        print(f"Error above limit: {measurement}", file=sys.stderr)
    differing = [row for row in subwords if row[2] or row[4]]
    for row in differing:
        print(f"Different subwords: {row}", file=sys.stderr)
    return 1 if above or differing else 0


if __name__ == "__main__":
    sys.exit(main())
