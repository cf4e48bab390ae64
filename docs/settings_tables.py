"""Write the tables of settings into the pages, from the declarations of the estimators: `make settings`.

A page marks the place with `<!-- settings: NAME -->` and `<!-- end -->`; what is between them is replaced.
"""

import re
from pathlib import Path

import regard
from regard.estimators.settings import settings_table

MARKED = re.compile(r"(<!-- settings: (\w+) -->\n).*?(<!-- end -->)", re.DOTALL)


def with_tables(page: str) -> str:
    """The text of a page with up-to-date tables."""
    return MARKED.sub(lambda found: f"{found[1]}\n{settings_table(getattr(regard, found[2]))}\n\n{found[3]}", page)


if __name__ == "__main__":
    for path in sorted(Path(__file__).parent.glob("*.md")):
        path.write_text(with_tables(path.read_text()))
