"""The pictures of docs/page.md and the README: views of the page over real and constructed jobs, in Chromium.

Stage: documentation. In: a database of ``rankmem demo``; the recordings beside the project, if there. Out:
``docs/page/NAME.png``. Run as ``PYTHONPATH=tests/support python tests/tools/page_pictures.py DEMO.duckdb``,
followed by names if only some are wanted.
"""

from __future__ import annotations

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

import duckdb
from PIL import Image
from playwright.sync_api import Browser

from constructed import empty_database
from main_job import RANKMEM
from oom_job import too_small
from page_browser import OpenPage, chromium, opened_page
from page_server import served_page
from page_steps_story import make_story
from page_story import write_story
from rankmem_aggregator import connect
from rankmem_protos.errors import RankmemError
from waiting import until

ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = ROOT / "docs" / "page"
RECORDINGS: Final = ROOT.parent / "shared" / "recordings"
SEVERAL: Final = (
    "kineto/h100_vit.json.gz",
    "torch_snapshot/forward_fp32.pickle",
    "ascend/text",
    "nsys/mmagic.sqlite",
)
"""What the list of sessions has besides the demo."""
_NAMED: Final = "UPDATE host_info SET host_name = host_uid; UPDATE session SET name = 'pretrain'"
"""As jobs name themselves, in the place of what tests read."""
LIVE_STEPS: Final = 12
COLOURS: Final = 256
"""Of a picture: fewer bytes, and hardly a difference to the eye."""


@dataclass(frozen=True, slots=True)
class Scene:
    """A view over a database, recorded or in an aggregator's hands."""

    name: str
    database: Path
    state: dict[str, Any]


def main(demo: Path, names: Collection[str] = ()) -> None:
    """Takes the pictures of these names, or all."""
    FOLDER.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, chromium() as browser:
        for scene in scenes(Path(folder), demo):
            if names and scene.name not in names:
                continue
            target = FOLDER / f"{scene.name}.png"
            with shown(browser, scene) as page:
                picture = Image.open(io.BytesIO(page.tab.screenshot()))
            picture.quantize(COLOURS).save(target, optimize=True)
            print(f"{scene.name}: {target.stat().st_size / 1000:.0f} kB")


def scenes(folder: Path, demo: Path) -> Iterator[Scene]:
    """What there is to be seen, one after the other; the live job runs while its scene is looked at.

    Args:
        folder: for databases that are made for it.
        demo: a database of ``rankmem demo``.
    """
    story, steps, failed = (folder / f"{name}.duckdb" for name in ("story", "steps", "failed"))
    write_story(story)
    make_story(steps)
    with empty_database(str(failed)) as connection:
        too_small(connection)
    for database in (story, steps, failed):
        with duckdb.connect(str(database)) as connection:
            connection.execute(_NAMED)
    yield Scene("job", story, {"view": "job", "mode": "median", "group": "pp"})
    yield Scene("rank", demo, {"view": "rank", "rank": 0})
    yield Scene("blocks", demo, {"view": "blocks", "rank": 0})
    yield Scene("model", demo, {"view": "model", "rank": 0})
    yield Scene("trust", demo, {"view": "trust"})
    yield Scene("sql", demo, {"view": "sql", "sql": "SELECT+*+FROM+peak_by_rank+ORDER+BY+rank"})
    yield Scene("peak", story, {"view": "peak", "of": "pp"})
    yield Scene("steps", steps, {"view": "steps"})
    yield Scene("diff", demo, {"view": "diff", "by": "line"})
    yield Scene("fit", steps, {"view": "fit", "size": 4})
    yield Scene("oom", failed, {"view": "oom"})
    if RECORDINGS.exists():
        yield from _of_recordings(folder, demo)
    with _training(folder / "live.duckdb") as database:
        yield Scene("live", database, {"view": "rank", "rank": 0})


@contextlib.contextmanager
def shown(
    browser: Browser,
    scene: Scene,
    theme: Literal["light", "dark"] = "light",
    *,
    width: int = 1280,
    height: int = 800,
) -> Iterator[OpenPage]:
    """The scene in a window of this size."""
    with (
        served_page(scene.database) as client,
        opened_page(browser, client, width=width, height=height) as page,
    ):
        page.tab.emulate_media(color_scheme=theme)
        page.open(**scene.state)
        page.tab.wait_for_timeout(300)
        yield page


def _of_recordings(folder: Path, demo: Path) -> Iterator[Scene]:
    segments, ascend, several = (folder / f"{name}.duckdb" for name in ("segments", "ascend", "several"))
    _import("torch_snapshot/npu_expandable.pkl", segments)
    yield Scene("segments", segments, {"view": "segments"})
    _import("ascend/text", ascend)
    yield Scene("mindstudio", ascend, {"view": "mindstudio"})
    shutil.copy(demo, several)
    for recording in SEVERAL:
        _import(recording, several)
    yield Scene("sessions", several, {"view": "sessions"})


def _import(recording: str, database: Path) -> None:
    command = (*RANKMEM, "import", str(RECORDINGS / recording), "--db", str(database))
    subprocess.run(command, check=True, capture_output=True)


@contextlib.contextmanager
def _training(database: Path) -> Iterator[Path]:
    """A demo that goes on for as long as it is looked at; its aggregator answers for the database."""
    command = (*RANKMEM, "demo", "--steps", "100000", "--db", str(database))
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            until("the demo has made steps", lambda: _steps(database) >= LIVE_STEPS)
            yield database
        finally:
            process.terminate()


def _steps(database: Path) -> int:
    try:
        with connect(database) as queries:
            return int(queries.sql("SELECT count(DISTINCT step) FROM step").to_pylist()[0].popitem()[1])
    except RankmemError:  # there is no database yet
        return 0


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
