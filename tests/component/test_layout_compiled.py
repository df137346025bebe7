"""The compiled tap has the spool's layout."""

from __future__ import annotations

from rankmem_agent.spool import layout
from rankmem_agent.tap.build import build_tap
from rankmem_agent.tap.library import Tap


def test_the_compiled_tap_lays_out_every_field_as_python_does() -> None:
    here = {f"{name}.{field.name}": field.offset for name, fields, _ in layout.STRUCTS for field in fields}
    assert Tap(build_tap()).layout() == here
