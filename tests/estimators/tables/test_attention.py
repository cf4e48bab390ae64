"""The strong models for tables: exact evidence, no leaks, any columns, intervals, saving, scikit-learn's contract."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from numpy.testing import assert_allclose
from sklearn.datasets import load_diabetes, load_iris
from sklearn.ensemble import HistGradientBoostingRegressor
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import regard
from regard import AttentionClassifier, AttentionRegressor
from regard.estimators.tables import attention, stacking
from regard.estimators.tables.members.base import Mean
from regard.estimators.tables.members.features import Length
from regard.estimators.tables.members.kernel_ridge import KernelRidge
from regard.estimators.tables.members.learned_attention import LearnedAttention
from regard.estimators.tables.members.network import Network
from regard.estimators.tables.members.trees import BoostedTrees

TINY = stacking.Effort(3, 40, 1, 12, 0.2, Length(3, 20, 30), 16, Length(3, 20, 30))
"""All members, in a tenth of a second."""


@pytest.fixture
def tiny(monkeypatch):
    """Make `effort="medium"` a matter of milliseconds."""
    monkeypatch.setitem(stacking.EFFORTS, "medium", TINY)


def mixed_table(rows, seed=0):
    """Numbers, words, booleans, dates and missing cells; the target depends on all but the booleans."""
    random = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "size": random.lognormal(size=rows),
            "town": random.choice(["Ulm", "Bonn", "Kiel"], size=rows),
            "new": random.random(rows) < 0.5,
            "sold": pd.Timestamp("2024-01-01") + pd.to_timedelta(random.integers(0, 700, size=rows), unit="D"),
            "age": random.normal(40, 10, size=rows),
        }
    )
    target = np.log(frame["size"]) + 2 * (frame["town"] == "Ulm") + 0.5 * (frame["sold"].dt.day_of_week > 4)
    target += 0.02 * frame["age"] + 0.1 * random.normal(size=rows)
    frame.loc[random.random(rows) < 0.1, "age"] = np.nan
    frame.loc[random.random(rows) < 0.1, "town"] = None
    return frame, target.rename("price")


def rebuilt(evidence, target):
    """Predictions from all weights of an evidence."""
    seen = np.where(evidence.index < 0, 0.0, np.asarray(target)[evidence.index])
    return (evidence.weight * seen).sum(axis=1)


@pytest.mark.slow
@parametrize_with_checks(
    [AttentionRegressor(), AttentionClassifier(), AttentionRegressor(effort="low")],
    expected_failed_checks=lambda model: dict.fromkeys(
        ["check_sample_weight_equivalence_on_dense_data"],
        "folds are drawn by row: a row of weight 2 is in one fold, two copies of it may be in two",
    ),
)
def test_scikit_learns_checks(estimator, check, monkeypatch):
    for name in ("low", "medium"):  # the checks are of the interface
        monkeypatch.setitem(stacking.EFFORTS, name, TINY._replace(trees=60, network=Length(3, 120, 200)))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        check(estimator)


@pytest.mark.usefixtures("tiny")
def test_all_weights_rebuild_the_prediction():
    x, y = mixed_table(130)
    model = AttentionRegressor().fit(x[30:], y[30:])
    whole = model.evidence(x[:30], top=None)
    assert_allclose(rebuilt(whole, y[30:]), model.predict(x[:30]), atol=1e-9 * y.std())
    assert_allclose(whole.weight.sum(axis=1), 1)
    top = model.evidence(x[:30], top=7)
    assert_allclose(top.weight.sum(axis=1) + top.rest, 1)
    assert (np.diff(np.abs(top.weight), axis=1) <= 0).all()
    assert_allclose(top.prediction[:, 0], model.predict(x[:30]), atol=1e-9 * y.std())
    assert_allclose(
        (top.weight * np.asarray(y[30:])[top.index]).sum(axis=1) + top.rest * top.rest_target, model.predict(x[:30])
    )
    assert (top.effective_rows > 1).all()
    assert "price = " in top.plot(2).get_title(loc="left")


@pytest.mark.usefixtures("tiny")
def test_evidence_of_classes_has_their_probabilities():
    x, y = load_iris(return_X_y=True)
    model = AttentionClassifier().fit(x, y)
    assert_allclose(model.evidence(x[::40], top=3).prediction, model.predict_proba(x[::40]))
    assert "y = 0 (" in model.evidence(x[::40], top=3).plot(0).get_title(loc="left")


@pytest.mark.parametrize(
    "fit",
    [
        Mean.fit,
        lambda rows, seed: BoostedTrees.fit(rows, seed, trees=40, rate=0.2),
        lambda rows, seed: KernelRidge.fit(rows, seed, centres=37, rounds=1),
        lambda rows, seed: Network.fit(rows, seed, Length(1, 30, 30), width=13),
        lambda rows, seed: Network.fit(rows, seed + 1, Length(1, 30, 30), width=13),
        lambda rows, seed: LearnedAttention.fit(rows, seed, Length(1, 30, 30)),
        lambda rows, seed: LearnedAttention.fit(rows, seed + 1, Length(1, 30, 30)),
    ],
    ids=["mean", "trees", "kernel ridge", "scaled network", "ranked network", "scaled attention", "ranked attention"],
)
def test_a_member_is_a_weighted_sum_of_its_targets(fit):
    """The coefficients, times the targets, are the predictions; of several outputs, with weights of rows."""
    rows, query = member_rows(71, outputs=2), member_rows(11, outputs=2, seed=1).inputs
    member = fit(rows, 2)
    coefficients = member.coefficients(query, rows)
    assert_allclose(coefficients.sum(axis=1), 1)
    assert_allclose(coefficients @ rows.value, member.predict(query), atol=1e-8)
    again = type(member).from_arrays(member.arrays())
    assert_allclose(again.predict(query), member.predict(query))


def member_rows(count, outputs=1, seed=0):
    """Rows as the members take them."""
    frame, target = mixed_table(count, seed)
    model = AttentionRegressor(effort="low")
    cells = np.asarray(model._read_table(frame), dtype=float)
    inputs = attention.Encoder.fit(cells, model.columns_)(cells)
    random = np.random.default_rng(seed)
    value = np.stack([np.asarray(target) * (1 + index) + index for index in range(outputs)], axis=1)
    return attention.Rows(inputs, value + random.normal(size=value.shape), random.uniform(0.5, 2, size=count))


@pytest.mark.usefixtures("tiny")
def test_a_target_moves_predictions_by_its_weight():
    """With what was learned held fixed, adding δ to one target moves the prediction by its weight times δ."""
    x, y = mixed_table(90)
    model = AttentionRegressor().fit(x[20:], y[20:])
    whole = model.evidence(x[:20], top=None)
    changed = np.asarray(y[20:]).copy()
    changed[33] += 7.0
    moved = rebuilt(whole, changed) - model.predict(x[:20])
    assert_allclose(moved, 7 * np.where(whole.index == 33, whole.weight, 0).sum(axis=1), atol=1e-9)
    assert np.abs(moved).max() > 1e-3


def test_a_row_left_out_does_not_see_its_target(monkeypatch):
    """The prediction of each member for a row left out is the same whatever the row's target."""
    seen = []
    monkeypatch.setattr(
        stacking, "choose_weights", lambda left_out, *_: seen.append(left_out) or dict.fromkeys(left_out, 0.25)
    )
    rows = member_rows(60)
    for change in (0.0, 1000.0):
        value = rows.value.copy()
        value[17] += change
        stacking.fit_stack(rows._replace(value=value), TINY, classify=False, seed=0, progress=False)
    before, after = seen
    assert set(before) == {"mean", "kernel_ridge", "trees", "network", "attention"}
    for name in before:
        assert_allclose(after[name][17], before[name][17], err_msg=name)
        assert np.abs(after[name] - before[name]).max() > 1, name


@pytest.mark.usefixtures("tiny")
def test_one_seed_one_model_whatever_the_number_of_threads():
    x, y = mixed_table(100)
    models = [AttentionRegressor(n_jobs=jobs, random_state=3).fit(x, y) for jobs in (1, 2, -1)]
    threads = torch.get_num_threads()
    for model in models[1:]:
        assert np.array_equal(model.predict(x), models[0].predict(x))
    assert torch.get_num_threads() == threads
    other = AttentionRegressor(random_state=4).fit(x, y)
    assert not np.array_equal(other.predict(x), models[0].predict(x))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("classify", [False, True])
def test_saved_and_loaded(classify, tmp_path):
    x, y = mixed_table(80)
    x.index = [f"house {index}" for index in range(len(x))]
    model = (
        AttentionClassifier().fit(x, np.where(y > y.median(), "dear", "cheap"))
        if classify
        else AttentionRegressor().fit(x, y)
    )
    again = regard.load(model.save(tmp_path / "model"))
    assert np.array_equal(again.predict(x), model.predict(x))
    pd.testing.assert_frame_equal(again.evidence(x[:3]).to_frame(), model.evidence(x[:3]).to_frame())
    assert again.evidence(x[:1], top=1).to_frame()["row"].str.startswith("house").all()
    if not classify:
        assert_allclose(again.predict(x, interval=0.8), model.predict(x, interval=0.8))
        assert again.left_out_score() == model.left_out_score()


@pytest.mark.usefixtures("tiny")
def test_unseen_categories_missing_cells_and_constant_columns():
    x, y = mixed_table(90)
    x["constant"], x["empty"] = 1.0, np.nan
    model = AttentionRegressor().fit(x, y)
    new = x[:4].copy()
    new["age"] = np.nan
    new["town"] = ["Ulm", "Atlantis", None, "Kiel"]
    with pytest.warns(UserWarning, match="'Atlantis'"):
        predicted = model.predict(new)
    assert np.isfinite(predicted).all()
    with pytest.raises(ValueError, match="infinity"):
        model.predict(x[:4].assign(age=np.inf))
    with pytest.raises(ValueError, match="feature names"):
        model.predict(x[:4].rename(columns={"age": "years"}))


@pytest.mark.usefixtures("tiny")
@pytest.mark.parametrize("rows", [1, 2, 3, 9, 10, 11])
def test_few_rows(rows):
    random = np.random.default_rng(0)
    x, y = random.normal(size=(rows, 3)), random.normal(size=rows)
    model = AttentionRegressor().fit(x, y)
    predicted, low, high = model.predict(x, interval=0.9)
    assert np.isfinite(predicted).all()
    assert (low <= high).all()
    assert_allclose(rebuilt(model.evidence(x, top=None), y), predicted, atol=1e-9)


@pytest.mark.usefixtures("tiny")
def test_many_columns_outliers_and_large_offsets():
    random = np.random.default_rng(0)
    x = random.normal(size=(60, 200))
    y = 1e9 + x[:, 0]
    y[5] = 1e12
    model = AttentionRegressor().fit(x, y)
    assert np.isfinite(model.predict(x)).all()
    constant = AttentionRegressor().fit(x, np.full(60, 5.0))
    assert_allclose(constant.predict(x), 5.0)


@pytest.mark.usefixtures("tiny")
def test_a_sample_of_very_many_rows_is_announced(monkeypatch):
    monkeypatch.setattr(attention, "MAX_ROWS", 50)
    x, y = mixed_table(80)
    with pytest.warns(UserWarning, match="random sample of 50 of 80 rows"):
        model = AttentionRegressor().fit(x, y)
    whole = model.evidence(x[:5], top=None)
    assert whole.index.shape == (5, 50)
    assert_allclose(rebuilt(whole, y), model.predict(x[:5]), atol=1e-9)


@pytest.mark.usefixtures("tiny")
def test_rows_of_weight_zero_are_not_learned_from():
    x, y = mixed_table(80)
    weight = np.where(np.arange(80) < 50, 1.0, 0.0)
    model = AttentionRegressor().fit(x, np.where(weight > 0, y, 1e6), sample_weight=weight)
    assert_allclose(model.predict(x), AttentionRegressor().fit(x[:50], y[:50]).predict(x))
    assert model.evidence(x[:3], top=None).index.max() < 50
    with pytest.raises(ValueError, match="at least one non-zero"):
        AttentionRegressor().fit(x, y, sample_weight=np.zeros(80))


@pytest.mark.usefixtures("tiny")
def test_several_targets_and_several_kinds_of_tables():
    x, y = mixed_table(70)
    both = pd.DataFrame({"price": y, "tax": -3 * y + 1})
    model = AttentionRegressor().fit(x, both)
    assert model.predict(x).shape == (70, 2)
    assert [part.shape for part in model.predict(x, interval=0.5)] == [(70, 2)] * 3
    assert {"price", "tax"} <= set(model.evidence(x[:2]).to_frame())
    import polars

    plain = x.drop(columns="new")
    assert_allclose(
        AttentionRegressor().fit(polars.from_pandas(plain), y).predict(polars.from_pandas(plain)),
        AttentionRegressor().fit(plain, y).predict(plain),
    )


@pytest.mark.usefixtures("tiny")
def test_effects_of_columns_add_up_to_the_prediction():
    x, y = mixed_table(90)
    model = AttentionRegressor().fit(x, y)
    explanation = model.explain(x[:4])
    assert explanation.columns == list(x.columns)
    assert_allclose(explanation.base[:, 0] + explanation.effects[:, :, 0].sum(axis=1), model.predict(x[:4]))
    frame = explanation.to_frame()
    assert list(frame) == ["query", "column", "effect", "evidence_distance"]
    assert len(frame) == 4 * 5
    effects = np.abs(explanation.effects[:, :, 0]).mean(axis=0)
    assert effects[x.columns.get_loc("town")] > 3 * effects[x.columns.get_loc("new")]
    itself = model.encoder_.distances(model.cells_[:9], model.cells_[:9])
    assert_allclose(itself, 0)
    axes = explanation.plot(1)
    assert f"{model.predict(x[1:2])[0]:.4g}" in axes.get_xlabel()
    with pytest.raises(IndexError, match="below 4"):
        explanation.plot(4)


@pytest.mark.usefixtures("tiny")
def test_a_fit_that_fails_leaves_the_model_as_it_was(monkeypatch):
    x, y = mixed_table(60)
    model = AttentionRegressor().fit(x, y)
    before = model.predict(x)

    def interrupted(*args, **kwargs):
        raise KeyboardInterrupt

    monkeypatch.setattr(attention, "fit_stack", interrupted)
    with pytest.raises(KeyboardInterrupt):
        model.fit(x[:30], y[:30])
    assert np.array_equal(model.predict(x), before)


@pytest.mark.usefixtures("tiny")
def test_wrong_settings_and_targets_raise():
    x, y = mixed_table(30)
    with pytest.raises(ValueError, match="effort must be low, medium or high, got 'huge'"):
        AttentionRegressor(effort="huge").fit(x, y)
    with pytest.raises(ValueError, match="n_jobs must be a positive whole number, -1 for all cores, or None, got 0"):
        AttentionRegressor(n_jobs=0).fit(x, y)
    with pytest.raises(ValueError, match="AttentionClassifier predicts classes"):
        AttentionRegressor().fit(x, np.where(y > 0, "yes", "no"))
    with pytest.raises(ValueError, match="two classes, got 1 class"):
        AttentionClassifier().fit(x, ["a"] * 30)
    model = AttentionRegressor().fit(x, y)
    for level in (0, 1, 90, "0.9", float("nan")):
        with pytest.raises(ValueError, match="interval must be a number above 0 and below 1"):
            model.predict(x, interval=level)
    with pytest.raises(ValueError, match="top must be a positive whole number"):
        model.evidence(x, top=0)


@pytest.mark.usefixtures("tiny")
def test_in_a_pipeline_and_a_search():
    x, y = load_diabetes(return_X_y=True)
    search = GridSearchCV(
        make_pipeline(StandardScaler(), AttentionRegressor()), {"attentionregressor__effort": ["low", "medium"]}, cv=2
    )
    assert search.fit(x[:120], y[:120]).best_score_ > 0.2


@pytest.mark.slow
def test_low_effort_is_ahead_of_boosting_and_its_intervals_cover():
    x, y = load_diabetes(return_X_y=True)
    errors, peer, inside = [], [], []
    for part in range(3):
        test = np.arange(len(y)) % 3 == part
        model = AttentionRegressor(effort="low", random_state=0).fit(x[~test], y[~test])
        predicted, low, high = model.predict(x[test], interval=0.9)
        errors.extend((predicted - y[test]) ** 2)
        inside.extend((low <= y[test]) & (y[test] <= high))
        peer.extend(
            (HistGradientBoostingRegressor(random_state=0).fit(x[~test], y[~test]).predict(x[test]) - y[test]) ** 2
        )
    assert np.mean(errors) < 0.95 * np.mean(peer)
    assert 0.86 <= np.mean(inside) <= 0.95


def test_classes_of_iris():
    x, y = load_iris(return_X_y=True)
    names = np.array(["setosa", "versicolor", "virginica"])[y]
    model = AttentionClassifier(effort="low", random_state=0).fit(x[::2], names[::2])
    assert model.score(x[1::2], names[1::2]) > 0.93
    chance = model.predict_proba(x)
    assert_allclose(chance.sum(axis=1), 1)
    assert_allclose(np.log(chance), model.predict_log_proba(x))
    whole = model.evidence(x[:5], top=None)
    scores = np.stack(
        [(whole.weight * (names[::2][whole.index] == label)).sum(axis=1) for label in model.classes_], axis=1
    )
    assert_allclose(model.calibration_.probability(scores), chance[:5], atol=1e-9)
    assert model.left_out_score() > 0.9


def test_attention_is_learned_from_other_rows_than_the_own():
    """From noise it learns to look at all rows; if rows saw themselves, it would learn to look at the nearest one."""
    rows = member_rows(200)
    noise = np.random.default_rng(0).normal(size=(200, 1))
    member = LearnedAttention.fit(rows._replace(value=noise, weight=np.ones(200)), 0, Length(1, 60, 60))
    weight = member.coefficients(member_rows(50, seed=1).inputs, rows)
    assert np.median(1 / np.square(weight).sum(axis=1)) > 20  # the effective number of rows
