"""A page that needs no network and trusts no name, and a PNG that shows the shortest peak."""

from __future__ import annotations

import io
import json
import re
import sys

import numpy as np
import pytest

from rankmem_aggregator.plots.curves import Chart, Series
from rankmem_aggregator.plots.html import POINTS_MAX, html_page
from rankmem_aggregator.plots.png import png_bytes
from rankmem_protos.errors import Code, RankmemError

HOSTILE = "</script><img src=x onerror=alert(1)>{{data}}"
GREEN = "autograd_detail"


def chart(*names: str, instants: int = 3, title: str = "t", stacked: bool = True) -> Chart:
    series = tuple(
        Series(name=name, values_bytes=np.arange(instants, dtype=np.int64) * (n + 1) + 2**53 - 9)
        for n, name in enumerate(names)
    )
    times_ns = 10**18 + 1000 * np.arange(instants, dtype=np.int64)
    return Chart(title=title, times_ns=times_ns, start_ns=10**18 - 5, series=series, stacked=stacked)


def data_of(page: str) -> dict[str, object]:
    (found,) = re.findall(r'<script type="application/json" class="data">(.*?)</script>', page, re.DOTALL)
    return json.loads(found)  # type: ignore[no-any-return]


def test_the_page_carries_the_curves_exactly() -> None:
    data = data_of(html_page(chart("activation", "gradient")))
    assert data["times_ns"] == [5, 1005, 2005]
    assert data["stacked"] is True
    first, second = data["series"]  # type: ignore[misc]
    assert first == {"name": "activation", "colour": "#e69f00", "bytes": [2**53 - 9, 2**53 - 8, 2**53 - 7]}
    assert second["bytes"] == [2**53 - 9, 2**53 - 7, 2**53 - 5]


def test_names_reach_the_page_as_data_alone() -> None:
    page = html_page(chart(HOSTILE, title=HOSTILE))
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert data_of(page)["series"][0]["name"] == HOSTILE  # type: ignore[index]


def test_the_page_reaches_for_nothing() -> None:
    page = html_page(chart("a"))
    assert "default-src 'none'" in page
    assert not re.findall(r"https?:|src=|@import|url\(|fetch\(", page.replace("default-src", ""))
    assert "{{" not in page


def test_a_long_curve_is_thinned_and_the_page_says_of_how_many() -> None:
    data = data_of(html_page(chart("a", instants=POINTS_MAX * 3)))
    assert len(data["times_ns"]) <= POINTS_MAX  # type: ignore[arg-type]
    assert data["instants"] == POINTS_MAX * 3


def test_a_page_of_nothing_is_a_page() -> None:
    assert data_of(html_page(chart(instants=0)))["times_ns"] == []


def pixels(chart: Chart) -> np.ndarray:  # type: ignore[type-arg]
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(png_bytes(chart))).convert("RGB")).astype(int)


def test_a_peak_of_a_nanosecond_is_drawn_to_its_height() -> None:
    times_ns = 10**18 + np.array([0, 5 * 10**11, 5 * 10**11 + 1, 10**12])
    values = np.array([10, 1000, 10, 10], np.int64) << 20
    spiky = Chart(
        title="t",
        times_ns=times_ns,
        start_ns=10**18,
        series=(Series(name=GREEN, values_bytes=values),),
        stacked=True,
    )
    picture = pixels(spiky)
    rows = np.flatnonzero((np.abs(picture - [0x00, 0x9E, 0x73]).sum(axis=2) < 90)[:, 200:1200].any(axis=1))
    assert rows.max() - rows.min() > 0.7 * picture.shape[0]


@pytest.mark.parametrize("stacked", [True, False])
@pytest.mark.parametrize("instants", [0, 1, 2])
def test_few_instants_are_a_picture_too(stacked: bool, instants: int) -> None:
    assert pixels(chart("a", "b$x$", instants=instants, stacked=stacked)).shape[2] == 3


def test_without_matplotlib_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(RankmemError) as told:
        png_bytes(chart("a"))
    assert told.value.code is Code.UNSUPPORTED
    assert "rankmem[plots]" in told.value.hint
