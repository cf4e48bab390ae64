"""Predict from bags of instances: attention over a bag, and quadratic forms of it."""

ESTIMATORS = {
    "BagClassifier": "estimator",
    "BagRegressor": "estimator",
    "FlatClassifier": "quadratic",
    "FlatRegressor": "quadratic",
    "QuadraticRegressor": "quadratic",
}
RESULTS = {"BagEvidence": "evidence"}
