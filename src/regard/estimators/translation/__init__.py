"""Translate sentences: recurrent networks without and with attention, and the Transformer."""

ESTIMATORS = {"Translator": "estimator"}
RESULTS = {"Alignment": "evidence", "TranslationScore": "evidence"}
