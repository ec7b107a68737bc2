"""What a reader is told and shown: the numbers in the page, the figure and the table."""

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from analysis.curves import curve
from analysis.notation import amount, chance, interval
from analysis.ranking import analyse
from analysis.report import embed, rows, write
from analysis.sigmoid import value
from analysis.svg import BOTTOM, LEFT, RIGHT, SHOWN, TOP, curves_svg, decades, ticks
from analysis.words import answer
from tests.analysis.reported import AT, HOSTILE, SKIP_BELOW, close, crossing, made, many

CONTEXT = {
    "sweep": "demo",
    "command": "shortlist rank demo",
    "versions": {"trl": "1.16"},
    "time": 86400,
}
SVG = "{http://www.w3.org/2000/svg}"


class Page(HTMLParser):
    """The elements of a page, its text outside of scripts, and the JSON it carries."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.data: Any = None
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))

    def handle_data(self, data: str) -> None:
        tag, attributes = self.tags[-1] if self.tags else ("", {})
        if attributes.get("id") == "data" and self.data is None:
            self.data = json.loads(data)
        elif tag not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("report") / "new"
    write(crossing(), folder, CONTEXT)
    return folder


@pytest.fixture(scope="module")
def page(folder: Path) -> Page:
    return Page((folder / "report.html").read_text(encoding="utf-8"))


def test_three_files_are_written_and_nothing_else(folder: Path) -> None:
    assert sorted(path.name for path in folder.iterdir()) == [
        "curves.svg",
        "ranking.json",
        "report.html",
    ]


def test_ranking_json_is_the_document(folder: Path) -> None:
    document = json.loads((folder / "ranking.json").read_text())
    assert document == json.loads(json.dumps(crossing().document()))
    assert document["order"][0] == HOSTILE


def test_the_page_carries_the_curves_of_the_analysis(page: Page) -> None:
    analysis = crossing()
    assert [run["name"] for run in page.data["runs"]] == analysis.order
    for run, fit in zip(page.data["runs"], analysis.fits, strict=True):
        if fit.draws is None:
            assert run["draws"] == []
            continue
        draws = np.array(run["draws"])
        assert draws.shape == (1000, 4)
        np.testing.assert_allclose(draws[:, 0], fit.draws.A, rtol=1e-4)
        np.testing.assert_allclose(draws[:, 2], fit.draws.C_mid, rtol=1e-4)
        assert run["ceiling"][1:] == list(fit.interval("A") or ())


def test_points_left_out_are_marked(page: Page) -> None:
    run = next(run for run in page.data["runs"] if run["name"] == "early")
    assert len(run["points"]) == 2 * 33
    for compute, _, stderr, used, _ in run["points"]:
        assert used == int(compute == 0 or compute >= SKIP_BELOW)
        assert stderr == 0.005
    assert {seed for *_, seed in run["points"]} == {0, 1}


def test_a_name_never_becomes_markup(folder: Path, page: Page) -> None:
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert "</script><b>" not in text
    assert page.text.count(HOSTILE) >= 4
    assert len([tag for tag, _ in page.tags if tag == "script"]) == 2


def test_the_page_needs_no_network(folder: Path, page: Page) -> None:
    policy = next(a["content"] for tag, a in page.tags if a.get("http-equiv"))
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    for _, attributes in page.tags:
        for name in ("src", "href"):
            assert (attributes.get(name) or "data:,").startswith(("data:", "#"))
    text = (folder / "report.html").read_text(encoding="utf-8")
    assert set(re.findall(r"https?://[\w./]+", text)) == {"http://www.w3.org/2000/svg"}


def test_the_page_tells_verdicts_what_is_open_and_how_it_was_made(page: Page) -> None:
    verdicts = {v.choice: v for v in crossing().verdicts}
    assert verdicts[HOSTILE].verdict == "higher ceiling"
    for verdict in verdicts.values():
        assert verdict.verdict in page.text
        assert verdict.evidence in page.text
    assert "20% of recent responses truncated" in page.text
    assert "3 runs" not in page.text
    for said in (
        "shortlist rank demo",
        "trl 1.16",
        "2 January 1970, 00:00 UTC",
        "from 700 GPU-hours",
    ):
        assert said in page.text


def test_every_run_can_be_opened_for_its_recipe_windows_and_seeds(page: Page) -> None:
    opened = [attributes for tag, attributes in page.tags if "data-run" in attributes]
    assert len(opened) == 4
    assert page.text.count("Without points below") == 3
    assert page.text.count("Mean residual") == 4


def test_writing_twice_gives_the_same_bytes(folder: Path, tmp_path: Path) -> None:
    write(crossing(), tmp_path, CONTEXT)
    for name in ("curves.svg", "report.html", "ranking.json"):
        assert (tmp_path / name).read_bytes() == (folder / name).read_bytes()


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "ranking.json").write_text("old")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("pathlib.Path.replace", full)
    with pytest.raises(OSError, match="No space"):
        write(close(), tmp_path, {})
    assert [path.name for path in tmp_path.iterdir()] == ["ranking.json"]
    assert (tmp_path / "ranking.json").read_text() == "old"


def test_a_figure_that_cannot_be_drawn_leaves_nothing_half_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: object) -> str:
        raise OverflowError

    monkeypatch.setattr("analysis.report.curves_svg", broken)
    with pytest.raises(OverflowError):
        write(close(), tmp_path / "new", {})
    assert not (tmp_path / "new").exists()


def test_the_widest_compute_allowed_can_be_drawn(tmp_path: Path) -> None:
    x = np.geomspace(1e-30, 1e30, 20)
    write(analyse([curve("wide", x, np.linspace(0.1, 0.6, 20))]), tmp_path, {})
    ElementTree.parse(tmp_path / "curves.svg")
    assert json.loads((tmp_path / "ranking.json").read_text())["fits"][0]["n_points"] == 20


def test_curves_without_any_usable_point_still_make_a_report(tmp_path: Path) -> None:
    analysis = analyse([curve("nothing", [1.0, 2.0], [np.nan, np.nan])])
    write(analysis, tmp_path, {})
    assert answer(analysis)[0] == "No run can be ranked yet"
    assert "No run can be ranked yet" in (tmp_path / "report.html").read_text()


# --- the figure ---------------------------------------------------------------------------------


def test_the_figure_places_points_by_its_own_ticks() -> None:
    analysis = crossing()
    root = ElementTree.fromstring(curves_svg(embed(analysis)))
    at = {text.text: text.attrib for text in root.iter(f"{SVG}text")}
    low, high = float(at["1,000"]["x"]), float(at["0.30"]["y"]) - 4
    step = float(at["2,000"]["x"]) - low
    rise = high - (float(at["0.40"]["y"]) - 4)
    marks = [use for use in root.iter(f"{SVG}use") if use.get("href") == "#m0"]
    drawn = {(float(use.get("x", 0)), float(use.get("y", 0))) for use in marks}
    points = [p for p in embed(analysis)["runs"][0]["points"] if p[0] > 0]
    for compute, rate, *_ in points:
        x = low + step * np.log2(compute / 1000)
        y = high - rise * (rate - 0.3) / 0.1
        assert min(np.hypot(x - a, y - b) for a, b in drawn) < 0.3
    hollow = [use for use in marks if use.get("fill") == "#fff"]
    assert len(hollow) == sum(point[3] == 0 for point in points) == 2


def test_the_figure_ends_at_the_target_and_stays_in_its_frame() -> None:
    root = ElementTree.fromstring(curves_svg(embed(crossing(at=1e5))))
    (target,) = [path for path in root.iter(f"{SVG}path") if path.get("class") == "at"]
    assert target.get("d") == f"M{RIGHT}.0 {TOP}V{BOTTOM}"
    curves = [path for path in root.iter(f"{SVG}path") if "fit" in (path.get("class") or "")]
    assert any("ahead" in (path.get("class") or "") for path in curves)
    for path in curves:
        xs = [float(pair.split()[0]) for pair in (path.get("d") or "")[1:].split("L")]
        assert LEFT <= min(xs) <= max(xs) <= RIGHT


def test_runs_below_the_first_few_are_thin_and_grey() -> None:
    root = ElementTree.fromstring(curves_svg(embed(many())))
    classes = [path.get("class") for path in root.iter(f"{SVG}path")]
    assert classes.count("fit") == SHOWN
    assert classes.count("muted") == 20 - SHOWN


def test_ticks_are_round_and_cover_the_range() -> None:
    np.testing.assert_allclose(ticks(0.19, 0.62, 5), [0.2, 0.3, 0.4, 0.5, 0.6])
    np.testing.assert_allclose(ticks(0, 24000, 6), [0, 5000, 10000, 15000, 20000])
    assert decades(3e14, 2e18) == [1e15, 1e16, 1e17, 1e18]
    assert decades(300, 8000) == [500, 1000, 2000, 5000]


# --- words --------------------------------------------------------------------------------------


def test_the_winner_by_ceiling_is_named_with_its_lead() -> None:
    headline, lead = answer(crossing())
    fits = {fit.run: fit for fit in crossing().fits}
    assert headline == f"{HOSTILE} has the highest ceiling"
    best, early = fits[HOSTILE].best, fits["early"].best
    assert best is not None
    assert early is not None
    assert f"levels off at {best.A:.3f}" in lead[0]
    assert f"{best.A - early.A:.3f} above the next" in lead[0]
    assert abs(best.A - 0.62) < 0.02
    assert lead[1] == "It is >99% likely to be the highest."


def test_within_the_margin_the_faster_is_named() -> None:
    headline, lead = answer(close())
    assert headline == "quick is the fastest of 2 runs with the same ceiling"
    assert "within the margin of 0.02 of steady" in lead[0]


def test_at_a_compute_the_forecast_is_named() -> None:
    headline, lead = answer(crossing(at=AT))
    assert headline == "At 1,000 GPU-hours, early is ahead"
    reward = crossing(at=AT).document()["fits"][0]["forecast"]["reward"]
    assert lead[0].startswith(f"Its forecast there is {reward:.3f}")


def test_an_unresolved_leader_is_not_called_a_winner() -> None:
    analysis = analyse([made("slow", 0.7, 1.7, 9000), made("other", 0.69, 1.7, 9000)])
    headline, lead = answer(analysis)
    assert headline == f"{analysis.order[0]} leads, but its ceiling is not settled"
    assert "lies somewhere in" in lead[0]


def test_a_winner_that_an_unresolved_run_may_well_beat_is_not_called_one() -> None:
    analysis = analyse([made("quick", 0.64, 2.6, 1200), made("slow", 0.7, 1.7, 7000)])
    quick, slow = analysis.fits
    assert (quick.run, quick.resolved, slow.resolved) == ("quick", True, False)
    assert (slow.probability_best or 0) > 0.5
    headline, lead = answer(analysis)
    assert headline == "The highest ceiling is not settled; quick leads so far"
    assert lead[-1] == "Not ruled out, because unresolved: slow."


def test_an_unresolved_run_can_still_surely_be_the_best() -> None:
    analysis = analyse([made("quick", 0.45, 2.6, 1200), made("slow", 0.7, 1.7, 7000)])
    assert [fit.resolved for fit in analysis.fits] == [False, True]
    headline, lead = answer(analysis)
    assert headline == "slow has the highest ceiling, though how high is not settled"
    assert lead[-1] == "It is >99% likely to be the highest."


def test_a_run_alone_is_not_compared() -> None:
    headline, lead = answer(analyse([made("quick", 0.45, 2.6, 1200)]))
    assert headline.startswith("quick levels off at 0.4")
    assert "likely" not in " ".join(lead)
    headline, lead = answer(analyse([made("slow", 0.7, 1.7, 9000)]))
    assert headline == "The ceiling of slow is not settled"


def test_rows_are_the_ranking_as_text() -> None:
    headers, lines = rows(crossing(at=AT))
    assert headers[:4] == ["#", "run", "at 1,000", "95%"]
    first = dict(zip(headers, lines[0], strict=True))
    fit = crossing(at=AT).fits[0]
    assert fit.best is not None
    assert first["run"] == "early"
    assert first["A"] == f"{fit.best.A:.3f}"
    assert first["state"] == "resolved"
    states = {line[1]: line[-1] for line in lines}
    assert states["long"] == "unstable"
    assert states["short"] == "without a fit"
    assert [line[0] for line in lines] == ["1", "2", "–", "–"]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        (0, "0"),
        (0.25, "0.25"),
        (4000, "4,000"),
        (2542, "2,540"),
        (1e6, "10⁶"),
        (1.2e16, "1.2×10¹⁶"),
        (2e19, "2×10¹⁹"),
    ],
)
def test_amounts(given: float, said: str) -> None:
    assert amount(given) == said


def test_chances_and_intervals() -> None:
    assert [chance(p) for p in (None, 0.0, 0.5, 1.0)] == ["–", "<1%", "50%", ">99%"]
    assert interval((0.5964, 0.6)) == "0.596–0.600"
    assert interval(None) == "–"


def test_a_winner_still_behind_is_said_to_pass_and_where() -> None:
    slow, quick = made("slow", 0.63, 2.6, 3600), made("quick", 0.6, 2.6, 1200)
    analysis = analyse([slow, quick])
    assert analysis.order == ["slow", "quick"]
    assert analysis.fits[0].resolved
    (told,) = [line for line in answer(analysis)[1] if "should pass it" in line]
    assert told.startswith("At the 8,000 units of compute spent so far, quick is ahead")
    x = np.geomspace(8000, 80000, 10000)
    ahead = value(x, 0.63, 2.6, 3600, 0.2) > value(x, 0.6, 2.6, 1200, 0.2)  # type: ignore[arg-type]
    said = float(told.split()[-1].rstrip(".").replace(",", ""))
    assert said == pytest.approx(x[ahead.argmax()], rel=0.1)
