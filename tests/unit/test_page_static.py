"""The page's own files: no sink of markup, nothing from elsewhere, vendored files as they were published."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections import Counter
from pathlib import Path
from typing import Final

import pytest

from rankmem_aggregator.page.answers import ROUTES
from rankmem_aggregator.page.headers import CONTENT_SECURITY_POLICY
from rankmem_aggregator.page.static_files import FIRST_MODULES, StaticFiles, static_folder
from rankmem_protos.errors import RankmemError

STATIC: Final = static_folder()
MODULES: Final = sorted(p for p in STATIC.rglob("*.js") if "vendor" not in p.parts)
LINES_MAX: Final = 300
FIRST_VIEW_BYTES_MAX: Final = 120_000
"""Compressed."""
SINKS: Final = (
    r"innerHTML", r"outerHTML", r"insertAdjacentHTML", r"document\.write", r"\beval\s*\(", r"\bFunction\s*\(",
    r"setTimeout\(\s*[\"'`]", r"setInterval\(\s*[\"'`]", r"srcdoc", r"createContextualFragment", r"DOMParser",
    r"[\"'`]javascript:[^\"'`]", r"setHTMLUnsafe", r"\.cssText",
    r"setAttribute\(\s*[\"'](?:style|on\w+)[\"']",
    r"import\((?!\"\./\w+\.js\"\))", r"new Worker", r"new WebSocket", r"\bstyle:\s*[\"'`]",
    r"XMLHttpRequest", r"sendBeacon",
)  # fmt: skip
ELSEWHERE: Final = re.compile(r"""["'`](?:https?:)?//[^"'`]*""")
ALLOWED_ADDRESSES: Final = {"http://www.w3.org/2000/svg"}
"""Names of formats, which nothing asks for."""


def without_comments(text: str) -> str:
    return re.sub(r"^\s*//[^\n]*$|/\*.*?\*/", "", text, flags=re.MULTILINE | re.DOTALL)


TEXTS: Final = {module: without_comments(module.read_text("utf-8")) for module in MODULES}


def test_a_module_has_no_sink_of_markup_and_asks_nobody_else(subtests: pytest.Subtests) -> None:
    for module, text in TEXTS.items():
        with subtests.test(module=str(module.relative_to(STATIC))):
            found = [sink for sink in SINKS if re.search(sink, text)]
            assert not found, f"{module.name} has {found}"
            asked = {each.strip("\"'`") for each in ELSEWHERE.findall(text)}
            assert asked <= ALLOWED_ADDRESSES, f"{module.name} names {asked - ALLOWED_ADDRESSES}"


def test_a_module_is_short_and_says_what_it_is() -> None:
    for module in MODULES:
        lines = module.read_text("utf-8").splitlines()
        assert len(lines) <= LINES_MAX, f"{module.name} has {len(lines)} lines"
        assert lines[0].startswith("// "), f"{module.name} begins without its head"


def test_every_import_names_a_file_that_is_there_and_every_file_is_imported() -> None:
    imported = {STATIC / "main.js"}
    for module in MODULES:
        text = module.read_text("utf-8")
        for name in re.findall(r"""(?:from\s+|import\s+|import\()["']([^"']+)["']""", text):
            target = (module.parent / name).resolve()
            assert target in MODULES, f"{module.name} imports {name}, which is not there"
            imported.add(target)
    assert imported == set(MODULES), f"nobody imports {sorted(p.name for p in set(MODULES) - imported)}"


def test_the_first_views_modules_are_asked_for_at_once_and_no_other() -> None:
    (name,) = re.findall(r'FIRST = "(\w+)"', (STATIC / "views" / "index.js").read_text("utf-8"))
    assert f"/views/{name}.js" in FIRST_MODULES
    body, _ = StaticFiles(STATIC).file("/")
    named = re.findall(
        r'<link rel="modulepreload" fetchpriority="low" href="of-\w+/([^"]+)">', body.plain().decode()
    )
    assert len(named) == len(set(named))
    needed, waiting = set(), [STATIC / path.lstrip("/") for path in FIRST_MODULES]
    while waiting:
        module = waiting.pop()
        needed.add(module)
        imports = re.findall(r"^import .*\"(.+)\";$", module.read_text("utf-8"), re.MULTILINE)
        waiting += {(module.parent / each).resolve() for each in imports} - needed
    assert {STATIC / each for each in named} == needed
    assert STATIC / "views" / "sql.js" not in needed


def test_a_browser_keeps_files_by_an_address_that_changes_with_any_of_them(tmp_path: Path) -> None:
    def named(page: StaticFiles) -> list[str]:
        return re.findall(r'(?:href|src)="([^"#]+)"', page.file("/")[0].plain().decode())

    shutil.copytree(STATIC, tmp_path / "static")
    before = StaticFiles(tmp_path / "static")
    for name in named(before):
        assert before.file(f"/{name}") == before.file(f"/{name.partition('/')[2]}")
    (folder,) = {name.partition("/")[0] for name in named(before)}
    with pytest.raises(RankmemError):
        before.file(f"/{folder}/")  # the page itself is asked for anew each time
    (tmp_path / "static" / "views" / "sql.js").write_text("// Another.\n")
    after = StaticFiles(tmp_path / "static")
    assert not set(named(before)) & set(named(after))
    with pytest.raises(RankmemError):
        after.file(f"/{folder}/main.js")


def test_a_first_view_loads_no_more_than_its_budget() -> None:
    page = StaticFiles(STATIC)
    body, _ = page.file("/")
    named = {"", *re.findall(r'(?:href|src)="(of-[^"]+)"', body.plain().decode())}
    sent = sum(len(page.file(f"/{name}")[0].data) for name in named)
    assert sent <= FIRST_VIEW_BYTES_MAX, f"{sent:,} bytes"


def test_the_markup_has_no_script_style_or_handler_of_its_own() -> None:
    for page in STATIC.rglob("*.html"):
        text = page.read_text("utf-8")
        assert not re.search(r"<style|\sstyle=|\son\w+=", text), page.name
        scripts = re.findall(r"<script([^>]*)>(.*?)</script>", text, re.DOTALL)
        assert scripts
        assert all("src=" in attributes and not body for attributes, body in scripts), page.name
        assert not re.search(r"(?:src|href)=\"(?:https?:)?//", text), page.name


def test_the_style_asks_for_nothing() -> None:
    for sheet in STATIC.rglob("*.css"):
        assert not re.search(r"@import|url\(|@font-face|expression\(", sheet.read_text("utf-8")), sheet.name


def test_vendored_files_are_those_that_were_published_and_have_their_licence() -> None:
    folder = STATIC / "vendor"
    listed = json.loads((folder / "vendor.json").read_text("utf-8"))
    named: set[str] = {"vendor.json"}
    for package in listed:
        assert set(package) >= {"name", "version", "source", "licence", "files"}, package["name"]
        assert any(name.startswith("LICENSE") for name in package["files"]), package["name"]
        for name, digest in package["files"].items():
            assert hashlib.sha256((folder / name).read_bytes()).hexdigest() == digest, name
            named.add(name)
    assert named == {path.name for path in folder.iterdir()}, "a vendored file is not listed"


def test_the_policy_lets_in_nothing_but_the_page_itself() -> None:
    parts = dict(part.split(" ", 1) for part in CONTENT_SECURITY_POLICY.split("; "))
    assert parts["default-src"] == "'none'"
    assert parts["script-src"] == parts["style-src"] == parts["connect-src"] == "'self'"
    assert parts["require-trusted-types-for"] == "'script'"
    assert parts["trusted-types"] == "'none'"
    assert not re.search(r"unsafe|\*|https?:", CONTENT_SECURITY_POLICY)


def test_no_route_changes_anything_by_get() -> None:
    posted = {route.path for route in ROUTES if getattr(route, "method", "GET") != "GET"}
    assert posted == {"/sql"}


def test_what_is_rebuilt_keeps_the_focus() -> None:
    own = [module.name for module, text in TEXTS.items() if "replaceChildren" in text]
    assert own == ["focus.js"], "refill(element, ...children) keeps the keyboard's place"


def test_a_module_uses_what_it_imports() -> None:
    for module, text in TEXTS.items():
        named = re.findall(r"^import \{ ([^}]+) \}", text, re.MULTILINE)
        names = [name.split(" as ")[-1].strip() for names in named for name in names.split(",")]
        names += re.findall(r"^import \* as (\w+)", text, re.MULTILINE)
        times = Counter(re.findall(r"\w+", text))
        unused = [name for name in names if times[name] < 2]
        assert not unused, f"{module.name} imports {unused} for nothing"


def test_every_export_is_imported_somewhere() -> None:
    words = {module: set(re.findall(r"\w+", text)) for module, text in TEXTS.items()}
    in_modules = Counter(word for each in words.values() for word in each)
    for module, text in TEXTS.items():
        names = re.findall(r"^export (?:async )?(?:function|const|class|let) (\w+)", text, re.MULTILINE)
        own = [name for name in names if in_modules[name] < 2]
        assert not own, f"{module.name} exports {own}, which nobody imports"
