"""Prints the table of docs/how_it_works/dispatch.md: python docs/site_build/dispatch_table.py"""

from t2t_relpos.attention.dispatch import BLOCK_REQUIREMENTS, QUADRATIC_MEMORY_ALLOWED, TABLE


def table_as_markdown():
    """Returns the dispatch table, with abbreviations for common requirements."""
    header = ["Implementation", "Function", "Requires", "Chosen for", "Saved `[T, S]` matrices"]
    lines = [header, ["---"] * len(header)]
    for row in TABLE:
        chosen = "; ".join(condition.text for condition in row.preferences) or "all"
        requires = "; ".join(_abbreviated(row.requirements))
        lines.append(
            [f"`{row.name}`", f"`{row.function}`", requires, chosen, str(row.saved_matrices)]
        )
    return "\n".join("| " + " | ".join(line) + " |" for line in lines)


def _abbreviated(requirements):
    """Yields the texts of requirements. All block requirements together have one text."""
    has_block_requirements = set(BLOCK_REQUIREMENTS) <= set(requirements)
    for requirement in requirements:
        if requirement is QUADRATIC_MEMORY_ALLOWED:
            yield "quadratic memory allowed"
        elif not has_block_requirements or requirement not in BLOCK_REQUIREMENTS:
            yield requirement.text
        elif requirement is BLOCK_REQUIREMENTS[0]:
            yield "block requirements"


if __name__ == "__main__":
    print(table_as_markdown())
