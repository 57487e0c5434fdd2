"""Benchmarks. Run them from the root of a checkout; each prints a Markdown table.

python -m benchmarks.attention     relative attention vs plain attention
python -m benchmarks.training      training speed vs OpenNMT-tf, tensor2tensor, PyTorch
python -m benchmarks.decoding      decoding speed vs CTranslate2, OpenNMT-tf
python -m benchmarks.accelerator   attention and training on an accelerator
make gpu-check                     tests and measurements on a GPU in 3 minutes
"""
