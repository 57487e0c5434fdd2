"""Training, evaluation, export and inference of translation models. Requires TensorFlow.

In a checkout, this package is `trainer`. It is installed as `t2t_relpos.trainer`.
"""

import importlib.util
import sys
from pathlib import Path

# Packages that every program imports before it parses its flags or runs.
for _package in ("absl", "tensorflow", "tensorflow_text", "tqdm"):
    if importlib.util.find_spec(_package) is None:
        _message = (
            f"{__name__} requires {_package}, which is not installed. Install it and the other "
            "requirements: pip install 't2t-relpos[trainer]'."
        )
        # `python -m` imports the package of a program first, with this name of the program.
        _program = "".join(sys.argv[:1])
        if _program == "-m" or Path(_program).name.startswith("relpos-"):
            print(_message, file=sys.stderr)
            sys.exit(2)
        raise ImportError(_message, name=__name__)
