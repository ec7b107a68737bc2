"""The report as a reader has it: in a browser, by keyboard, on a phone, in the dark."""

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from analysis.ranking import Analysis
from analysis.report import write
from analysis.sigmoid import value
from tests.analysis import reported
from tests.analysis.browser import (
    CHROMIUM,
    DRIVER,
    END,
    HOME,
    LEFT,
    RIGHT,
    SPACE,
    Browser,
    browser,
    rendered,
)
from tests.analysis.reported import AT, HOSTILE
from tests.fakes import wait

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs Chromium")

ORDER = "return [...document.querySelectorAll('#ranking button')].map(b => b.textContent)"
LIVE = "return document.getElementById('live').textContent"
WIDE = "return document.documentElement.scrollWidth"

Shown = Callable[..., Browser]


@pytest.fixture(scope="module")
def page() -> Iterator[Browser]:
    if DRIVER is None:
        pytest.skip("needs chromedriver beside Chromium")
    with browser() as page:
        yield page


@pytest.fixture
def show(page: Browser, tmp_path: Path) -> Iterator[Shown]:
    """Opens the report of an analysis; nothing in it may fail or ask for the network."""

    def show(analysis: Analysis, fragment: str = "") -> Browser:
        write(analysis, tmp_path, {"sweep": "demo"})
        page.resize(1280, 900)
        page.open(f"{Path(tmp_path, 'report.html').as_uri()}{fragment}")
        return page

    yield show
    assert page.errors() == []


def cells(page: Browser, run: str) -> list[str]:
    script = """
      const row = [...document.querySelectorAll('#ranking tr')]
        .find(row => row.querySelector('button').textContent === NAME);
      return ['.value', '.range span:last-child', '.chance']
        .map(part => row.querySelector(part).textContent)
    """
    found: list[str] = page.run(f"const NAME = {run!r};{script}")
    return found


def test_any_chromium_draws_the_page_at_the_target_in_its_address(tmp_path: Path) -> None:
    write(reported.crossing(), tmp_path, {"sweep": "demo"})
    page = rendered(f"{Path(tmp_path, 'report.html').as_uri()}#at={AT:g}")
    assert "At 1,000 GPU-hours, early leads" in page
    assert page.index('data-run="1" title') < page.index('data-run="0" title')


def test_the_target_in_the_address_sets_the_order(show: Shown) -> None:
    early_on = show(reported.crossing(), f"#at={AT:g}")
    assert early_on.run(ORDER)[:2] == ["early", HOSTILE]
    assert early_on.run("return document.getElementById('where').textContent") == "1,000 GPU-hours"
    later = show(reported.crossing(), "#at=50000")
    assert later.run(ORDER)[:2] == [HOSTILE, "early"]


def test_keys_on_the_slider_reorder_the_ranking_where_curves_cross(show: Shown) -> None:
    page = show(reported.crossing())
    assert page.run(ORDER)[0] == HOSTILE
    assert page.run(LIVE).startswith(f"At the ceiling, {HOSTILE} leads")
    page.press("#target", HOME)
    page.press("#target", RIGHT * 40)
    assert page.run(ORDER)[0] == "early"
    assert "early leads" in page.run(LIVE)
    assert page.run("return location.hash").startswith("#at=")
    page.press("#target", END)
    assert page.run(ORDER)[0] == HOSTILE
    valued = "return document.getElementById('target').getAttribute('aria-valuetext')"
    assert page.run(valued) == "the ceiling"
    page.press("#target", LEFT)
    assert page.run(LIVE).startswith("At 9")
    page.press("#target", RIGHT)
    assert page.run(LIVE).startswith("At the ceiling")


def test_forecasts_of_the_page_are_those_of_the_analysis(show: Shown) -> None:
    analysis = reported.crossing(at=AT)
    page = show(reported.crossing(), f"#at={AT:g}")
    for fit, row in zip(analysis.fits[:2], analysis.document()["fits"], strict=False):
        forecast = row["forecast"]
        rate, interval, _ = cells(page, fit.run)
        assert float(rate) == pytest.approx(forecast["reward"], abs=1e-3)
        low, high = map(float, interval.split("–"))
        assert (low, high) == pytest.approx(tuple(forecast["interval"]), abs=1e-3)


def test_chances_are_the_share_of_draws_in_which_a_run_is_highest(show: Shown) -> None:
    analysis = reported.close()
    compute = 4000.0
    page = show(analysis, f"#at={compute:g}")
    ranked = [fit for fit in analysis.fits if fit.draws is not None]
    values = [
        value(np.float64(compute), d.A, d.B, d.C_mid, d.R0)
        for d in (fit.draws for fit in ranked)
        if d
    ]
    wins = np.bincount(np.argmax(values, axis=0), minlength=len(ranked)) / len(values[0])
    for fit, share in zip(ranked, wins, strict=True):
        said = cells(page, fit.run)[2]
        expected = ">99%" if share > 0.995 else "<1%" if share < 0.005 else f"{100 * share:.0f}%"
        assert said == expected


def test_unstable_and_short_runs_are_shown_but_not_ranked(show: Shown) -> None:
    page = show(reported.crossing(), "#at=2000")
    ranks = page.run(
        "return [...document.querySelectorAll('#ranking .rank')].map(n => n.textContent)"
    )
    assert ranks == ["1", "2", "–", "–"]
    assert page.run(ORDER)[2:] == ["long", "short"]
    assert cells(page, "long")[2] == "–"


def test_without_a_run_to_rank_the_points_are_still_shown(show: Shown) -> None:
    page = show(reported.hopeless())
    assert page.run(ORDER) == ["short", "cut"]
    assert page.run(LIVE) == "No run can be ranked."
    assert page.run("return document.querySelectorAll('#chart .points .mark').length") == 3 + 32
    page.press("#target", HOME)
    assert page.run(LIVE) == "No run can be ranked."


def test_left_out_points_are_hollow_and_scales_change(show: Shown) -> None:
    page = show(reported.crossing())
    hollow = "return document.querySelectorAll('#chart g .mark.hollow').length"
    left_out, unstable_ceiling = 5 * 2, 1  # two points under 700 GPU-hours of each of five seeds
    assert page.run(hollow) == left_out + unstable_ceiling
    page.click("#linear")
    assert page.run("return document.getElementById('linear').ariaPressed") == "true"
    ticks = "return [...document.querySelectorAll('#chart .tick')].map(n => n.textContent)"
    assert "5,000" in page.run(ticks)
    assert "0" in page.run(ticks)


def test_a_run_is_pinned_by_keyboard_and_keeps_the_focus(show: Shown) -> None:
    page = show(reported.many())
    drawn = "return document.querySelectorAll('#chart .fit:not(.muted):not(.ahead)').length"
    before = page.run(drawn)
    page.press("#ranking tr:last-child button", SPACE)
    assert page.run(drawn) == before + 1
    pressed = "return document.activeElement.ariaPressed + document.activeElement.dataset.run"
    assert page.run(pressed) == "true19"


def test_many_runs_can_be_filtered(show: Shown) -> None:
    page = show(reported.many())
    assert len(page.run(ORDER)) == 20
    page.press("#filter", "run-1")
    assert sorted(page.run(ORDER)) == sorted(["run-1", *(f"run-1{i}" for i in range(10))])


def test_residuals_are_drawn_when_a_run_is_opened(show: Shown) -> None:
    page = show(reported.close())
    page.run("document.querySelector('details[data-run]').open = true")
    dots = "return document.querySelectorAll('.residuals circle').length"
    wait(lambda: page.run(dots))
    assert page.run(dots) == len(reported.COMPUTE)


@pytest.mark.parametrize("made", [reported.crossing, reported.many])
def test_a_phone_needs_no_sideways_scrolling(show: Shown, made: Callable[[], Analysis]) -> None:
    page = show(made())
    page.run("document.querySelectorAll('details').forEach(node => { node.open = true })")
    page.resize(390, 844)
    wait(lambda: page.run(WIDE) == 390)
    scroll = (
        "const box = document.querySelector('.scroll'); return box.scrollWidth - box.clientWidth"
    )
    assert page.run(scroll) == 0
    right = "return document.querySelector('#chart svg').getBoundingClientRect().right"
    wait(lambda: page.run(right) <= 390)


def test_dark_is_dark(page: Browser, show: Shown) -> None:
    show(reported.close())
    paper = "return getComputedStyle(document.body).backgroundColor"
    assert page.run(paper) == "rgb(255, 255, 255)"
    page.dark()
    assert page.run(paper) == "rgb(16, 19, 23)"
