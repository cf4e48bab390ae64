"""The rows behind a kernel's prediction, and their weights."""

import math

import numpy as np
import pandas as pd
import pytest
import torch
from helpers.kernel_cases import table
from numpy.testing import assert_allclose

from regard import NadarayaWatson, NadarayaWatsonClassifier


def test_the_prediction_is_the_weighted_sum_of_the_evidence():
    x, y = table()
    query = x[:9] + 0.1
    for order in (0, 1):
        model = NadarayaWatson(0.9, order=order).fit(x, y)
        whole = model.evidence(query, top=None)
        assert_allclose((whole.weight * y[whole.index]).sum(axis=1), model.predict(query), rtol=1e-9)
        assert_allclose(whole.rest, 0.0, atol=1e-12)
        some = model.evidence(query, top=4)
        assert_allclose(some.weight, whole.weight[:, :4])
        assert_allclose(some.rest, 1 - some.weight.sum(axis=1), atol=1e-12)
        assert (np.diff(np.abs(some.weight), axis=1) <= 0).all()


def test_evidence_by_a_tree_is_the_same(monkeypatch):
    x, y = table(rows=300)
    for kernel in ("gaussian", "epanechnikov"):
        model = NadarayaWatson(0.7, kernel=kernel).fit(x, y)
        direct = model.evidence(x[:50] * 1.2, top=6)
        with monkeypatch.context() as patch:
            patch.setattr("regard.estimators.tables.evidence.TREE_PAIRS", 0)
            tree = model.evidence(x[:50] * 1.2, top=6)
        assert_allclose(tree.weight, direct.weight, atol=1e-9)
        assert_allclose(tree.rest, direct.rest, atol=1e-9)
        assert (tree.index == direct.index).all()


def test_evidence_as_a_frame_names_the_rows():
    x, y = table(rows=5, columns=2)
    frame = pd.DataFrame(x, columns=["length", "width"], index=list("abcde"))
    model = NadarayaWatson(0.5).fit(frame, pd.Series(y, name="price"))
    evidence = model.evidence(frame.iloc[[3]], top=2).to_frame()
    assert list(evidence.columns) == ["query", "rank", "row", "weight", "rest", "price", "length", "width"]
    assert evidence["row"].iloc[0] == "d"
    assert evidence["query"].tolist() == ["d", "d"]
    assert evidence["price"].iloc[0] == y[3]
    assert evidence["weight"].sum() + evidence["rest"].iloc[0] == pytest.approx(1)


def test_rows_of_weight_0_are_ignored_and_evidence_counts_them():
    x, y = table()
    weight = np.ones(len(x))
    weight[:40] = 0
    model = NadarayaWatson(0.5).fit(x, y, weight)
    assert_allclose(model.predict(x), NadarayaWatson(0.5).fit(x[40:], y[40:]).predict(x))
    assert model.evidence(x, top=3).index.min() >= 40


def test_all_weights_of_too_many_rows_raise(monkeypatch):
    x, y = table()
    model = NadarayaWatson(0.5).fit(x, y)
    monkeypatch.setattr("regard.estimators.common.WHOLE_LIMIT", 2 * 8 * 83 * 83 - 1)
    with pytest.raises(ValueError, match="ask for top=8"):
        model.evidence(x, top=None)
    assert len(model.evidence(x[:82], top=None)) == 82
    for top in (0, -1, 1.5, True):
        with pytest.raises(ValueError, match="top must be a positive whole number"):
            model.evidence(x, top=top)


def test_evidence_explains_the_prediction_of_a_query_without_visible_rows(monkeypatch):
    frame = pd.DataFrame({"x": [0.0, 5.0, 50.0, 50.0], "g": list("abaa")})
    model = NadarayaWatson([1.0, 0.3], kernel="epanechnikov").fit(frame, [1.0, 2.0, 3.0, 5.0])
    query = pd.DataFrame({"x": [2.9, 40.0], "g": ["a", "a"]})
    with pytest.warns(UserWarning, match="2 of 2 rows"):
        assert_allclose(model.predict(query), [1.0, 4.0])
    evidence = model.evidence(query, top=2)
    assert_allclose((evidence.weight * np.array([1.0, 2.0, 3.0, 5.0])[evidence.index]).sum(axis=1), [1.0, 4.0])
    model = NadarayaWatson(1.0, kernel="boxcar").fit(frame[["x"]], [1.0, 2.0, 3.0, 5.0])
    monkeypatch.setattr("regard.estimators.tables.evidence.TREE_PAIRS", 0)
    evidence = model.evidence(query[["x"]], top=2)
    assert evidence.weight.tolist() == [[1.0, 0.0], [0.5, 0.5]]
    nothing = NadarayaWatson(kernel=lambda q, k: torch.full((len(q), len(k)), -math.inf).double())
    with pytest.warns(UserWarning, match="by the average of all"):
        assert_allclose(nothing.fit(frame[["x"]], [1.0, 2.0, 3.0, 5.0]).predict(query[["x"]]), 2.75)


@pytest.mark.parametrize("order", [0, 1])
def test_evidence_says_what_is_predicted_what_the_rest_says_and_from_how_many_rows(order, monkeypatch):
    x, y = table(rows=60, columns=2)
    model = NadarayaWatson(0.8, order=order).fit(x, y)
    some, whole = model.evidence(x[:7], top=3), model.evidence(x[:7], top=None)
    assert_allclose(some.prediction[:, 0], model.predict(x[:7]))
    shown = (some.weight * y[some.index]).sum(axis=1)
    assert_allclose(shown + some.rest * some.rest_target, model.predict(x[:7]))
    assert np.isnan(whole.rest_target).all()
    assert_allclose(some.effective_rows, np.abs(whole.weight).sum(axis=1) ** 2 / np.square(whole.weight).sum(axis=1))
    title = some.plot(2).get_title("left")
    assert title == f"row 2: y = {model.predict(x[2:3])[0]:.4g}; all others have {some.rest_target[2]:.4g}"
    with pytest.raises(IndexError, match="query must be below 7, the number of queries in this evidence, got 7"):
        some.plot(7)
    if order == 0:
        monkeypatch.setattr("regard.estimators.tables.evidence.TREE_PAIRS", 0)
        tree = model.evidence(x[:7], top=3)
        assert_allclose(tree.rest_target, some.rest_target, rtol=1e-4)
        assert tree.effective_rows is None


def test_evidence_in_a_notebook_is_short():
    x, y = table(rows=60, columns=2)
    evidence = NadarayaWatson(0.8).fit(x, y).evidence(x, top=2)
    assert repr(evidence) == "Evidence(60 queries, 2 rows each): .to_frame(), .plot(query)"
    assert evidence._repr_html_().count("<tr>") == 10 * 2
    label = np.where(y > 0, "up", "down")
    classes = NadarayaWatsonClassifier(0.8).fit(x, label).evidence(x, top=2)
    assert classes.rest_target is None
    assert classes.plot(0).get_title("left").startswith(f"row 0: y = {label[0]} (")
