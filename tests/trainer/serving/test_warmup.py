"""Tests of warm-up requests. client.py decodes them with the package tensorflow-serving-api."""

import hashlib

import tensorflow as tf

from trainer.data.tokenizer import Tokenizers
from trainer.serving import warmup
from trainer.serving.translation_settings import TranslationSettings
from trainer.serving.warmup import prediction_log


def test_prediction_log_equals_that_of_tensorflow_serving():
    inputs = {"text": tf.constant(["ein Hund", "ü" * 20_000]), "alpha": tf.constant(0.25)}
    assert prediction_log("mine", "translate", {"alpha": inputs["alpha"]}).hex() == (
        "322a0a280a110a046d696e651a097472616e736c61746512130a05616c706861120a080112002a040000803e"
    )
    digest = hashlib.sha256(prediction_log("mine", "translate", inputs)).hexdigest()
    assert digest == "4fc8510eeace1d6131b43bc7aff776b725b4ab9fccaca8d456d662f41560b215"


def test_warmup_requests_have_the_model_name_and_valid_arguments(exported_dir, loaded, tokenizer):
    settings, seen, expected = TranslationSettings(max_input_length=47), [], []
    for signature, arguments in warmup.warmup_requests(Tokenizers.shared(tokenizer), settings):
        (size,) = {len(value) for value in arguments.values()}
        if size == 1:
            answer = loaded.signatures[signature](**arguments)
            assert {len(value) for value in answer.values()} == {1}
        seen.append((signature, size))
        expected.append(prediction_log(exported_dir.name, signature, arguments))
    assert seen[:6] == [("serving_default", size) for size in (1, 8, 32)] * 2
    assert {name for name, _ in seen} == loaded.signatures.keys() - {"translate"}
    records = tf.data.TFRecordDataset(str(exported_dir / "1" / warmup.WARMUP_FILE))
    assert [record.numpy() for record in records] == expected
