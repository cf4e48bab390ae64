"""Caption images: Show, Attend and Tell, with soft or hard attention."""

ESTIMATORS = {"Captioner": "estimator"}
RESULTS = {"CaptionEvidence": "evidence"}
