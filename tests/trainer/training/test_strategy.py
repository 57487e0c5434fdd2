import pytest
import tensorflow as tf

from trainer.training.strategy import make_strategy


def test_one_device_is_the_default_strategy():
    assert make_strategy("one") is tf.distribute.get_strategy()


def test_unknown_strategy():
    with pytest.raises(ValueError, match="Expected strategy to be one of one, mirrored. Received: 'two'"):
        make_strategy("two")


def test_logical_devices_need_the_mirrored_strategy():
    with pytest.raises(ValueError, match="Expected logical_devices only with the strategy mirrored. Received: 2"):
        make_strategy("one", logical_devices=2)


def test_mirrored_without_gpu(monkeypatch):
    monkeypatch.setattr(tf.config, "list_logical_devices", lambda kind: [])
    with pytest.raises(ValueError, match="Expected at least one GPU .*. Use --strategy=one, or .* --logical_devices=2"):
        make_strategy("mirrored")


def test_a_single_logical_device():
    with pytest.raises(ValueError, match="Expected logical_devices to be at least 2. Received: 1"):
        make_strategy("mirrored", logical_devices=1)


def test_cpu_is_divided_before_use_only():
    tf.zeros([])
    with pytest.raises(ValueError, match="Expected TensorFlow to be unused before its CPU is divided into 2 devices"):
        make_strategy("mirrored", logical_devices=2)
