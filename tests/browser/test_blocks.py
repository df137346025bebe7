"""The table of blocks and the flame graph in a real browser: clicks filter, what is copied is exact."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from playwright.sync_api import Browser, Route

from constructed import RankLog, empty_database, store_logs, store_rows
from page_browser import OpenPage, opened_page
from page_server import PageClient, served_page

SECOND = 1_000_000_000
BLOCKS = 60
KNOWN_BY = {
    BLOCKS - 2: {"attribution": "template", "like_id": 3},
    BLOCKS - 3: {"attribution": "none"},
}
HOSTILE = "=cmd|' /C calc'!A0"


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PageClient]:
    path = tmp_path_factory.mktemp("page") / "blocks.duckdb"
    log = RankLog(rank=3, ended=100 * SECOND)
    for i in range(BLOCKS):
        log.alloc(
            f"b{i}",
            (i + 1) << 10,
            at=i * SECOND,
            category=("activation", "gradient")[i % 2],
            operator=HOSTILE if i == BLOCKS - 1 else f"aten::op{i % 3}",
            module=f"net.layers.{i % 2}",
            stack_id=1 + i % 2 if i % 10 else None,
            **KNOWN_BY.get(i, {"attribution": "observed"}),
        )
    for i in range(0, BLOCKS, 4):
        log.free(f"b{i}", at=(60 + i // 4) * SECOND)
    frames = {
        1: [("src/model.py", 7, "forward"), ("src/model.py", 30, "call"), ("src/train.py", 40, "main")],
        2: [("src/loss.py", 9, "loss"), ("src/model.py", 30, "call"), ("src/train.py", 40, "main")],
    }
    with empty_database(str(path)) as connection:
        store_logs(connection, [log])
        rows = [
            {"stack_id": stack, "ordering": i, "file_path": file, "line_number": line, "function": name}
            for stack, each in frames.items()
            for i, (file, line, name) in enumerate(each)
        ]
        store_rows(connection, "stack_frame", rows)
    with served_page(path) as served:
        yield served


@pytest.fixture(scope="module")
def opened(browser: Browser, client: PageClient) -> Iterator[OpenPage]:
    with opened_page(browser, client) as page:
        page.open(view="blocks")
        yield page


@pytest.fixture
def page(opened: OpenPage) -> OpenPage:
    """The page as it is when it is opened: opening it anew takes seconds."""
    opened.tab.evaluate(
        """() => {
            localStorage.clear();
            for (const dialog of document.querySelectorAll('dialog')) dialog.close();
            for (const input of document.querySelectorAll('input')) input.value = '';
            const {state} = window.rankmem;
            const keys = ['pick', 'q', 'fit', 'sort', 'limit', 'which', 'from', 'to', 'seq', 'tree', 'vain'];
            state.change(Object.fromEntries([...keys.map(key => [key, null]), ['view', 'sessions']]));
        }"""
    )
    opened.until("window.rankmem.panel('sessions')?.drawn")
    opened.change(view="blocks")
    opened.until("['flame', 'blocks', 'inefficient'].every(id => window.rankmem.panel(id)?.drawn)")
    return opened


def _ids(page: OpenPage) -> list[int]:
    return [row["allocation_id"] for row in page.drawn("blocks")["rows"]]


def _box(page: OpenPage, name: str) -> dict[str, Any]:
    """Where a frame's largest box is, in pixels of the window."""
    found: dict[str, Any] = page.tab.evaluate(
        """name => {
            const {graph} = window.flame;
            const box = graph.painted.find(each => graph.tree.name[each.node] === name);
            graph.surface.canvas.scrollIntoView({block: "nearest"});
            const place = graph.surface.canvas.getBoundingClientRect();
            return {x: place.left + box.x + box.width / 2, y: place.top + box.y + 9};
        }""",
        name,
    )
    return found


def _has_graph(page: OpenPage) -> None:
    page.tab.evaluate("() => { window.flame = {graph: window.rankmem.panel('flame').graph}; }")


def _click(page: OpenPage, name: str, button: str = "left") -> None:
    _has_graph(page)
    page.until(f"window.flame.graph.painted.some(box => window.flame.graph.tree.name[box.node] === '{name}')")
    box = _box(page, name)
    page.tab.mouse.click(box["x"], box["y"], button=button)
    page.settle()


@pytest.mark.long
def test_the_table_turns_its_pages_and_sorts_in_three_states(page: OpenPage) -> None:
    assert _ids(page) == list(range(BLOCKS - 1, 9, -1))
    page.tab.click("text=next")
    page.settle()
    assert _ids(page) == list(range(9, -1, -1))
    assert page.tab.inner_text(".pager .note") == "51 to 60 of 60"
    for state in ("-operator", "operator", None):
        page.tab.click("th button:has-text('operator')")
        page.settle()
        assert page.state("sort") == state
    assert _ids(page)[0] == BLOCKS - 1


def test_words_and_ranges_filter_and_stay_in_the_link(page: OpenPage) -> None:
    page.tab.fill("#blocks input[type=search]", "op1 layers.0")
    page.until("window.rankmem.state.get('q') === 'op1 layers.0'")
    page.settle()
    assert {row["operator"] for row in page.drawn("blocks")["rows"]} == {"aten::op1"}
    page.tab.click("#blocks button:has-text('ranges')")
    page.tab.fill("dialog input[aria-label='size, at least']", "20 KiB")
    page.tab.keyboard.press("Enter")
    page.settle()
    assert page.state("fit") == f"size_min:{20 << 10}"
    sizes = [row["size_bytes"] for row in page.drawn("blocks")["rows"]]
    assert sizes == [size << 10 for size in (59, 53, 47, 41, 35, 29, 23)]
    page.tab.click("#blocks .bar .chip")
    page.settle()
    assert len(_ids(page)) == 10


def test_a_block_whose_call_was_not_observed_says_by_what_it_is_known(page: OpenPage) -> None:
    for block, text in ((BLOCKS - 2, "category are those of block 3"), (BLOCKS - 3, "nothing: its call")):
        page.tab.click(f"#blocks tbody tr:nth-child({BLOCKS - block})")
        page.until(f"document.querySelector('#blocks .detail .title').textContent.includes('block {block}:')")
        (line,) = [each for each in page.tab.inner_text("#blocks .detail").split("\n") if "known by" in each]
        assert text in line


def test_a_row_shows_its_stack_and_a_group_becomes_a_chip(page: OpenPage) -> None:
    page.tab.click("#blocks tbody tr:first-child")
    page.until("document.querySelector('#blocks .detail').dataset.frames === '3'")
    assert page.state("pick") == f"block:{BLOCKS - 1}"
    assert "src/loss.py:9 loss" in page.tab.inner_text("#blocks .detail")
    assert len(_ids(page)) == 50, "a chosen block does not filter its own table"
    assert "known by" not in page.tab.inner_text("#blocks .detail")
    page.tab.click("#blocks .detail .chip:has-text('category')")
    page.settle()
    assert {row["category"] for row in page.drawn("blocks")["rows"]} == {"gradient"}
    assert page.drawn("flame")["facts"]["bytes"] == sum((i + 1) << 10 for i in range(1, BLOCKS, 2))
    page.tab.click("#blocks .chips .chip:has-text('gradient')")
    page.settle()
    assert page.state("pick") == f"block:{BLOCKS - 1}"


def test_arrow_keys_go_from_row_to_row(page: OpenPage) -> None:
    page.tab.focus("#blocks tbody tr:first-child")
    for key in ("ArrowDown", "ArrowDown", "ArrowUp", "Enter"):
        page.tab.keyboard.press(key)
    page.settle()
    assert page.state("pick") == f"block:{BLOCKS - 2}"


def test_copied_rows_are_exact_and_never_formulas(page: OpenPage) -> None:
    page.tab.evaluate("() => document.querySelector('#blocks .tools button:nth-child(2)').click()")
    text = page.tab.evaluate("() => window.rankmem.panel('blocks').rows.copied")
    lines = [line.split("\t") for line in text.split("\n")]
    assert lines[0][:3] == ["size", "category", "operator"]
    assert lines[1][:3] == [str(BLOCKS << 10), "gradient", f"'{HOSTILE}"]
    assert len(lines) == 51


def test_a_click_on_a_frame_zooms_and_filters_the_table(page: OpenPage) -> None:
    bytes_of = sum((i + 1) << 10 for i in range(BLOCKS) if i % 2 == 0 and i % 10)
    assert page.drawn("flame")["facts"]["bytes"] == sum((i + 1) << 10 for i in range(BLOCKS))
    _click(page, "src/model.py:7 forward")
    assert page.state("pick") == "frame:src%2Fmodel.py%3A7%20forward"
    flame = page.drawn("flame")
    assert flame["bytes"][flame["focus"]] == bytes_of
    assert page.drawn("blocks")["total"]["bytes"] == bytes_of
    page.tab.click("#flame .path button:has-text('all')")
    page.settle()
    assert page.state("pick") is None
    assert page.drawn("flame")["focus"] == 0


FRAME_BLOCKS = [i for i in range(BLOCKS) if i % 2 == 0 and i % 10]
"""Those made below src/model.py:7."""


def _freed_s(block: int) -> int | None:
    return 60 + block // 4 if block % 4 == 0 else None


def test_a_frame_of_the_flame_graph_filters_the_curve_the_map_and_the_table(page: OpenPage) -> None:
    page.change(view="job", by="operator")
    whole = page.drawn("curve")
    _click(page, "src/model.py:7 forward")
    assert page.state("pick") == "frame:src%2Fmodel.py%3A7%20forward"
    curve = page.drawn("curve")
    summed = [
        sum(values) for values in zip(*(each["values"] for each in curve["areas"]["layers"]), strict=True)
    ]
    expected = [
        sum((i + 1) << 10 for i in FRAME_BLOCKS if i * SECOND <= at and at < (_freed_s(i) or 1000) * SECOND)
        for at in curve["areas"]["times"]
    ]
    assert summed == expected
    assert max(summed) < max(whole["lines"][0]["values"])
    assert curve["lines"][0]["values"] == whole["lines"][0]["values"], "the lines are of all blocks"
    assert sorted(page.drawn("block_map")["blocks"]) == FRAME_BLOCKS
    page.tab.click("#curve .chips .chip")
    page.settle()
    assert page.drawn("curve")["areas"] == whole["areas"]
    page.change(by="")


def test_a_picked_block_shows_its_row_and_its_life_on_the_curve_and_the_map(page: OpenPage) -> None:
    page.change(view="job", rows=10)
    drawn = page.drawn("block_map")
    page.tab.locator("#block_map canvas").scroll_into_view_if_needed()
    box = page.tab.locator("#block_map canvas").bounding_box()
    assert box is not None
    block = 24  # not among the first ten
    i = drawn["owner"].index(drawn["blocks"].index(block))
    facts = drawn["facts"]
    x = box["x"] + 76 + (drawn["x0"][i] + drawn["x1"][i]) / 2 / facts["length"] * (box["width"] - 84)
    high = box["height"] - 26
    y = box["y"] + 6 + high - (drawn["y0"][i] + drawn["size"][i] / 2) / facts["height_bytes"] * high
    page.tab.mouse.click(x, y)
    page.settle()
    assert page.state("pick") == f"block:{block}"
    page.until("document.querySelector('#blocks .detail').dataset.frames")
    assert f"block {block}: 25.00 KiB" in page.tab.inner_text("#blocks .detail")
    for panel in ("curve", "block_map"):
        page.until(f"window.rankmem.drawn('{panel}').life")
        life = page.drawn(panel)["life"]
        assert (life["block"], life["from"], life["to"]) == (block, block * SECOND, 66 * SECOND), panel
    page.change(pick="block:25")
    page.until("window.rankmem.drawn('curve').life.block === 25")
    assert page.drawn("curve")["life"]["to"] is None, "never freed"
    page.change(pick="")
    page.until("!window.rankmem.drawn('curve').life && !window.rankmem.drawn('block_map').life")
    page.change(rows="")


def test_the_path_of_a_picked_block_is_outlined_in_the_flame_graph(page: OpenPage) -> None:
    def path() -> list[str]:
        flame = page.drawn("flame")
        return [flame["name"][node] for node in flame["path"]]

    frames = ["src/train.py:40 main", "src/model.py:30 call", "src/loss.py:9 loss"]
    assert path() == []
    page.change(pick="block:23")
    page.until("window.rankmem.drawn('flame').path.length === 3")
    assert path() == frames
    page.change(tree="line,inverted")
    page.until("window.rankmem.drawn('flame').path.length === 3")
    assert path() == frames[::-1]
    page.change(tree="module")
    page.until("window.rankmem.drawn('flame').path.length === 3")
    assert path() == ["net", "layers", "1"]
    page.change(tree="", pick="block:10")
    page.until("window.rankmem.drawn('flame').path.length === 1")
    assert path() == ["no stack recorded"]
    page.change(pick="")
    page.until("window.rankmem.drawn('flame').path.length === 0")


def test_a_cell_of_the_heat_map_chooses_the_instant_of_the_curve_the_flame_graph_and_the_table(
    page: OpenPage,
) -> None:
    page.change(view="job")
    heat = page.drawn("heat")
    box = page.tab.locator("#heat canvas.surface").bounding_box()
    assert box is not None
    x = box["x"] + 64 + 0.42 * (box["width"] - 72)
    page.tab.mouse.click(x, box["y"] + 16 + (box["height"] - 36) / 2)
    page.until("window.rankmem.state.get('seq') !== null")
    page.settle()
    seq = int(page.state("seq") or 0)
    cell_ns = heat["from"] + 0.42 * (heat["to"] - heat["from"])
    assert abs(seq * SECOND - cell_ns) < 2 * SECOND, "before the first free an event's seq is its second"
    alive = sum((i + 1) << 10 for i in range(BLOCKS) if i <= seq)
    assert page.drawn("flame")["facts"]["bytes"] == alive
    assert page.drawn("blocks")["total"]["bytes"] == alive
    mark = "window.rankmem.panel('curve').plot.marks"
    page.until(f"{mark}.length === 1 && {mark}[0].time === {seq * SECOND}")


def test_a_drag_and_a_click_on_the_curve_choose_the_range_and_the_event_of_all(page: OpenPage) -> None:
    page.change(view="job", which="")
    page.tab.locator("#curve canvas").nth(1).scroll_into_view_if_needed()
    box = page.tab.locator("#curve canvas").nth(1).bounding_box()
    assert box is not None
    width = box["width"] - 72
    page.tab.mouse.move(box["x"] + 64 + 0.2 * width, box["y"] + 50)
    page.tab.mouse.down()
    page.tab.mouse.move(box["x"] + 64 + 0.4 * width, box["y"] + 50, steps=3)
    page.tab.mouse.up()
    page.settle()
    begin, end = int(page.state("from") or 0), int(page.state("to") or 0)
    assert abs(begin - 20 * SECOND) < SECOND
    assert abs(end - 40 * SECOND) < SECOND
    heat = page.drawn("heat")
    assert (heat["from"], heat["to"]) == (begin, end)
    assert page.drawn("block_map")["facts"]["events"] == sum(
        begin <= i * SECOND <= end for i in range(BLOCKS)
    )
    page.tab.mouse.click(box["x"] + 64 + width / 2, box["y"] + 50)
    page.settle()
    seq = int(page.state("seq") or 0)
    assert abs(seq - 30) <= 1, "the event at the middle of the range"
    held = sum((i + 1) << 10 for i in range(seq + 1))
    assert page.drawn("blocks")["total"]["bytes"] == held
    assert page.drawn("flame")["facts"]["bytes"] == held
    page.tab.locator("#heat canvas").first.scroll_into_view_if_needed()
    heat_box = page.tab.locator("#heat canvas.surface").bounding_box()
    assert heat_box is not None
    page.tab.mouse.click(heat_box["x"] + 64 + (heat_box["width"] - 72) * 0.999, heat_box["y"] + 22)
    page.until("['39', '40'].includes(window.rankmem.state.get('seq'))")  # the highest at the right edge
    page.settle()
    held = sum((i + 1) << 10 for i in range(int(page.state("seq") or 0) + 1))
    assert page.drawn("blocks")["total"]["bytes"] == held


def test_a_right_click_copies_the_frame(page: OpenPage) -> None:
    _click(page, "src/model.py:30 call", "right")
    assert page.tab.evaluate("() => window.rankmem.panel('flame').copiedFrame") == "src/model.py:30 call"


def test_search_counts_nested_hits_once(page: OpenPage) -> None:
    page.tab.fill("#flame input[type=search]", "model|train")
    found = page.tab.evaluate("() => window.rankmem.panel('flame').found")
    with_stack = sum((i + 1) << 10 for i in range(BLOCKS) if i % 10)
    assert found == {"bytes": with_stack, "count": 3}
    page.tab.fill("#flame input[type=search]", "model(")
    assert "no regular expression" in page.tab.inner_text("#flame .bar")


def test_callers_and_callees_of_a_frame(page: OpenPage) -> None:
    _click(page, "src/model.py:30 call")
    page.tab.click("text=callers and callees")
    names = page.tab.evaluate("() => window.rankmem.panel('flame').around().map(each => [...each.tree.name])")
    assert names[0] == ["src/model.py:30 call", "src/train.py:40 main"]
    assert sorted(names[1]) == ["src/loss.py:9 loss", "src/model.py:30 call", "src/model.py:7 forward"]


def test_only_boxes_that_are_seen_are_drawn(page: OpenPage) -> None:
    """100,000 boxes, most of them far narrower than a pixel."""
    painted, took_ms = page.tab.evaluate(
        """() => {
            const {graph} = window.rankmem.panel('flame');
            const nodes = {parent: [-1], kind: ['root'], name: ['all'], bytes: [0], blocks: [1]};
            for (let i = 0; i < 33333; i += 1) {
                const size = i < 10 ? 1e6 : 1;
                nodes.bytes[0] += size;
                for (let depth = 0; depth < 3; depth += 1) {
                    nodes.parent.push(depth ? nodes.parent.length - 1 : 0);
                    nodes.kind.push('frame');
                    nodes.name.push(`src/f${i}.py:${depth} g`);
                    nodes.bytes.push(size);
                    nodes.blocks.push(1);
                }
            }
            graph.set(nodes);
            graph.surface.drawNow();
            graph.surface.drawNow();
            return [graph.painted.length, graph.surface.lastPaintMs];
        }"""
    )
    assert painted == 1 + 10 * 3, f"{painted} boxes drawn in {took_ms} ms"


def test_a_frame_opens_in_the_editor_of_the_template(page: OpenPage) -> None:
    page.tab.evaluate("() => localStorage.setItem('rankmem-editor', 'vscode://file//home/me/{file}:{line}')")
    _click(page, "src/model.py:7 forward")
    link = page.tab.get_attribute("#flame .bar.frame a", "href")
    assert link == "vscode://file//home/me/src/model.py:7"
    page.tab.evaluate("() => localStorage.setItem('rankmem-editor', 'javascript:alert({line})//{file}')")
    page.tab.click("#flame .path button:has-text('all')")
    _click(page, "src/model.py:30 call")
    page.until("document.querySelector('#flame .bar.frame b').textContent === 'src/model.py:30 call'")
    assert page.tab.query_selector("#flame .bar.frame a") is None


def test_a_range_without_blocks_says_so_and_keeps_its_filters(page: OpenPage) -> None:
    page.change(which="freed", **{"from": 1, "to": SECOND})
    assert "No block fits" in page.tab.inner_text("#blocks")
    page.tab.click("#blocks .toggles button:has-text('made')")
    page.settle()
    assert _ids(page) == [1]


def test_a_stack_can_be_copied_once_it_has_come(page: OpenPage) -> None:
    held: list[Route] = []
    page.tab.route("**/stack?*", lambda route: held.append(route))
    try:
        page.tab.click("#blocks tbody tr:first-child")
        page.until("document.querySelector('#blocks .detail button')")
        copy = page.tab.locator("#blocks .detail button:has-text('copy the stack')")
        assert copy.is_disabled()
        for _ in range(100):
            if held:
                break
            page.tab.wait_for_timeout(30)
        for route in held:
            route.continue_()
    finally:
        page.tab.unroute("**/stack?*")
    page.until("document.querySelector('#blocks .detail').dataset.frames === '3'")
    page.tab.context.grant_permissions(["clipboard-write", "clipboard-read"])
    copy.click()
    page.until("document.getElementById('announcer').textContent === 'copied the stack'")
    text = page.tab.evaluate("() => navigator.clipboard.readText()")
    assert text.split("\n") == ["src/loss.py:9 loss", "src/model.py:30 call", "src/train.py:40 main"]


def test_the_rank_view_says_and_chooses_which_blocks_its_flame_graph_is_of(page: OpenPage) -> None:
    page.change(view="rank", which="freed")
    freed = sum((i + 1) << 10 for i in range(0, BLOCKS, 4))
    assert page.drawn("flame")["facts"]["bytes"] == freed
    assert "freed in the range" in page.tab.inner_text("#flame .title")
    page.tab.click("#flame .toggles button:has-text('alive')")
    page.settle()
    assert page.state("which") is None
    assert "blocks alive after event" in page.tab.inner_text("#flame .title")
    page.change(view="blocks")
    assert page.tab.locator("#flame .toggles:visible").count() == 0, "the table has them there"


def test_where_use_is_not_recorded_it_says_so(page: OpenPage) -> None:
    assert "Use is not recorded" in page.tab.inner_text("#inefficient")
    page.change(vain="outlives")
    assert "No step is recorded" in page.tab.inner_text("#inefficient")


def test_a_link_that_lets_in_brings_the_editors_address(page: OpenPage) -> None:
    page.open(view="blocks", editor="vscode%3A%2F%2Ffile%2F%7Bfile%7D%3A%7Bline%7D")
    assert page.tab.evaluate("() => localStorage.getItem('rankmem-editor')") == "vscode://file/{file}:{line}"
    assert page.state("editor") is None
    page.open(view="blocks", editor="javascript%3Aalert(1)%2F%2F%7Bfile%7D")
    assert page.tab.evaluate("() => localStorage.getItem('rankmem-editor')") == "vscode://file/{file}:{line}"
