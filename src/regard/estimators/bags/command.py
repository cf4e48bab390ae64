"""What the command line does with bags: a table with a row for each instance, and a column that names its bag.

    regard fit bags molecules.csv --bag molecule --target active --out model/

All rows of a bag must have the same target. All other columns are features, and must hold numbers; true and false count
as 1 and 0. The names of bags are text, whatever they look like, so that 1 and 01 are two bags in every file.
"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data.bags import Bags, as_bags, group_targets
from regard.data.columns import Schema, target_column, target_hints
from regard.data.tables import DROP, Value, count_text, read_table, select_columns
from regard.estimators.settings import setting, with_settings
from regard.estimators.subject import Fitted, TableOptions, TableSubject, make, read_features

if TYPE_CHECKING:
    from pandas import Series

    from regard.estimators.bags.base import OverBags

NETWORK_ONLY = ("dropout", "learning_rate", "epochs", "batch_size", "early_stopping", "validation_fraction", "patience")
"""Settings that linear attention, which is fitted by L-BFGS, does not use."""


@with_settings
class BagTable(TableOptions):
    """What a model of bags learns from."""

    bag: str = setting("column that names the bag of each row")


class BagSubject(TableSubject[BagTable, Bags]):
    """Learn from bags of rows: a table with a row for each instance, and one target per bag."""

    name = "bags"
    inputs = "bags"
    estimators = ("BagClassifier", "BagRegressor")
    other_estimators = ("FlatClassifier", "FlatRegressor", "QuadraticRegressor")
    data = BagTable

    def fit(self, data: BagTable, settings: dict[str, Any], out: Path) -> Fitted:
        if data.bag == data.target:
            raise ValueError(f"--bag and --target must be two columns, got {data.bag!r} for both")
        frame = read_table(data.file, text=[data.bag])
        ids = select_columns(frame, [data.bag])[data.bag]
        target = group_targets(target_column(frame, data.target, data.kind), ids)
        rows, fill = read_features(data, frame, [data.target, data.bag], otherwise=DROP)
        model = make_model(target, settings | {"bag": data.bag})
        model.fit(rows.assign(**{data.bag: ids}), target)  # as_bags turns true and false into 1 and 0
        counts = ", ".join(count_text(*each) for each in ((target, "bag"), (rows, "row"), (rows.columns, "column")))
        messages = [*target_hints(target.rename(data.target), data.kind), f"{type(model).__name__} on {counts}"]
        return Fitted(model, messages, {"table": self.model_schema(model, fill).to_json()})

    def model_schema(self, model: "OverBags", fill: dict[str, Value] | None = None) -> Schema:
        names = getattr(model, "feature_names_in_", [f"x{index}" for index in range(model.n_features_in_)])
        return Schema(model.targets_[0], dict.fromkeys(names, "number"), fill, model.bag)

    def read_inputs(self, model: "OverBags", schema: Schema, path: Path) -> Bags:
        if schema.bag is None:
            raise ValueError("the model has no column of bags: set its bag=… in Python, and save it again")
        bags = as_bags(self.read_rows(model, schema, path), by=schema.bag)
        return bags if hasattr(model, "feature_names_in_") else replace(bags, features=None)

    def label(self, inputs: Bags, index: int) -> str:
        return inputs.describe(index)

    def describe(self, model: "OverBags", schema: Schema) -> dict[str, Any]:
        settings = model.get_params()
        names = ("attention", "init", "hidden_size", "heads", "rank", "alpha", "C", "epochs")
        facts = {name.replace("_", " "): settings[name] for name in names if settings.get(name) is not None}
        return self.describe_table(model, schema, {"bag": schema.bag or "", **facts}, {})


def make_model(target: "Series", settings: dict[str, Any]) -> "OverBags":
    """A regressor for a target of floats, a classifier for any other."""
    from regard.estimators import BagClassifier, BagRegressor

    linear = settings.get("attention") == "linear"
    if target.dtype != float:
        if linear:
            raise ValueError("--attention linear is for regression, and the target holds classes")
        return make(BagClassifier, settings)  # type: ignore[no-any-return]
    for name in NETWORK_ONLY if linear else ():
        if name in settings:
            raise ValueError(f"--{name.replace('_', '-')} has no effect with --attention linear")
    if linear:
        settings = {"init": "spectral"} | settings
    return make(BagRegressor, settings)  # type: ignore[no-any-return]


SUBJECT = BagSubject()
