#!/usr/bin/env bash
# Trains on the synthetic corpus, exports, evaluates, and translates with the SavedModel.
# Usage: PYTHON=.venv/bin/python examples/quickstart.sh [RUN_DIR]
set -euo pipefail
cd "$(dirname "$0")/.."
python=${PYTHON:-python}
run=${1:-runs/quickstart}
corpus=$(dirname "$run")/synthetic_corpus

echo "== Write the synthetic English-German corpus"
[ -f "$corpus/test_longer.de" ] || "$python" -m examples.synthetic_corpus "$corpus"

echo "== Train. Rerun this script to resume after an interruption."
"$python" -m trainer.train --preset=tiny --model_dir="$run" \
  --train_source="$corpus/train.en" --train_target="$corpus/train.de" \
  --dev_source="$corpus/dev.en" --dev_target="$corpus/dev.de" \
  --vocab_size=1000 --train_steps=760 --batch_tokens=1024 --warmup_steps=200 --learning_rate=1.1 \
  --dropout=0 --checkpoint_every=380

echo "== Export"
"$python" -m trainer.export --model_dir="$run" --name=quickstart

echo "== Evaluate the SavedModel. BLEU is 93 to 98: it depends on how the processor rounds."
"$python" -m trainer.evaluate --saved_model=saved_models/quickstart --metrics=chrf \
  --source="$corpus/test.en" --target="$corpus/test.de"

echo "== Translate five test sentences with the SavedModel"
sentences=$(cat <<'SENTENCES'
Our brother should come back.
The girls were hungry because he arrived last week.
I looked for a car that her uncle sold.
Yesterday two tall doctors had to wait at the station although she was in the garden.
Two women want to visit Maria in the evening, but he forgets to call us.
SENTENCES
)
paste -d '\n' <(echo "$sentences") \
  <(echo "$sentences" | "$python" -m trainer.translate --saved_model=saved_models/quickstart | sed 's/^/  -> /')

cat <<NEXT

To train on your own text: one sentence per line, parallel source and target files.

  $python -m trainer.train --preset=tiny --model_dir=runs/mine \\
    --train_source=train.en --train_target=train.de --dev_source=dev.en --dev_target=dev.de
  $python -m trainer.evaluate --model_dir=runs/mine --source=test.en --target=test.de
  $python -m trainer.export --model_dir=runs/mine --name=mine
  echo "A sentence." | $python -m trainer.translate --saved_model=saved_models/mine
NEXT
