"""Benchmarks. Run them from the root of a checkout; each prints a Markdown table.

python -m benchmarks.attention                        relative attention vs plain attention
python -m benchmarks.layer_costs                      time and memory of layers by length
python -m benchmarks.training                         training speed vs OpenNMT-tf, tensor2tensor
python -m benchmarks.training.op_profile              time of a training step by op type
python -m benchmarks.training.input_pipeline          whether training waits for data
python -m benchmarks.decoding                         decoding speed vs CTranslate2, OpenNMT-tf
python -m benchmarks.decoding.op_profile              time of a decoding step by op type
python -m benchmarks.decoding.ctranslate2_agreement   translations equal to CTranslate2's
"""
