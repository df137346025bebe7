"""What the page costs in a browser: first picture, zoom, pick, frames while panning, bytes, memory.

Stage: benchmark. In: a database file; out: figures. The page is served in this process and opened in
Debian's Chromium, so browser, server and whatever else runs share the machine: CPU of the renderer stands
beside each wall.
"""

from __future__ import annotations

import gzip
import random
import re
import statistics
import time
from collections.abc import Callable, Iterator
from importlib import resources
from pathlib import Path
from typing import Any, Final

import psutil
from harness import Figure, say
from page_routes import Scale
from playwright import sync_api as playwright
from playwright.sync_api import Browser, CDPSession
from synthetic_database import SESSION

from page_browser import CHROMIUM, OpenPage, chromium, opened_page
from page_server import served_page
from rankmem_aggregator.page.static_files import StaticFiles, static_folder

FIRST_PICTURE_MS: Final = 300.0
ALL_PANELS_MS: Final = 1000.0
FIND_MS: Final = 50.0
FRAME_MS: Final = 8.0
ASSETS_KB: Final = 120.0
FIRST_VIEW_KB: Final = 700.0
HEAP_MB: Final = 64.0
RENDERER_MB: Final = 250.0
PAN_STEPS: Final = 60
_WATCH: Final = """
(() => {
  const seen = { first: null, frames: [] };
  window.benchmark = seen;
  const frame = window.requestAnimationFrame.bind(window);
  window.requestAnimationFrame = (draw) => frame((now) => {
    const began = performance.now();
    draw(now);
    seen.frames.push(performance.now() - began);
  });
  const look = () => {
    const cards = [...document.querySelectorAll("section.card[id]")];
    const done = cards.some((card) => !card.hasAttribute("aria-busy") && card.querySelector("canvas")
      && window.rankmem?.drawn(card.id));
    if (done) seen.first = performance.now();
    else frame(look);
  };
  frame(look);
})();
"""
"""Notes when the first panel with a canvas is drawn, and how long each of the page's frames takes."""


def browser_figures(path: Path, scale: Scale, *, interactions: int) -> Iterator[Figure]:
    """Figures of one database; a line that says so where there is no browser."""
    yield Figure(
        what=f"{scale.name}: assets of a first view, as sent",
        value=_first_view_kb(),
        unit="kB",
        at_most=ASSETS_KB,
    )
    yield Figure(
        what=f"{scale.name}: assets, gzip",
        value=_assets_kb(),
        unit="kB",
        at_most=ASSETS_KB,
        note="all modules",
    )
    if not Path(CHROMIUM).exists():
        yield Figure(what="browser", value=float("nan"), note=f"not measured: no Chromium at {CHROMIUM}")
        return
    with served_page(path) as client, chromium() as browser, opened_page(browser, client) as page:
        page.expected = ("",)  # a benchmark reports; the tests fail on what a console says
        page.tab.context.add_init_script(_WATCH)
        cdp = page.tab.context.new_cdp_session(page.tab)
        cdp.send("Performance.enable")
        measured = _Measured(page, cdp, browser, scale)
        for measure in (measured.opening, measured.finding, measured.zooms, measured.picks, measured.panning):
            try:
                yield from measure()
            except (
                AssertionError,
                playwright.Error,
            ) as exc:  # a view that changes its shape is no reason to lose the others
                name = f"{scale.name}: {measure.__name__}"
                yield Figure(what=name, value=float("nan"), note=f"not measured: {str(exc).splitlines()[0]}")
        yield from measured.memory(interactions)


class _Measured:
    """A tab that is measured."""

    def __init__(self, page: OpenPage, cdp: CDPSession, browser: Browser, scale: Scale) -> None:
        self._page = page
        self._cdp = cdp
        self._system = browser.new_browser_cdp_session()
        self._scale = scale
        self._random = random.Random(11)

    def opening(self) -> Iterator[Figure]:
        """From the address to the first picture and to all panels; the second time, when DuckDB is warm."""
        for _ in range(2):
            began_s, began_cpu_s = time.perf_counter(), self._cpu_s()
            self._page.open(s=SESSION)
            all_ms = 1e3 * (time.perf_counter() - began_s)
            cpu_ms = 1e3 * (self._cpu_s() - began_cpu_s)
        first_ms = float(self._page.until("window.benchmark.first"))
        sizes = self._page.tab.evaluate(
            "() => performance.getEntriesByType('resource').map(e => [e.name, e.transferSize])"
        )
        data = sum(size for name, size in sizes if "/api/" in name)
        yield self._figure("first picture, wall", first_ms, "ms", at_most=FIRST_PICTURE_MS)
        note = f"renderer's CPU {cpu_ms:.0f} ms"
        yield self._figure("all panels, wall", all_ms, "ms", at_most=ALL_PANELS_MS, note=note)
        yield self._figure("data of the first view", data / 1e3, "kB", at_most=FIRST_VIEW_KB)

    def finding(self) -> Iterator[Figure]:
        """Ranks by number, host and coordinates."""
        took: list[float] = []
        for text in ("7", "pp=1", "node", str(self._scale.ranks - 1)):
            self._page.tab.fill("input.find", text)
            took.append(float(self._page.tab.evaluate("document.querySelector('.finder').lastMs")))
        self._page.tab.fill("input.find", "")
        yield self._figure("ranks found, the longest", max(took), "ms", at_most=FIND_MS)

    def zooms(self) -> Iterator[Figure]:
        """To random ranges."""
        yield self._changes("zoom", self._range)

    def picks(self) -> Iterator[Figure]:
        """Of random ranks."""
        yield self._changes("pick a rank", lambda: {"rank": self._random.randrange(self._scale.ranks)})

    def panning(self) -> Iterator[Figure]:
        """Frames while a canvas is dragged, of each panel that has one."""
        tab = self._page.tab
        self._page.change(**self._range(least=0.01, most=0.1))
        cards = tab.evaluate(
            "() => [...document.querySelectorAll('section.card[id]')].filter(c => c.querySelector('canvas'))"
            ".map(c => c.id)"
        )
        for card in cards:
            canvas = tab.locator(f"#{card} canvas").first
            canvas.scroll_into_view_if_needed()
            box = canvas.bounding_box()
            if box is None:
                continue
            tab.evaluate("() => { window.benchmark.frames.length = 0; }")
            x, y = box["x"] + 0.7 * box["width"], box["y"] + 0.5 * box["height"]
            tab.keyboard.down("Shift")
            tab.mouse.move(x, y)
            tab.mouse.down()
            tab.mouse.move(x - 0.4 * box["width"], y, steps=PAN_STEPS)
            tab.mouse.up()
            tab.keyboard.up("Shift")
            self._page.settle()
            frames = sorted(tab.evaluate("() => window.benchmark.frames"))
            if frames:
                at = frames[min(len(frames) - 1, int(0.95 * len(frames)))]
                note = f"{len(frames)} frames, the longest {frames[-1]:.1f} ms"
                yield self._figure(
                    f"{card}, a frame while panning, p95", at, "ms", at_most=FRAME_MS, note=note
                )

    def memory(self, interactions: int) -> Iterator[Figure]:
        """Of the tab, after many zooms and picks."""
        for number in range(interactions):
            more = {} if number % 5 else {"rank": self._random.randrange(self._scale.ranks)}
            self._page.tab.evaluate(
                "changes => window.rankmem.state.change(changes)", {**self._range(), **more}
            )
            if number % 10 == 0:
                self._page.settle()
        self._page.settle()
        self._cdp.send("HeapProfiler.collectGarbage")
        heap = self._metrics()["JSHeapUsedSize"] / 1e6
        yield self._figure(f"heap after {interactions} interactions", heap, "MB", at_most=HEAP_MB)
        renderers = [each["id"] for each in self._processes() if each["type"] == "renderer"]
        memory = max((psutil.Process(each).memory_full_info() for each in renderers), key=lambda all: all.rss)
        note = f"{memory.rss / 1e6:.0f} MB resident, with what it shares with Chromium's other processes"
        yield self._figure(
            "renderer's own memory then", memory.uss / 1e6, "MB", at_most=RENDERER_MB, note=note
        )

    def _changes(self, name: str, change: Callable[[], dict[str, Any]]) -> Figure:
        wall: list[float] = []
        cpu: list[float] = []
        for _ in range(8):
            began_s, began_cpu_s = time.perf_counter(), self._cpu_s()
            self._page.change(**change())
            wall.append(1e3 * (time.perf_counter() - began_s))
            cpu.append(1e3 * (self._cpu_s() - began_cpu_s))
        note = f"renderer's CPU {statistics.median(cpu):.0f} ms; highest {max(wall):.0f} ms"
        return self._figure(f"{name}, to all panels, wall", statistics.median(wall), "ms", note=note)

    def _range(self, *, least: float = 0.0001, most: float = 1.0) -> dict[str, int]:
        share = least * (most / least) ** self._random.random()
        begin = self._random.uniform(0, 1 - share) * self._scale.span_ns
        return {"from": int(begin), "to": int(begin + share * self._scale.span_ns)}

    def _figure(self, what: str, value: float, unit: str, **more: Any) -> Figure:
        say(f"{self._scale.name}: {what}: {value:.4g} {unit}")
        return Figure(what=f"{self._scale.name}: {what}", value=value, unit=unit, **more)

    def _metrics(self) -> dict[str, float]:
        found = self._cdp.send("Performance.getMetrics")["metrics"]
        return {each["name"]: each["value"] for each in found}

    def _processes(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self._system.send("SystemInfo.getProcessInfo")["processInfo"]
        return found

    def _cpu_s(self) -> float:
        """CPU of all renderers so far."""
        return sum(float(each["cpuTime"]) for each in self._processes() if each["type"] == "renderer")


def _first_view_kb() -> float:
    """The page and all that it names, as a browser without them gets them."""
    files = StaticFiles(static_folder())
    page, _ = files.file("/")
    names = {"/", *(f"/{name}" for name in re.findall(r'(?:href|src)="([^"#]+)"', page.plain().decode()))}
    return sum(len(files.file(name)[0].data) for name in names) / 1e3


def _assets_kb() -> float:
    """All files that the page may load, each compressed by itself."""
    static = resources.files("rankmem_aggregator.page") / "static"
    waiting, total = [static], 0
    while waiting:
        for entry in waiting.pop().iterdir():
            if entry.is_dir():
                waiting.append(entry)
            elif entry.name.endswith((".js", ".css", ".html", ".svg")):
                total += len(gzip.compress(entry.read_bytes()))
    return total / 1e3
