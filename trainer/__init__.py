"""Training, evaluation, export and inference of translation models. Requires TensorFlow."""

import importlib.util

if importlib.util.find_spec("tensorflow") is None:
    raise ImportError(
        "trainer requires TensorFlow, which is not installed. Install it and the other "
        "requirements with `pip install t2t_relpos`.",
        name="trainer",
    )
