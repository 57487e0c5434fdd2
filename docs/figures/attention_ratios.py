"""Draws the figure of docs/performance.md: python docs/figures/attention_ratios.py

Reads attention.csv in docs/dev/measurements.
"""

from charts import draw_ratios, pyplot, read_measurements, save

PROCESSOR, COMMIT = "Intel Xeon (AMX)", "cb92a5a"
BACKENDS = {
    "TensorFlow": {"backend": "tensorflow", "compiled": "no"},
    "TensorFlow with XLA": {"backend": "tensorflow", "compiled": "yes"},
    "JAX with jit": {"backend": "jax", "compiled": "yes"},
}


def main():
    measured = {}
    for name, settings in BACKENDS.items():
        core = {"part": "core", "passes": "both", "implementation": "relative", "options": ""}
        rows = read_measurements(
            "attention.csv", processor=PROCESSOR, commit=COMMIT, **core, **settings
        )
        if rows:
            measured[name] = rows
    figure, axes = pyplot.subplots(
        1, len(measured), figsize=(3.2 * len(measured), 3.4), sharey=True
    )
    for axis, (name, rows) in zip(axes, measured.items()):
        draw_ratios(axis, name, rows)
    axes[0].set(ylabel="time / time of plain attention", ylim=(0, None))
    axes[0].legend()
    save(figure, "attention_ratios")


if __name__ == "__main__":
    main()
