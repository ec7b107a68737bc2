"""Curves out of anyone's tables: what is put right, and what is refused in one line."""

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from analysis.curves import CurveError
from analysis.ranking import Options
from pipelines.errors import UserError
from pipelines.tables import Columns, fit_file, read_curves

ROWS = [("a", 300, 0.4), ("b", 100, 0.25), ("a", 100, 0.3), ("b", 200, 0.35), ("a", 200, 0.35)]


def write(folder: Path, text: str, name: str = "curves.csv") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def as_csv(rows: list[tuple[object, ...]], header: str = "run,compute,reward") -> str:
    return "\n".join([header, *(",".join(map(str, row)) for row in rows)]) + "\n"


def test_unsorted_rows_become_curves_by_ascending_compute(tmp_path: Path) -> None:
    first, second = read_curves(write(tmp_path, as_csv(ROWS)))
    assert (first.run, second.run) == ("a", "b")
    np.testing.assert_array_equal(first.compute, [100, 200, 300])
    np.testing.assert_array_equal(first.reward, [0.3, 0.35, 0.4])
    np.testing.assert_array_equal(second.reward, [0.25, 0.35])
    assert first.stderr is None
    assert first.seed is None


@pytest.mark.parametrize("kind", ["csv", "tsv", "semicolon", "jsonl", "parquet", "bom"])
def test_the_same_curves_from_every_format(tmp_path: Path, kind: str) -> None:
    text = as_csv(ROWS)
    if kind == "parquet":
        path = tmp_path / "curves.parquet"
        columns = dict(zip(("run", "compute", "reward"), zip(*ROWS, strict=True), strict=True))
        pq.write_table(pa.table({name: list(cells) for name, cells in columns.items()}), path)
    elif kind == "jsonl":
        lines = (json.dumps({"reward": y, "run": run, "compute": x}) for run, x, y in ROWS)
        path = write(tmp_path, "\n".join(lines) + "\n\n", "curves.jsonl")
    elif kind == "tsv":
        path = write(tmp_path, text.replace(",", "\t"), "curves.tsv")
    else:
        text = text.replace(",", ";") if kind == "semicolon" else "\ufeff" + text
        path = write(tmp_path, text)
    first, second = read_curves(path)
    np.testing.assert_array_equal(first.compute, [100, 200, 300])
    np.testing.assert_array_equal(second.reward, [0.25, 0.35])


def test_other_column_names_seeds_and_errors(tmp_path: Path) -> None:
    rows = [("a", 1, 100, 0.3, 0.01), ("a", 2, 100, 0.31, 0.02), ("a", 1, 200, 0.4, 0.03)]
    path = write(tmp_path, as_csv(rows, "name,repeat,flops,eval,se"))
    columns = Columns(group="name", x="flops", y="eval", stderr="se", seed="repeat")
    first, second = read_curves(path, columns)
    assert [(c.run, c.seed) for c in (first, second)] == [("a", 1), ("a", 2)]
    np.testing.assert_allclose(first.stderr, [0.01, 0.03])


def test_columns_named_stderr_and_seed_are_used_unasked(tmp_path: Path) -> None:
    path = write(tmp_path, as_csv([("a", 1, 0.3, 0.01, 7)], "run,compute,reward,stderr,seed"))
    (curve,) = read_curves(path)
    assert curve.seed == 7
    np.testing.assert_allclose(curve.stderr, [0.01])


def test_percent_is_decided_for_the_whole_file(tmp_path: Path) -> None:
    rows = [("slow", 100, 0.4), ("slow", 200, 0.9), ("fast", 100, 20.0), ("fast", 200, 45.0)]
    slow, fast = read_curves(write(tmp_path, as_csv(rows)))
    np.testing.assert_allclose(slow.reward, [0.004, 0.009])
    np.testing.assert_allclose(fast.reward, [0.2, 0.45])
    assert "percent" in " ".join(slow.notes)


def test_one_stray_reward_does_not_make_a_file_percent(tmp_path: Path) -> None:
    rows = [("a", x, 0.1 * x) for x in range(1, 8)]
    with pytest.raises(CurveError, match=r"^b: reward 1\.6: allowed 0 to 1"):
        read_curves(write(tmp_path, as_csv([*rows, ("b", 1, 1.6)])))


@pytest.mark.parametrize("separator", ["\u2028", "\x85", "\x0c"])
def test_only_line_feeds_end_a_row(tmp_path: Path, separator: str) -> None:
    record = {"run": "a", "compute": 1, "reward": 0.3, "remark": f"one{separator}two"}
    line = json.dumps(record, ensure_ascii=False)
    text = f'run,compute,reward,remark\r\na,1,0.3,one{separator}two\r\na,2,0.4,"x\ny"\r\n'
    (from_csv,) = read_curves(write(tmp_path, text))
    (from_json,) = read_curves(write(tmp_path, line + "\r\n", "curves.jsonl"))
    assert from_csv.reward.tolist() == [0.3, 0.4]
    assert from_json.reward.tolist() == [0.3]


def test_missing_values_infinities_and_repeats_are_put_right(tmp_path: Path) -> None:
    rows = [
        ("a", 0, 0.2),
        ("a", 100, ""),
        ("a", 200, 0.3),
        ("a", 200, 0.5),
        ("a", 300, "inf"),
        ("a", "NaN", 0.4),
        ("a", -5, 0.4),
        ("a", 400, "null"),
        ("a", 500, 0.45),
    ]
    (curve,) = read_curves(write(tmp_path, as_csv(rows)))
    np.testing.assert_array_equal(curve.compute, [200, 500])
    np.testing.assert_array_equal(curve.reward, [0.4, 0.45])
    assert curve.r0 == 0.2
    assert curve.notes


def test_short_rows_and_null_cells_are_missing_values(tmp_path: Path) -> None:
    (from_csv,) = read_curves(write(tmp_path, "run,compute,reward\na,1,0.3\n\na,2\n"))
    lines = '{"run": "a", "compute": 1, "reward": 0.3}\n{"run": "a", "compute": 2}\n'
    (from_json,) = read_curves(write(tmp_path, lines, "curves.jsonl"))
    for curve in (from_csv, from_json):
        np.testing.assert_array_equal(curve.reward, [0.3])


REFUSED = {
    "empty": ("c.csv", "", "is empty"),
    "header only": ("c.csv", "run,compute,reward\n", "is empty"),
    "wrong group": (
        "c.csv",
        "name,compute,reward\na,1,.3\n",
        "--group: got 'run', allowed: 'n",
    ),
    "wrong x": ("c.csv", "run,step,reward\na,1,.3\n", "--x: got 'compute', allowed: 'run', 's"),
    "wrong y": ("c.csv", "run,compute,acc\na,1,.3\n", "--y: got 'reward'"),
    "text": (
        "c.csv",
        "run,compute,reward\na,1,.3\na,two,.3\n",
        "2, column 'compute': got 'two'",
    ),
    "no name": ("c.csv", "run,compute,reward\n,1,.3\n", "row 1, column 'run': got nothing"),
    "long row": ("c.csv", "run,compute,reward\na,1,.3,9\n", "row 1 has 4 cells, allowed: 3"),
    "twice": ("c.csv", "run,compute,compute\na,1,.3\n", "column 'compute' appears twice"),
    "seed": ("c.csv", "run,compute,reward,seed\na,1,.3,x\n", "column 'seed': got 'x'"),
    "half seed": ("c.csv", "run,compute,reward,seed\na,1,.3,.5\n", "got 0.5, allowed: a whole"),
    "not json": ("c.jsonl", '{"run": 1}\nrun\n', "line 2 is not JSON"),
    "json list": ("c.jsonl", "[1]\n", "line 1 is [1], allowed: a JSON object"),
    "nested": (
        "c.jsonl",
        '{"run": "a", "compute": [1], "reward": 1}\n',
        "got [1], allowed: a number",
    ),
    "huge int": (
        "c.jsonl",
        f'{{"run": "a", "compute": 1{"0" * 400}}}\n',
        "row 1, column 'compute'",
    ),
    "huger int": ("c.jsonl", f'{{"run": "a", "compute": 1{"0" * 5000}}}\n', "line 1: a number too"),
    "deep": ("c.jsonl", "{}\n" + "[" * 100_000, "line 2: a number too long, or nested too deep"),
    "surrogate": (
        "c.jsonl",
        '{"run": "\\ud800", "compute": 1, "reward": 0}\n',
        "row 1, column 'run': got '\\ud800', allowed: a name without",
    ),
    "control": (
        "c.csv",
        "run,compute,reward\na,1,.3\nb\x1b[2J,1,.3\n",
        "row 2, column 'run': got 'b\\x1b[2J'",
    ),
    "open quote": (
        "c.csv",
        'run,compute,reward\na,1,.1\na,2,.2\n"a,4,.3\nb,1,.1\n',
        "row 3: unexpected end of data",
    ),
    "stray quotes": ("c.csv", 'run,compute,reward\n"a,1,.3\n"b,1,.1\n', "row 1: ',' expected"),
    "long cell": ("c.csv", f"run,compute,reward\n{'a' * 140_000},1,.3\n", "row 1: field larger"),
    "not parquet": ("c.parquet", "hello", "not a Parquet file"),
    "format": ("c.xlsx", "", "got .xlsx, allowed: .csv"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_read_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    name, text, message = REFUSED[case]
    with pytest.raises(UserError) as caught:
        read_curves(write(tmp_path, text, name))
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)
    assert name in str(caught.value)


@pytest.mark.parametrize("rate", [1.2, -0.1, 120.0])
def test_pass_rates_out_of_range_are_refused_by_run(tmp_path: Path, rate: float) -> None:
    with pytest.raises(CurveError, match=f"^bad: .*{rate:g}.* allowed"):
        read_curves(write(tmp_path, as_csv([("good", 1, 0.3), ("bad", 1, rate)])))


def test_a_missing_file_a_folder_and_bytes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="No such file"):
        read_curves(tmp_path / "none.csv")
    (tmp_path / "folder.csv").mkdir()
    with pytest.raises(UserError, match="Is a directory"):
        read_curves(tmp_path / "folder.csv")
    (tmp_path / "bytes.csv").write_bytes(b"run,\xff\xfe")
    with pytest.raises(UserError, match="UTF-8"):
        read_curves(tmp_path / "bytes.csv")


def test_an_asked_for_column_must_exist(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="--stderr: got 'se'"):
        read_curves(write(tmp_path, as_csv(ROWS)), Columns(stderr="se"))


def test_curves_that_say_little_are_fitted_as_unresolved_not_refused(tmp_path: Path) -> None:
    rows = [("one", 1, 0.3), ("two", 1, 0.3), ("two", 2, 0.4), ("none", 1, "nan")]
    rows += [("flat", x, 0.5) for x in range(1, 21)]
    analysis = fit_file(write(tmp_path, as_csv(rows)), Columns(), Options())
    fits = {fit["run"]: fit for fit in analysis.document()["fits"]}
    assert sorted(fits) == ["flat", "none", "one", "two"]
    assert {run: fit["n_points"] for run, fit in fits.items()} == {
        "one": 1,
        "two": 2,
        "none": 0,
        "flat": 20,
    }
    assert not any(fits[run]["resolved"] for run in ("one", "two", "none"))
    assert all(fits[run]["notes"] for run in ("one", "two", "none"))


def test_a_file_is_fitted_with_the_options_given(tmp_path: Path) -> None:
    rows = [("a", x, 0.2 + 0.4 / (1 + (1000 / x) ** 2)) for x in range(100, 20001, 100)]
    path = write(tmp_path, as_csv(rows))
    (fit,) = fit_file(path, Columns(), Options(until=15000, at=1e6)).document()["fits"]
    assert fit["n_points"] == 150
    assert fit["A"] == pytest.approx(0.6, abs=1e-3)
    assert fit["B"] == pytest.approx(2.0, abs=1e-2)
    assert fit["C_mid"] == pytest.approx(1000, rel=1e-2)
    assert fit["forecast"]["reward"] == pytest.approx(0.6, abs=1e-3)
