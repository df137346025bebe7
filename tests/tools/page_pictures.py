"""The pictures of docs/page.md and the README: views of the page over real and constructed jobs, in Chromium.

Stage: documentation. In: a database of ``rankmem demo``; the recordings beside the project, if there. Out:
``docs/page/NAME.png``. Run as ``PYTHONPATH=tests/support python tests/tools/page_pictures.py DEMO.duckdb``.
"""

from __future__ import annotations

import io
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from PIL import Image

from page_browser import chromium, opened_page
from page_server import served_page
from page_steps_story import make_story
from page_story import write_story

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "page"
RECORDINGS: Final = ROOT.parent / "shared" / "recordings"
SIZE: Final = {"width": 1280, "height": 800}
COLOURS: Final = 256
"""Of a picture: fewer bytes, and hardly a difference to the eye."""


def main(demo: Path) -> None:
    """Takes all pictures."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        story, steps = Path(folder) / "story.duckdb", Path(folder) / "steps.duckdb"
        write_story(story)
        make_story(steps)
        pictures: list[tuple[str, Path, dict[str, Any]]] = [
            ("job", story, {"view": "job", "mode": "median", "group": "pp"}),
            ("rank", demo, {"view": "rank", "rank": 0}),
            ("blocks", demo, {"view": "blocks", "rank": 0}),
            ("model", demo, {"view": "model", "rank": 0}),
            ("trust", demo, {"view": "trust"}),
            ("sql", demo, {"view": "sql", "sql": "SELECT+*+FROM+peak_by_rank+ORDER+BY+rank"}),
            ("peak", story, {"view": "peak", "of": "pp"}),
            ("steps", steps, {"view": "steps"}),
            ("diff", demo, {"view": "diff", "by": "line"}),
            ("fit", steps, {"view": "fit", "size": 4}),
        ]
        for name, recording in (
            ("segments", RECORDINGS / "torch_snapshot" / "npu_expandable.pkl"),
            ("mindstudio", RECORDINGS / "ascend" / "text"),
        ):
            if recording.exists():
                database = Path(folder) / f"{name}.duckdb"
                command = [
                    sys.executable,
                    "-m",
                    "rankmem_cli",
                    "import",
                    str(recording),
                    "--db",
                    str(database),
                ]
                subprocess.run(command, check=True, capture_output=True)
                pictures.append((name, database, {"view": name}))
        with chromium() as browser:
            for name, database, state in pictures:
                with served_page(database) as client, opened_page(browser, client, **SIZE) as page:
                    page.tab.emulate_media(color_scheme="light")
                    page.open(**state)
                    page.tab.wait_for_timeout(300)
                    picture = Image.open(io.BytesIO(page.tab.screenshot()))
                    picture.quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)
                print(f"{name}: {(FOLDER / f'{name}.png').stat().st_size / 1000:.0f} kB")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
