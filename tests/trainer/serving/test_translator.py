import pytest

from trainer.serving.translator import Translation, one_line, translate_lines


class Recorder:
    """Answers with the upper case of a batch, and remembers the batches."""

    def __init__(self):
        self.batches = []

    def __call__(self, sentences):
        self.batches.append(list(sentences))
        return [
            Translation(sentence.upper(), -float(len(sentence)), len(sentence) > 4)
            for sentence in sentences
        ]


LINES = [b"ccc", b"a", b"", b"dddd", b"bb", b"eeeee", b"a"]


@pytest.mark.parametrize("batch_size", [1, 2, 3, 7, 11])
@pytest.mark.parametrize("window", [1, 2, 5, 7, 13])
def test_answers_keep_the_order_of_the_lines(batch_size, window):
    answers = list(translate_lines(Recorder(), LINES, batch_size, window))
    assert [answer.text for answer in answers] == [line.upper() for line in LINES]
    assert [answer.truncated for answer in answers] == [
        False,
        False,
        False,
        False,
        False,
        True,
        False,
    ]


def test_batches_are_sorted_by_length_inside_a_window():
    recorder = Recorder()
    list(translate_lines(recorder, LINES, batch_size=3, window=5))
    assert recorder.batches == [[b"", b"a", b"bb"], [b"ccc", b"dddd"], [b"a", b"eeeee"]]


def test_no_more_than_a_window_is_read_ahead():
    read = []

    def endless():
        while True:
            read.append(len(read))
            yield b"%d" % read[-1]

    answers = translate_lines(Recorder(), endless(), batch_size=2, window=5)
    for number in range(1, 18):
        assert next(answers).text == b"%d" % (number - 1)
        assert len(read) == -(-number // 5) * 5


def test_no_lines():
    assert list(translate_lines(Recorder(), [], batch_size=2, window=5)) == []


def test_missing_answer_is_an_error():
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
def test_one_line(text, line):
    assert one_line(text) == line
