"""Benchmarks. Run them from the root of a checkout; each prints a Markdown table.

python -m benchmarks.attention     relative attention vs plain attention
python -m benchmarks.training      training speed vs PyTorch
python -m benchmarks.decoding      decoding speed vs CTranslate2
make gpu-check                     tests and measurements on a GPU in 3 minutes
"""
