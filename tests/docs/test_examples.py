"""The examples run, learn what they show, and write their plots. `tell_story.py` is tested with llama2.c's reader."""

import re
import runpy
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(name, monkeypatch, *arguments):
    """Run an example as a command."""
    monkeypatch.setattr(sys, "argv", [name, *map(str, arguments)])
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")


def is_not_blank(path):
    return np.std(matplotlib.image.imread(path)) > 0.1


@pytest.mark.slow
def test_kernel_regression_is_best_with_a_learned_bandwidth(tmp_path, monkeypatch, capsys):
    run("kernel_regression.py", monkeypatch, tmp_path / "deep" / "plot.png")
    errors = [float(error) for error in re.findall(r"true curve: ([\d.]+)", capsys.readouterr().out)]
    assert len(errors) == 3
    assert errors == sorted(errors, reverse=True)  # average, fixed bandwidth, learned bandwidth
    assert errors[2] < 0.3
    assert is_not_blank(tmp_path / "deep" / "plot.png")


@pytest.mark.slow
def test_attention_needs_fewer_bags(tmp_path, capsys):
    example = runpy.run_path(str(EXAMPLES / "bag_samples.py"))
    example["main"](tmp_path / "deep" / "bags.png", 1, counts=(20, 60))
    rows = re.findall(r"^(\w+) +(\D+?\d?) +([\d.]+) +([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    last = {(case, name): float(error) for case, name, _, error in rows}
    assert len(last) == 10
    assert last["linear", "linear attention"] < 0.2 < last["linear", "full quadratic"] < last["linear", "flat"]
    assert last["softmax", "softmax attention"] < 0.5 < last["softmax", "full quadratic"]
    assert is_not_blank(tmp_path / "deep" / "bags.png")


@pytest.mark.slow
def test_attention_in_a_convolutional_network_trains(tmp_path, monkeypatch, capsys):
    run("conv_digits.py", monkeypatch, tmp_path / "deep" / "digits.png")
    accuracy, gain = re.findall(r"digits: ([\d.]+) +gain (-?[\d.]+)", capsys.readouterr().out)[0]
    assert float(accuracy) > 0.93
    assert abs(float(gain)) > 0.05  # it starts at 0, where attention has no effect
    assert is_not_blank(tmp_path / "deep" / "digits.png")
