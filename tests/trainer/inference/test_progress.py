import io

import pytest

from trainer.inference import progress
from trainer.inference.progress import Progress


class Terminal(io.StringIO):
    def isatty(self):
        return True


def tell(file, monkeypatch, **options):
    now = iter([10.0, 14.0])
    monkeypatch.setattr(progress.time, "monotonic", lambda: next(now))
    told = Progress(file, **options)
    call = told.counting(lambda batch: [word.upper() for word in batch])
    assert call(["a", "b", "c"]) == ["A", "B", "C"] and call(["d"]) == ["D"]
    told.say("warning: mind")
    told.close()
    told.print_rate()
    return file.getvalue()


def test_no_bar_in_files(monkeypatch):
    said = tell(io.StringIO(), monkeypatch, total=7)
    assert (
        said == "warning: mind\n4 sentences in 4.0 s: 1.0 sentences per second, "
        "without the time to load the model\n"
    )


def test_bar_on_a_terminal():
    file = Terminal()
    told = Progress(file, total=7, done=2)
    told.counting(lambda batch: batch)(["a", "b", "c"])
    told.say("warning: mind")
    told.close()
    assert (
        "2/7 [" in file.getvalue()
        and "5/7 [" in file.getvalue()
        and "warning: mind\n" in file.getvalue()
    )


def test_hidden_bar(monkeypatch):
    assert tell(Terminal(), monkeypatch, total=7, bar=False).startswith(
        "warning: mind\n4 sentences"
    )


@pytest.mark.parametrize(
    ("count", "seconds", "text"),
    [
        (0, 0.0, "0 sentences in 0.0 s: 0.0 sentences"),
        (12345, 1234.56, "12,345 sentences in 1,234.6 s: 10.0 sentences"),
        (5_000_000, 1000.0, "5,000,000 sentences in 1,000.0 s: 5,000 sentences"),
    ],
)
def test_rate(count, seconds, text):
    assert progress.rate(count, seconds).startswith(text + " per second, without")
