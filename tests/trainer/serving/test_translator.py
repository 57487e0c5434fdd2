import numpy as np
import pytest
import tensorflow as tf

from trainer.errors import plain_message
from trainer.serving.translator import (
    Alignment,
    Translation,
    Translator,
    align,
    one_line,
    translate_lines,
)


def answer(translations, scores, truncated=(False, True)):
    tensors = {
        "translations": tf.constant(translations),
        "scores": tf.constant(scores),
        "truncated": tf.constant(truncated),
    }
    return lambda text: tensors


def test_n_best_omits_missing_translations():
    ein, empty = Translation(b"ein", -0.5, False), Translation(b"", 0.0, True)
    call = Translator(answer([b"ein", b""], [-0.5, 0.0]))
    assert call.n_best([b"a", b""]) == [[ein], [empty]] and call([b"a", b""]) == [ein, empty]
    call = Translator(
        answer([[b"ein", b"eins", b""], [b"", b"", b""]], [[-0.5, -1.5, -1e7], [0.0, -1e7, -1e7]])
    )
    assert call.n_best([b"a", b""]) == [[ein, Translation(b"eins", -1.5, False)], [empty]]
    given = call.call("any") | {"complete": tf.constant([[True, False, False], [False] * 3])}
    found = Translator(lambda text: given).n_best([b"a", b""])
    assert [[one.complete for one in row] for row in found] == [[True, False], [False]]


def test_n_best_assigns_alignments_to_their_translations():
    asked = {}

    def score(text, translation):
        asked.update(text=text.numpy().tolist(), translation=translation.numpy().tolist())
        # Before EOS, the sources have 2, 2, 0 and 0 tokens, and the translations 1, 3, 0 and 0.
        weights = np.zeros([4, 4, 3])
        weights[0, :2] = [[0.1, 0.3, 0.6], [0, 0, 1]]
        weights[1, :4] = [[0.6, 0.4, 0], [0.1, 0.2, 0.7], [0.2, 0.1, 0.7], [0, 0, 1]]
        return {
            "source_tokens": tf.constant([[b"a\0", b"b", b"</s>"]] * 2 + [[b"</s>", b"", b""]] * 2),
            "source_lengths": tf.constant([3, 3, 1, 1]),
            "tokens": tf.constant(
                [[b"x", b"</s>", b"", b""], [b"x", b"y", b"z", b"</s>"]]
                + [[b"</s>", b"", b"", b""]] * 2
            ),
            "lengths": tf.constant([2, 4, 1, 1]),
            "alignments": tf.constant(weights),
        }

    call = Translator(
        answer([[b"x", b"xyz"], [b"", b""]], [[-0.5, -1.5], [0.0, -1e7]]), score=score
    )
    first, second = call.n_best([b"a b\0", b""])
    assert asked == {
        "text": [b"a b\0", b"a b\0", b"", b""],
        "translation": [b"x", b"xyz", b"", b""],
    }
    assert first[0].alignment == Alignment([b"a\0", b"b"], [b"x"], [1])
    assert first[1].alignment == Alignment([b"a\0", b"b"], [b"x", b"y", b"z"], [0, 1, 0])
    assert [each.alignment for each in second] == [Alignment([], [], [])]
    assert align([b"</s>"], 1, [b"x", b"</s>"], 2, np.ones([2, 1])) == Alignment([], [b"x"], [])


class Recorder:
    """A translator that returns upper case and records its batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, sentences):
        self.batches.append(list(sentences))
        return [
            Translation(sentence.upper(), -float(len(sentence)), len(sentence) > 4)
            for sentence in sentences
        ]


LINES = [b"ccc", b"a", b"", b"dddd", b"bb", b"eeeee", b"a"]


@pytest.mark.parametrize("batch_size", [1, 3, 11])
@pytest.mark.parametrize("window", [1, 5, 7, 13])
def test_translate_lines_keeps_the_order_of_lines(batch_size, window):
    """Inside a window, lines are sorted by length."""
    recorder = Recorder()
    answers = list(translate_lines(recorder, LINES, batch_size, window))
    assert [answer.text for answer in answers] == [line.upper() for line in LINES]
    assert [answer.truncated for answer in answers] == [len(line) > 4 for line in LINES]
    if (batch_size, window) == (3, 5):
        assert recorder.batches == [[b"", b"a", b"bb"], [b"ccc", b"dddd"], [b"a", b"eeeee"]]


def test_translate_lines_reads_at_most_one_window_ahead():
    read = []

    def endless():
        while True:
            read.append(len(read))
            yield b"%d" % read[-1]

    answers = translate_lines(Recorder(), endless(), batch_size=2, window=5)
    for number in range(1, 18):
        assert next(answers).text == b"%d" % (number - 1)
        assert len(read) == -(-number // 5) * 5


def test_missing_translation_raises():
    assert list(translate_lines(Recorder(), [], batch_size=2, window=5)) == []
    with pytest.raises(ValueError, match="shorter"):
        list(translate_lines(lambda batch: [], [b"a"], batch_size=2, window=5))


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (b"", b""),
        (b"ein Hund", b"ein Hund"),
        (b"ein\nHund\r\nund\rmehr\n", b"ein Hund und mehr"),
        ("ein\u2028Hund\x85".encode(), "ein\u2028Hund\x85".encode()),
    ],
)
def test_one_line_replaces_line_breaks_by_spaces(text, line):
    assert one_line(text) == line


CAUSE = "input must have at least k columns. Had 1000, needed 1998"
GRAPH_MESSAGE = f"""Graph execution error:

Detected at node while/TopKV2_1 defined at (most recent call last):
<stack traces unavailable>
{CAUSE}
\t [[{{{{node while/TopKV2_1}}}}]] [Op:__inference_serve_1]"""
EAGER_MESSAGE = (
    f"{{{{function_node __wrapped__TopKV2_device_/device:CPU:0}}}} {CAUSE} [Op:TopKV2] name: "
)


@pytest.mark.parametrize("message", [GRAPH_MESSAGE, EAGER_MESSAGE, CAUSE])
def test_plain_message_is_the_cause(message):
    assert plain_message(tf.errors.InvalidArgumentError(None, None, message)) == CAUSE


def test_batch_that_does_not_fit_into_memory_raises():
    def fail(text):
        raise tf.errors.ResourceExhaustedError(None, None, "OOM when allocating [999,1000]")

    message = (
        r"Expected a batch that fits into memory. Received: 2 sentences \(OOM when allocating "
        r"\[999,1000\]\). Lower --batch_size or --beam_size."
    )
    with pytest.raises(ValueError, match=message):
        Translator(fail).n_best([b"a", b"b"])
