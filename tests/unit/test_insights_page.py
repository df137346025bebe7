"""docs/insights.md shows what the verbs print."""

from __future__ import annotations

import pytest

import insights_page

pytestmark = pytest.mark.slow


def test_the_samples_on_the_page_are_current() -> None:
    assert insights_page.PAGE.read_text("utf-8") == insights_page.page(), "make docs"


def test_every_insight_has_a_sample() -> None:
    found = {found[1].split()[0] for found in insights_page.SAMPLE.finditer(insights_page.PAGE.read_text())}
    assert found == set(insights_page.JOBS)
