"""Tests of Markdown and CSV tables."""

from benchmarks.common import tables


def test_tables_write_markdown_and_csv(tmp_path, capsys):
    tables.print_header(["model", "low – high"])
    tables.print_cells(["this", "2 – 3"])
    assert capsys.readouterr().out == "| model | low – high |\n| --- | --- |\n| this | 2 – 3 |\n"
    path = tmp_path / "new" / "table.csv"
    rows = [{"ratio": 1.5, "model": "a, b"}, {"model": "c", "ratio": ""}]
    tables.write_csv(path, ("model", "ratio"), rows)
    assert path.read_bytes() == b'model,ratio\r\n"a, b",1.5\r\nc,\r\n'
