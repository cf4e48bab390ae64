"""Predict from a table of rows: kernel regression and classification."""

ESTIMATORS = {"NadarayaWatson": "estimator", "NadarayaWatsonClassifier": "estimator"}
RESULTS = {"Evidence": "evidence"}
