"""docs/internals.md has the aggregator's variables as they are declared."""

from pathlib import Path

from rankmem_aggregator.config import AggregatorConfig
from rankmem_aggregator.options import environment_rows

PAGE = Path(__file__).resolve().parents[2] / "docs/internals.md"


def test_the_table_of_the_aggregators_variables_is_current() -> None:
    assert "\n".join(environment_rows(AggregatorConfig)) in PAGE.read_text("utf-8")
