"""What the command line does with bags: a table with a row for each instance, and a column that names its bag.

    regard fit bags molecules.csv --bag molecule --target active --out model/

All rows of a bag must have the same target. All other columns are features, and must hold numbers; true and false count
as 1 and 0. The names of bags are text, whatever they look like, so that 1 and 01 are two bags in every file.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data import table_checks, table_roles, tables
from regard.data.bags import Bags, as_bags, group_targets
from regard.data.table_roles import Schema, column_kinds
from regard.estimators.settings import setting, with_settings
from regard.estimators.subject import Fitted, Subject, TableOptions, make

if TYPE_CHECKING:
    from pandas import DataFrame, Series

    from regard.estimators.bags.base import OverBags

NETWORK_ONLY = ("dropout", "learning_rate", "epochs", "batch_size", "early_stopping", "validation_fraction", "patience")
"""Settings that linear attention, which is fitted by L-BFGS, does not use."""


@with_settings
class BagTable(TableOptions):
    """What a model of bags learns from."""

    bag: str = setting("column that names the bag of each row")


class BagSubject(Subject[BagTable, Schema, Bags]):
    """Learn from bags of rows: a table with a row for each instance, and one target per bag."""

    name = "bags"
    inputs = "bags"
    estimators = ("BagClassifier", "BagRegressor")
    other_estimators = ("FlatClassifier", "FlatRegressor", "QuadraticRegressor")
    data = BagTable

    def fit(self, data: BagTable, settings: dict[str, Any], out: Path) -> Fitted:
        if data.bag == data.target:
            raise ValueError(f"--bag and --target must be two columns, got {data.bag!r} for both")
        frame = tables.read_table(data.file, text=[data.bag])
        ids = read_bag_names(frame, data.bag)
        target = group_targets(table_roles.target_column(frame, data.target, data.kind), ids)
        used = [data.target, data.bag]
        others = [*used, *table_roles.dropped_columns(frame, data.drop, used)]
        rows = table_roles.feature_columns(frame, others, otherwise=table_checks.DROP)
        check_numeric(rows)
        rows, fill = tables.impute(rows) if data.impute else (rows, None)
        table_checks.check_complete(rows)
        model = make_model(target, settings | {"bag": data.bag})
        model.fit(rows.assign(**{data.bag: ids}), target)  # as_bags turns true and false into 1 and 0
        counts = ", ".join(
            tables.count_text(*each) for each in ((target, "bag"), (rows, "row"), (rows.columns, "column"))
        )
        hints = table_roles.target_hints(target.rename(data.target), data.kind)
        schema = make_schema(model, fill)
        return Fitted(model, [*hints, f"{type(model).__name__} on {counts}"], {"table": schema.to_json()})

    def schema(self, model: "OverBags", config: dict[str, Any], folder: Path) -> Schema:
        """What the folder says of the table; a model that was saved from Python knows its own features only."""
        return Schema.from_json(config["table"], folder) if "table" in config else make_schema(model, None)

    def read_inputs(self, model: "OverBags", schema: Schema, path: Path) -> Bags:
        """The bags of a new table: features by name, or by position if the model was fitted without names."""
        bag, named = schema.bag, hasattr(model, "feature_names_in_")
        if bag is None:
            raise ValueError("the model has no column of bags: set its bag=… in Python, and save it again")
        frame = tables.read_table(path, text=[bag])
        ids = read_bag_names(frame, bag)
        if not named:
            frame = frame.drop(columns=bag)
            if len(frame.columns) != len(schema.kinds):
                raise ValueError(
                    f"{path} must have the {len(schema.kinds)} features of training beside {bag!r}, in their order, got"
                    f" {len(frame.columns)} columns: the model was fitted without their names"
                )
            frame = frame.set_axis(list(schema.kinds), axis=1)
        bags = as_bags(schema.features(frame).assign(**{bag: ids}), by=bag)
        return bags if named else bags.without_feature_names()

    def predict(self, model: "OverBags", schema: Schema, inputs: Bags, columns: frozenset[str]) -> "DataFrame":
        """A row for each bag: its name, its prediction, and the probabilities of its classes."""
        for name in ("std", "density"):
            if name in columns:
                raise ValueError(f"--{name} is for rows, not for bags")
        table = {str(schema.bag): inputs.names, schema.target: model.predict(inputs)}
        if "proba" in columns:
            if not hasattr(model, "predict_proba"):
                raise ValueError("--proba is for classification")
            names = [f"p_{label}" for label in model.classes_]
            clash = next((name for name in names if name in table), None)
            if clash is not None:
                raise ValueError(f"--proba adds a column {clash!r}, but the table has a column of this name: rename it")
            table |= dict(zip(names, model.predict_proba(inputs).T, strict=True))
        return tables.import_pandas().DataFrame(table)

    def label(self, inputs: Bags, index: int) -> str:
        return inputs.describe(index)

    def describe(self, model: "OverBags", schema: Schema) -> dict[str, Any]:
        settings = model.get_params()
        facts: dict[str, Any] = {
            "model": type(model).__name__,
            "target": schema.target,
            "classes": ", ".join(map(str, getattr(model, "classes_", []))),
            "bag": schema.bag or "",
        }
        facts |= {
            name.replace("_", " "): settings[name]
            for name in ("attention", "init", "hidden_size", "heads", "rank", "alpha", "C", "epochs")
            if settings.get(name) is not None
        }
        facts["missing"] = "an error" if schema.fill is None else "imputed"
        facts["columns"] = len(schema.kinds)
        for name, kind in schema.kinds.items():
            facts[f"  {name}"] = kind if schema.fill is None else f"{kind:<8}  missing: {schema.fill[name]}"
        return {name: value for name, value in facts.items() if value != ""}


def read_bag_names(frame: "DataFrame", bag: str) -> "Series":
    """The column that names the bag of each row."""
    column = tables.get_column(frame, bag)
    advice = "each row must name its bag: fill it in, or leave the row out"
    table_checks.check_complete(tables.select_columns(frame, [bag]), advice)
    return column


def check_numeric(rows: "DataFrame") -> None:
    """Raise unless the features are numbers or booleans."""
    for name in rows.columns:
        if not table_checks.is_numeric(rows[name]) and not table_checks.is_boolean(rows[name]):
            value = rows[name].dropna().iloc[0]
            raise ValueError(
                f"the features of a bag must be numbers, and column {name!r} holds {value!r}: leave it out, or turn it"
                " into numbers"
            )


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


def make_schema(model: "OverBags", fill: dict[str, tables.Value] | None) -> Schema:
    """What a model knows of its table by itself, and the values of missing cells."""
    names = getattr(model, "feature_names_in_", [f"x{index}" for index in range(model.n_features_in_)])
    return Schema(model.targets_[0], column_kinds(names, {}), fill, model.bag)


SUBJECT = BagSubject()
