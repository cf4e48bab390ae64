"""The summary: its numbers against plain definitions and statsmodels, its text, its frame, the command."""

import numpy as np
import pandas as pd
import pytest
from numpy.testing import assert_allclose
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score
from typer.testing import CliRunner

import regard
from regard.cli.app import app
from regard.estimators.tables.report import Report


@pytest.mark.parametrize("order", [0, 1])
@pytest.mark.parametrize("weighted", [False, True])
def test_degrees_of_freedom_are_the_trace_of_the_smoother(order, weighted):
    random = np.random.default_rng(0)
    x, weight = random.normal(size=(31, 2)), random.uniform(0.5, 2, 31) if weighted else None
    y = x[:, 0] ** 2 + random.normal(size=31)
    model = regard.NadarayaWatson(bandwidth=0.7, order=order).fit(x, y, sample_weight=weight)
    hat = regard.NadarayaWatson(bandwidth=0.7, order=order).fit(x, np.eye(31), sample_weight=weight).predict(x)
    facts = model.summary().facts
    assert facts["Degrees of freedom, exact"] == f"{np.trace(hat):.4g}"
    assert facts["R²"] == f"{r2_score(y, hat @ y, sample_weight=weight):.4g}"
    assert facts["R² of rows left out"] == f"{model.left_out_score():.4g}"
    total = 31 if weight is None else weight.sum()
    error = np.sqrt(np.sum((1 if weight is None else weight) * (y - hat @ y) ** 2) / (total - np.trace(hat)))
    assert facts["Residual standard error"] == f"{error:.4g}"


def test_the_table_has_a_row_for_each_column():
    random = np.random.default_rng(1)
    frame = pd.DataFrame({"a": random.normal(size=40), "b": random.choice(["u", "v"], 40)})
    frame["grade"] = pd.Categorical(random.choice(["lo", "hi"], 40), ["lo", "hi"], ordered=True)
    y = frame["a"] + 0.1 * random.normal(size=40)
    model = regard.NadarayaWatson(bandwidth=[0.5, 0.2, 0.3]).fit(frame, y.rename("price"))
    table = model.summary(significance=True, samples=19).to_frame()
    assert table.index.tolist() == ["a", "b", "grade"]
    assert table["kind"].tolist() == ["number", "unordered", "ordered"]
    assert table["bandwidth"].tolist() == [0.5, 0.2, 0.3]
    assert table["p_value"].tolist() == model.significance_test(samples=19).table["p_value"]
    assert str(model.summary()).startswith("NadarayaWatson of price\n====")
    matrix = regard.NadarayaWatson(bandwidth=np.eye(2)).fit(random.normal(size=(20, 2)), y[:20])
    assert matrix.summary().facts["Bandwidth"] == "a matrix"


def test_a_report_aligns_text_and_escapes_html():
    report = Report(
        "A < B", {"Rows": "12"}, ["a<b", "c"], {"kind": ["x", "y"], "p": [0.123456, float("nan")]}, ["Note."]
    )
    assert str(report).splitlines() == [
        "A < B", "=" * 17, "Rows           12", "-" * 17, "     kind       p", "a<b     x  0.1235", "c       y",
        "=" * 17, "Note.",
    ]  # fmt: skip
    html = report._repr_html_()
    assert "a&lt;b" in html
    assert "0.1235" in html
    assert "<p>Note.</p>" in html
    assert report.to_frame().loc["a<b", "p"] == 0.123456


def test_r_squared_is_that_of_statsmodels_by_its_definition():
    kernel_regression = pytest.importorskip("statsmodels.nonparametric.kernel_regression")
    x, y = load_diabetes(return_X_y=True)
    x, y = x[:60, [2, 8]], y[:60]
    peer = kernel_regression.KernelReg(y, x, "cc", reg_type="lc", bw=np.array([0.05, 0.03]), rng=0)
    predicted = regard.NadarayaWatson(bandwidth=[0.05, 0.03]).fit(x, y).predict(x)
    centre = predicted.mean()  # its documentation says that of y
    ours = ((y - centre) @ (predicted - centre)) ** 2 / np.sum((y - centre) ** 2) / np.sum((predicted - centre) ** 2)
    assert_allclose(ours, peer.r_squared(), rtol=1e-6)


def test_the_command_prints_the_summary(tmp_path):
    x = np.linspace(0, 5, 60)
    frame = pd.DataFrame({"x": x, "z": np.tile([0.1, 0.7, 0.3], 20)})
    model = regard.NadarayaWatson(bandwidth=0.5).fit(frame, np.sin(x))
    model.save(tmp_path / "model")
    result = CliRunner().invoke(app, ["summary", str(tmp_path / "model"), "--significance", "--samples", "19"])
    assert result.stdout == f"{model.summary(significance=True, samples=19)}\n"
    assert "p_value" not in CliRunner().invoke(app, ["summary", str(tmp_path / "model")]).stdout
    regard.NadarayaWatsonClassifier(bandwidth=0.5).fit(frame, x > 2).save(tmp_path / "classes")
    result = CliRunner().invoke(app, ["summary", str(tmp_path / "classes")])
    assert result.exit_code == 1
    assert "NadarayaWatsonClassifier has no summary" in result.stderr
