"""Continue a text: a language model on a user's own text."""

ESTIMATORS = {"Writer": "estimator"}
RESULTS = {"TextEvidence": "evidence"}
