"""What the web page's modules share with the Python side, as one of them; a test holds it current.

Stage: tests. ``python tests/tools/page_facts.py`` (``make docs``) writes it.
"""

from __future__ import annotations

import json
from typing import Final

from rankmem_aggregator.page.answers.cell import RANKS_AT_MOST
from rankmem_aggregator.page.static_files import static_folder
from rankmem_aggregator.page.whole_session import CELLS_MAX
from rankmem_protos.groupings import offered

MODULE: Final = static_folder() / "facts.js"


def module() -> str:
    """The module, made anew."""
    groupings = "\n".join(
        f"  {json.dumps([each.name, each.words or each.name])},"
        for each in offered("timeline")
        if each.of == "blocks"
    )
    return f"""// What the page shares with rankmem's Python. Made by tests/tools/page_facts.py (make docs).

// What blocks can be grouped by, and the words for it.
export const BLOCK_GROUPINGS = [
{groupings}
];
// Ranks of a request of /cell at most.
export const CELL_RANKS_MAX = {RANKS_AT_MOST};
// Intervals of time of a diagram of cells at most.
export const CELLS_MAX = {CELLS_MAX};
"""


if __name__ == "__main__":
    MODULE.write_text(module(), encoding="utf-8")
