"""docs/limits.md has every bound of the code with its value and reason, and nothing can grow without one."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

import limits_page
from rankmem_aggregator.config import AggregatorConfig

pytestmark = pytest.mark.slow


def test_the_page_in_the_tree_is_current() -> None:
    assert limits_page.PAGE.read_text("utf-8") == limits_page.page(), "make docs"


def test_every_number_of_the_configuration_is_on_the_page() -> None:
    numbers = {
        field.name
        for field in dataclasses.fields(AggregatorConfig)
        if isinstance(field.default, int | float) and not isinstance(field.default, bool)
    }
    shown = limits_page.settings()
    assert {bound.name for bound in shown} == numbers
    assert {bound.name: bound.value for bound in shown}[
        "queue_bytes_max"
    ] == AggregatorConfig().queue_bytes_max


def test_every_kind_of_bound_is_found() -> None:
    """Some that must be there, one of each station and kind."""
    found = limits_page.all_constants()
    for name in (
        "rankmem_agent.spool.layout.STRING_BYTES_MAX",
        "rankmem_ship.send_buffer.IN_FLIGHT_BYTES_MAX",
        "rankmem_ship.sender.SILENCE_S",
        "rankmem_protos.arrow_sizes.MESSAGES_MAX",
        "rankmem_aggregator.ingest.batch.DECODED_BYTES_MAX",
        "rankmem_aggregator.server.ingest_call.REPLIES_MAX",
        "rankmem_aggregator.server.aggregator.KEEPALIVE_MS",
    ):
        assert f"`{name}`" in found


def test_a_bound_without_a_reason_stops_the_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    module = tmp_path / "aggregator" / "mine.py"
    module.parent.mkdir()
    module.write_text("ROWS_MAX = 5\n\n\ndef used() -> int:\n    return ROWS_MAX\n")
    monkeypatch.syspath_prepend(module.parent)
    monkeypatch.setattr(limits_page, "ROOT", tmp_path)
    found = list(limits_page.constants(module, ("mine",)))
    assert [(bound.name, bound.value, bound.reason) for bound in found] == [("ROWS_MAX", 5, "")]
    with pytest.raises(ValueError, match=r"no reason under `mine\.ROWS_MAX`"):
        limits_page._table(found)


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("QUEUE_BYTES_MAX", 256 << 20, "256 MiB"),
        ("NAME_BYTES_MAX", 1000, "1,000 bytes"),
        ("WINDOW_BATCHES_MAX", 1024, "1,024"),
        ("SILENCE_S", 30.0, "30 s"),
        ("KEEPALIVE_MS", 60_000, "60 s"),
        ("REMEMBERED_DAYS", 30.0, "30 days"),
        ("keep_gib", 1.5, "1.5 GiB"),
    ],
)
def test_a_value_is_shown_with_its_unit(name: str, value: float, shown: str) -> None:
    assert limits_page.shown_value(name, value) == shown
