#!/usr/bin/env bash
# Tests an installed package. Argument: the bin folder of its environment. Not run in a checkout,
# so that the installed modules are imported.
set -euo pipefail
for name in train average evaluate export export-ctranslate2 translate import-t2t visualize; do
  # absl exits with 1 after --help.
  "$1/relpos-$name" --help > help.txt || true
  grep -q "^flags:" help.txt
  grep -q "^trainer/\|^  --" help.txt
done
"$1/python" - <<'PROGRAM'
import importlib.metadata

import numpy as np

import t2t_relpos
from t2t_relpos.t2t import parse_hparams

assert t2t_relpos.__version__ == importlib.metadata.version("t2t_relpos")
layer = t2t_relpos.RelativeMultiHeadAttention(2, 4, max_relative_position=3)
x = np.ones((1, 5, 8), "float32")
assert layer(x, x).shape == (1, 5, 8)
assert parse_hparams("transformer_relative")["max_relative_position"] == 20
PROGRAM
echo "smoke test passed"
