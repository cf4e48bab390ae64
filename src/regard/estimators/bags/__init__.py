"""Estimators over bags: one prediction for several instances, with the instances behind it as evidence."""

from regard.estimators.bags.estimator import BagClassifier, BagRegressor
from regard.estimators.bags.evidence import BagEvidence
from regard.estimators.bags.quadratic import FlatClassifier, FlatRegressor, QuadraticRegressor

__all__ = ["BagClassifier", "BagEvidence", "BagRegressor", "FlatClassifier", "FlatRegressor", "QuadraticRegressor"]
