"""Write the tables of a report into pages, anew between `<!-- NAME -->` and `<!-- end -->`.

python scripts/write_tables.py results/mnist-study docs/findings.md
"""

import re
import sys
from pathlib import Path


def written(page: str, directory: Path) -> str:
    """The page with its tables as the report has them."""

    def table(found: re.Match[str]) -> str:
        rows = [line for line in (directory / f"{found[1]}.md").read_text().splitlines() if line.startswith("|")]
        return "\n".join([f"<!-- {found[1]} -->", "", *rows, "", "<!-- end -->"])

    return re.sub(r"<!-- ([\w-]+) -->\n.*?<!-- end -->", table, page, flags=re.DOTALL)


if __name__ == "__main__":
    report, *pages = map(Path, sys.argv[1:])
    for path in pages:
        path.write_text(written(path.read_text(), report))
