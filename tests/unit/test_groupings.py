"""The keys of ``--by`` are the same in the registry, the Python API and the SQL."""

from __future__ import annotations

import re
from typing import get_args

import pytest

import page_facts
from rankmem_aggregator.page.static_files import static_folder
from rankmem_aggregator.query import types
from rankmem_aggregator.sql import view_text
from rankmem_protos.categories import CATEGORY_NAMES
from rankmem_protos.errors import Code, RankmemError
from rankmem_protos.groupings import GROUPINGS, SUMMARIZED, grouping_of, offered


def test_the_literals_of_the_python_api_are_the_registry() -> None:
    of = {question: {each.name for each in offered(question)} for question in ("ops", "peak", "timeline")}
    assert set(get_args(types.By)) == of["ops"]
    assert set(get_args(types.PeakBy)) == of["peak"]
    assert set(get_args(types.CurveBy)) == of["timeline"]
    assert set(get_args(types.BlockBy)) == {each.name for each in GROUPINGS.values() if each.of == "blocks"}


def test_the_sql_has_every_grouping_of_blocks_and_of_ranks() -> None:
    of_blocks = set(re.findall(r"WHEN '(\w+)' THEN", view_text("group_of_block")))
    assert of_blocks == set(get_args(types.BlockBy))
    of_ranks = set(re.findall(r"WHEN '(\w+)' THEN", view_text("rank_group")))
    assert of_ranks == set(get_args(types.PeakBy)) - set(get_args(types.BlockBy)) - {"rank"}


def test_blocks_are_narrowed_to_what_is_recent_for_the_groupings_with_summaries() -> None:
    lists = set(re.findall(r"of_group IN \(([^)]*)\)", view_text("block_change")))
    assert [set(re.findall(r"\w+", names)) for names in lists] == [set(SUMMARIZED)]


def test_a_grouping_that_a_question_does_not_offer_is_refused_with_those_it_does() -> None:
    with pytest.raises(RankmemError, match="ops cannot be grouped by host") as refused:
        grouping_of("host", "ops")
    assert refused.value.code is Code.INVALID
    assert refused.value.hint.startswith("one of rank, category, operator")


def test_the_page_has_every_grouping_of_blocks_and_a_colour_for_every_category() -> None:
    assert page_facts.MODULE.read_text("utf-8") == page_facts.module(), "make docs"
    for module in static_folder().rglob("*.js"):
        if module.name != "facts.js":
            assert '"annotation", "' not in module.read_text("utf-8"), f"{module.name} lists groupings itself"
    colours = (static_folder() / "colours.js").read_text("utf-8")
    own = re.search(r"const CATEGORY = \{(.*?)\};", colours, re.DOTALL)
    assert own is not None
    assert set(CATEGORY_NAMES) <= set(re.findall(r"^  (\w+): ", own[1], re.MULTILINE))
