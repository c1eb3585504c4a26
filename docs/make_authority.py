"""Write the table "What a leader may answer" into `replication_rules.rst`, from the tables in
`pybroker/replication/authority.py`. `make docs` runs this module; a test compares the page with
`render()`."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from pybroker.replication.authority import NEEDED, SHORT_OF, Authority

PAGE: Final = Path(__file__).parent / "replication_rules.rst"
BEGIN: Final = ".. To change the table, change ``NEEDED`` and run ``make docs``.\n"
END: Final = ".. The table ends here.\n"
HEAD: Final = """
.. list-table::
   :header-rows: 1
   :widths: 15 40 45

"""


def render() -> str:
    """The part of the page between the marks, with them."""
    rows = [
        ("Level", "The broker also answers", "Why a replica has only this level"),
        *map(_row, Authority),
    ]
    lines = ["\n     - ".join(cells).rstrip() for cells in rows]
    return f"{BEGIN}{HEAD}" + "".join(f"   * - {line}\n" for line in lines) + f"\n{END}"


def _row(authority: Authority) -> tuple[str, str, str]:
    asked = "; ".join(each for each, needed in NEEDED.items() if needed is authority)
    reason = SHORT_OF.get(authority, "").format("the partition")
    return f"``{authority.name}``", asked or "no request", reason


def main() -> None:
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    PAGE.write_text(before + render() + after, encoding="utf-8")


if __name__ == "__main__":
    main()
