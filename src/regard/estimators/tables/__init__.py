"""Predict from a table of rows: kernel regression and classification, and the strong models without settings."""

ESTIMATORS = {
    "AttentionRegressor": "attention",
    "AttentionClassifier": "attention",
    "NadarayaWatson": "estimator",
    "NadarayaWatsonClassifier": "estimator",
    "PartiallyLinear": "partially_linear",
}
RESULTS = {"Bands": "bands", "Evidence": "evidence", "Explanation": "explanation", "Report": "report"}
