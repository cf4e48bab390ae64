"""The benchmarks import what they measure, and the harness compares results before it measures them."""

import importlib
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
COMMANDS = [name for name in NAMES if name not in ("families", "harness", "kernel_quality")]


@pytest.fixture
def benchmark(monkeypatch):
    """Import a benchmark by name."""
    monkeypatch.syspath_prepend(ROOT)
    return lambda name: importlib.import_module(f"benchmarks.{name}")


@pytest.mark.parametrize("name", COMMANDS)
def test_a_benchmark_is_a_command(name, benchmark, monkeypatch, capsys):
    module = benchmark(name)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit) as stop:
        module.main(*([module.CASES, name] if name == "attend" else []))
    assert stop.value.code == 0
    assert "--only" in capsys.readouterr().out or name == "translation_quality"


def test_the_harness_compares_before_it_measures(benchmark):
    harness = benchmark("harness")
    inputs = torch.arange(1.0, 5.0)
    case = harness.Case("double / add", lambda seed: inputs, lambda x: [2 * x], lambda x: [x + x], time_bound=1e9)
    row = harness.compare(case, "", repeats=1)
    assert (row.met, row.memory_ratio, row.target) == ("yes", None, "time ≤ 1e+09")
    wrong = harness.Case("double / triple", lambda seed: inputs, lambda x: [2 * x], lambda x: [3 * x], time_bound=1.0)
    with pytest.raises(RuntimeError, match=r"double / triple: result 0 differs from the peer's by 3\.3e-01"):
        harness.compare(wrong, "", repeats=1)


def test_missing_data_names_the_files(benchmark, tmp_path):
    missing_data = benchmark("harness").missing_data
    assert missing_data(None, ["a"], "here") == "needs --data FOLDER, see the docstring of here"
    assert missing_data(tmp_path, ["a", "b"], "here") == f"{tmp_path} has no a, b: see here"
    assert missing_data(tmp_path, [], "here") == ""


def write_small_tables(folder):
    """A table of the first kind and one of the second, each under the name of a known one."""
    numbers = np.random.default_rng(0).normal(size=(40, 3))
    (folder / "uci" / "yacht").mkdir(parents=True)
    np.savetxt(folder / "uci" / "yacht" / "data.csv.gz", numbers, delimiter=",")
    mask = (np.arange(40)[:, None] % 10 == np.arange(10)).astype(int)
    np.savetxt(folder / "uci" / "yacht" / "test_mask.csv.gz", mask, delimiter=",", fmt="%d")
    (folder / "arff" / "classification").mkdir(parents=True)
    words = pd.DataFrame({"a": [1.0, None] * 20, "b": ["x", "y", None, "NA"] * 10, "class": ["no"] * 30 + ["yes"] * 10})
    words.to_csv(folder / "arff" / "classification" / "colic.csv.gz", index=False)
    return numbers[:, -1]


def test_tables_have_the_splits_of_the_file_or_drawn_ones(benchmark, tmp_path):
    tables = benchmark("tables")
    y = write_small_tables(tmp_path)
    rows = tables.read_rows(tmp_path, "yacht", 3)
    assert (len(rows.y), len(rows.test_y), rows.y.mean()) == (36, 4, pytest.approx(0))
    train = np.arange(40) % 10 != 3
    np.testing.assert_allclose(rows.test_y, (y[~train] - y[train].mean()) / y[train].std())
    rows = tables.read_rows(tmp_path, "colic", 1)
    assert (rows.y.tolist().count(1), rows.test_y.tolist().count(1), len(rows.test_y)) == (8, 2, 8)
    assert tables.categories(rows.frame) == ["b"]
    assert {"x", "y", "NA"} == set(rows.frame["b"].dropna())


SEARCHES = [pytest.param(name, marks=pytest.mark.slow) for name in ("kNN-CV", "linear-CV")]


@pytest.mark.parametrize("method", ["mean", "kNN", "HGB", "NadarayaWatson", *SEARCHES])
@pytest.mark.filterwarnings("ignore")
def test_methods_take_words_and_missing_cells(method, benchmark, tmp_path):
    tables = benchmark("tables")
    write_small_tables(tmp_path)
    found = tables.measure(tmp_path, ("colic", 0, method), threads=1)["metrics"]
    assert 0 <= found["log_loss"] < 5
    assert 0.5 <= found["accuracy"] <= 1
    found = tables.measure(tmp_path, ("yacht", 0, method), threads=1)["metrics"]
    assert 0 < found["rmse"] < 3


@pytest.mark.slow
def test_a_cell_is_run_once_and_reported(benchmark, tmp_path, capsys):
    tables = benchmark("tables")
    write_small_tables(tmp_path)
    results = tmp_path / "results.jsonl"
    options = ["--data", str(tmp_path), "--results", str(results), "--only", "yacht,colic", "--splits", "0"]
    tables.main([*options, "--methods", "mean,kNN", "--threads", "1"])
    tables.main([*options, "--methods", "mean"])
    assert len(tables.read_results(results)) == len(results.read_text().splitlines()) == 4
    tables.main([*options, "--methods", "linear-CV", "--limit", "0.01"])
    failed = tables.read_results(results)["yacht", 0, "linear-CV"]
    assert (failed["status"], failed["reason"]) == ("failed", "limit of 0.01 s")
    tables.main([*options, "--report"])
    printed = capsys.readouterr().out
    assert "regression: 1 tables, mean of 1 splits" in printed
    assert "mean rank" in printed
    assert "failed" in printed


def test_intervals_by_split_conformal(benchmark, tmp_path):
    tables = benchmark("tables")
    write_small_tables(tmp_path)
    found = tables.measure(tmp_path, ("yacht", 0, "HGB-conformal"), threads=1)["metrics"]
    assert 0 <= found["coverage"] <= 1
    assert found["length"] > 0
