"""After a crash of the aggregator the page's own statements are asked again, a few times; a user's never."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from rankmem_aggregator.page import second_chance
from rankmem_aggregator.page.second_chance import CHANCES, SecondChances
from rankmem_aggregator.sandbox.running_statements import fingerprint
from rankmem_aggregator.sql import page_text, query_text


def test_a_statement_of_the_page_gets_another_fingerprint_a_few_times_a_minute_apart(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now_s = [1000.0]
    monkeypatch.setattr(second_chance, "time", SimpleNamespace(monotonic=lambda: now_s[0]))
    chances, text = SecondChances(), page_text("session_state")
    seen = {fingerprint(chances.current(text), {})}
    for _ in range(CHANCES):
        assert chances.next(text)
        assert not chances.next(text), "too soon"
        seen.add(fingerprint(chances.current(text), {}))
        now_s[0] += second_chance.APART_S
    assert not chances.next(text)
    assert len(seen) == CHANCES + 1
    assert chances.next(query_text("incompleteness"))


def test_a_statement_of_a_user_stays_refused() -> None:
    assert not SecondChances().next("SELECT 1")
