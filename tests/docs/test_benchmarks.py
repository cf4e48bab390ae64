"""The benchmarks import what they measure, and the harness compares results before it measures them."""

import importlib
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[2]
NAMES = sorted(path.stem for path in (ROOT / "benchmarks").glob("[a-z]*.py"))
COMMANDS = [name for name in NAMES if name not in ("harness", "kernel_quality")]


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
