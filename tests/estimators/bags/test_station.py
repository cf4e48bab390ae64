"""The tour's station on bags: its errors, its pictures, and its weights."""

import numpy as np
import pytest
from helpers.bag_cases import ragged_bags
from matplotlib.figure import Figure
from numpy.testing import assert_array_equal

from regard.estimators import QuadraticRegressor
from regard.estimators.bags import station


def test_errors_are_relative_to_the_standard_deviation_of_the_target():
    assert station.relative_error(QuadraticRegressor(alpha=1e9), "linear", 20, seed=0) == pytest.approx(1.0, abs=0.05)
    assert station.relative_error(QuadraticRegressor(), "linear", 200, seed=0) < 0.2  # the noise is 0.1


def test_errors_are_drawn_with_one_legend():
    errors = {case: {name: np.ones((1, 2)) for name in station.models()} for case in station.CASES}
    figure = Figure(layout="constrained")
    station.draw_samples([20, 40], errors, figure, figure.subplots(2, 1))
    assert [axes.get_title(loc="left") for axes in figure.axes] == list(station.CASES.values())
    assert [axes.get_legend() for axes in figure.axes] == [None, None]
    labels = [text.get_text() for text in figure.legends[0].get_texts()]
    assert labels == [f"{name}: {station.PARAMETERS[name]} parameters" for name in station.models()]


def test_the_number_of_parameters_is_that_of_the_models():
    bags, y = station.planted_bags(40, station.FEATURES, station.SIZE)[:2]
    models = {name: model.fit(bags, y) for name, model in station.models().items() if name != station.SOFTMAX}
    assert models[station.FLAT].coef_.size == station.PARAMETERS[station.FLAT]
    assert models[station.LINEAR].u_.size + models[station.LINEAR].v_.size == station.PARAMETERS[station.LINEAR]
    assert np.linalg.matrix_rank(models[station.LOW].weight_, tol=1e-8) == station.RANK


def test_weights_are_in_the_order_of_the_instances(fitted):
    evidence = fitted("softmax").evidence(ragged_bags())
    for bag, instances in enumerate(ragged_bags()):
        weights = station.instance_weights(evidence, bag)
        assert weights.shape == (len(instances),)
        assert_array_equal(weights[evidence.index[bag, : len(weights)]], evidence.weight[bag, : len(weights)])
