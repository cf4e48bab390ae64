"""The command line as a whole."""

import subprocess
import sys
from types import SimpleNamespace

import pytest

import regard
from regard.cli.fit import subjects
from regard.plots import new_axes


@pytest.mark.slow
def test_the_module_is_the_command_and_knows_its_version():
    asked = subprocess.run([sys.executable, "-m", "regard", "--version"], capture_output=True, text=True, check=True)
    assert asked.stdout == f"regard {regard.__version__}\n"


def test_a_picture_has_one_title(tmp_path):
    """Its own, if it has one; else what was asked."""
    for own, expected in (("bag m59", "bag m59"), ("", "evidence for the prediction of row 1")):
        axes = new_axes(3, 2)
        axes.set_title(own, loc="left")
        evidence = SimpleNamespace(plot=lambda index, axes=axes: axes)
        subjects()["table"].save_plot(evidence, 0, tmp_path / "o.png", "row 1")
        assert (axes.get_title(loc="left"), axes.get_title()) == (expected, "")
