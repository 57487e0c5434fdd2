"""Tests that docs/how_it_works/parity.md lists all comparisons."""

import pathlib

import compare
import recorded_model

PAGE = pathlib.Path(__file__).parents[2] / "docs" / "how_it_works" / "parity.md"
REGENERATE = "regenerate: python tests/reference/compare.py > docs/how_it_works/parity.md"


def test_parity_page_contains_the_template_text():
    page = PAGE.read_text()
    for paragraph in compare.TEMPLATE.read_text().split("\n\n"):
        if "$" not in paragraph:
            assert paragraph.strip() in page, REGENERATE


def test_parity_page_has_a_row_for_each_comparison():
    rows = [line for line in PAGE.read_text().splitlines() if line.startswith("| `")]
    for name in compare.compare_models.NAMES:
        # The second table is that of decoded ids.
        tables = 1 + (recorded_model.FOLDER / name / "decoded.npz").exists()
        assert sum(row.startswith(f"| `{name}` |") for row in rows) == tables, REGENERATE
    for family in compare.FAMILIES:
        for dtype in compare.compare_attention.DTYPES:
            cases = len(family.paths(dtype))
            start = f"| `{family.theirs}` | `{family.ours}` | {dtype} | {cases} |"
            assert sum(row.startswith(start) for row in rows) == (cases > 0), REGENERATE
    for path in compare.compare_subwords.VOCABULARIES:
        matching = [row for row in rows if row.startswith(f"| `{path.stem}` |")]
        assert sum("| 0 of " in row for row in matching) == 1, REGENERATE


def test_model_table_formats_measurements():
    Measurement = compare.compare_models.Measurement
    measurements = [
        Measurement("learned", "loss", 2e-7, 1e-6, 1),
        Measurement("learned", "gradients", 3e-5, 1e-4, 68),
        Measurement("learned", "beam ids", 2.0, 0, 100),
    ]
    assert compare.model_table(measurements, ["loss", "gradients", "beam ids", "greedy ids"]) == (
        "| model | loss | gradients | beam ids | greedy ids |\n"
        "| --- | --- | --- | --- | --- |\n"
        "| *limit* | 1e-06 | 1e-04 | 0 | 0 |\n"
        "| `learned` | 2.0e-07 | 3.0e-05 (68) | 2 of 100 | – |"
    )
    assert [m.holds for m in measurements] == [True, True, False]
    assert not Measurement("learned", "loss", float("nan"), 1e-6, 1).holds
    assert not Measurement("learned", "loss", 0.0, 1e-6, 0).holds
