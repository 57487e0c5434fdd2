"""Tables as they are printed and written."""


def test_markdown_and_csv(load, tmp_path, capsys):
    tables = load("tables")
    tables.print_header(["peer", "low – high"])
    tables.print_cells(["ours", "2 – 3"])
    assert capsys.readouterr().out == "| peer | low – high |\n| --- | --- |\n| ours | 2 – 3 |\n"
    path = tmp_path / "table.csv"
    tables.write_csv(
        path, ("peer", "ratio"), [{"ratio": 1.5, "peer": "a, b"}, {"peer": "c", "ratio": ""}]
    )
    assert path.read_bytes() == b'peer,ratio\r\n"a, b",1.5\r\nc,\r\n'
