#!/usr/bin/env bash
# Tests an installed package. Argument: the bin folder of its environment. Not run in a checkout,
# so that the installed modules are imported.
set -euo pipefail
for name in train average evaluate export export-ctranslate2 translate import-t2t visualize; do
  test -x "$1/relpos-$name"
done
"$1/relpos-train" --help > help.txt || true
grep -q -- --train_source help.txt
"$1/python" - <<'PROGRAM'
import numpy as np

import t2t_relpos

layer = t2t_relpos.RelativeMultiHeadAttention(2, 4, max_relative_position=3)
x = np.ones((1, 5, 8), "float32")
assert layer(x, x).shape == (1, 5, 8)
PROGRAM
echo "smoke test passed"
