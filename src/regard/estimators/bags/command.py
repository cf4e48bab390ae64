"""What the command line does with bags: a table with a row for each instance, and a column that says its bag.

    regard fit molecules.csv --bag molecule --target active --out model/

The target of a bag is that of its rows, which must all have the same. All other columns are features, and numbers;
true and false count as 1 and 0.
The names of bags are text, whatever they look like, so that 1 and 01 are two bags in every file.
"""

from pathlib import Path
from typing import TYPE_CHECKING, Any

from regard.data import table_checks as cells
from regard.data import table_roles as roles
from regard.data import tables
from regard.data.bags import Bags, as_bags, group_targets
from regard.data.table_roles import Schema, column_kinds
from regard.estimators.pictures import drawn

if TYPE_CHECKING:
    from pandas import DataFrame, Series

WHAT = "bags"
SETTINGS = ("bag", "hidden_size", "heads", "epochs", "batch_size", "early_stopping")
OPTIONS = (*SETTINGS, "target", "drop", "impute", "attention", "balanced")
IDLE = {("attention", "linear"): ("epochs", "batch_size", "early_stopping")}
"""Options that mean nothing beside a value of another: linear attention has no epochs."""


def learn(path: Path, given: dict[str, Any]) -> tuple[Any, dict[str, Any], list[str]]:
    """A model of a table of bags, what it must know of it, and what there is to say: what it has learned from, last.

    given    the options of `regard fit`, as typed
    """
    bag, target, kind, impute = given["bag"], given["target"], given["kind"], given["impute"]
    if bag == target:
        raise ValueError(f"--bag and --target must be two columns, got {bag!r} for both")
    frame = tables.read_table(path, text=[bag])
    ids = bag_of(frame, bag)
    value = group_targets(roles.target_column(frame, target, kind), ids)
    said = roles.target_hints(value.rename(target), kind)
    others = [target, bag, *roles.dropped_columns(frame, given["drop"], [target, bag])]
    rows = roles.feature_columns(frame, others, otherwise=cells.DROP)
    check_features(rows)
    rows, fill = tables.impute(rows) if impute else (rows, None)
    cells.check_complete(rows)  # as_bags makes 0 and 1 of truths
    model = model_for(value, given).fit(rows.assign(**{bag: ids}), value)
    whole = ", ".join(tables.count_text(*some) for some in ((value, "bag"), (rows, "row"), (rows.columns, "column")))
    return model, {"table": known(model, fill).to_json()}, [*said, f"{type(model).__name__} on {whole}"]


def written(out: Path) -> None:
    """The model is in its folder: there is nothing to tidy up."""


def evidence(model: Any, asked: Any, top: int) -> Any:
    """What each prediction looked at."""
    return model.evidence(asked, top=top)


def picture(found: Any, place: int) -> Any:
    """The evidence of one bag."""
    return drawn(lambda: found.plot(query=place))


def called(bags: Bags, place: int) -> str:
    """A bag as a message calls it."""
    return bags.describe(place)


def bag_of(frame: "DataFrame", bag: str) -> "Series":
    """The column that says the bag of each row."""
    ids = tables.get_column(frame, bag)
    cells.check_complete(
        tables.select_columns(frame, [bag]), "a row must say its bag: fill it in, or leave the row out"
    )
    return ids


def check_features(rows: "DataFrame") -> None:
    """The features of an instance are numbers; true and false are 1 and 0."""
    for name in rows.columns:
        if not cells.is_numeric(rows[name]) and not cells.is_boolean(rows[name]):
            raise ValueError(
                f"the features of a bag must be numbers, and column {name!r} holds {rows[name].dropna().iloc[0]!r}:"
                " leave it out, or turn it into numbers"
            )


def model_for(value: "Series", given: dict[str, Any]) -> Any:
    """A regressor for a target of floats, a classifier for the rest."""
    from regard.estimators import BagClassifier, BagRegressor

    attention, balanced = given["attention"], given["balanced"]
    settings = {name: given[name] for name in SETTINGS}
    settings |= {"random_state": given["seed"], "verbose": not given["quiet"]}
    if value.dtype != float:
        if attention == "linear":
            raise ValueError("--attention linear is for regression, and the target holds classes")
        return BagClassifier(attention, class_weight="balanced" if balanced else None, **settings)
    if balanced:
        raise ValueError("--balanced is for classes, and the target holds numbers: use --kind classification")
    return BagRegressor(attention, init="spectral" if attention == "linear" else "random", **settings)


def takes(model: Any) -> bool:
    """Whether a model is one over bags: those have a setting for their column."""
    return hasattr(model, "bag")


def schema_of(model: Any, config: dict[str, Any], folder: Path) -> Schema:
    """What is known of the model's table; a model that was saved from Python knows only what it was fitted on."""
    return Schema.from_json(config["table"], folder) if "table" in config else known(model, None)


def known(model: Any, fill: dict[str, Any] | None) -> Schema:
    """What a model over bags knows of its table by itself."""
    names = getattr(model, "feature_names_in_", [f"x{place}" for place in range(model.n_features_in_)])
    return Schema(model.targets_[0], column_kinds(names, {}), fill, model.bag)


def asked(model: Any, schema: Schema, path: Path) -> Bags:
    """The bags of a new table as the model takes them: features by name, or by place if it was fitted without names."""
    bag = schema.bag
    if bag is None:
        raise ValueError(
            "the model does not know which column says the bag: set its bag=… in Python, and save it again"
        )
    frame = tables.read_table(path, text=[bag])
    ids = bag_of(frame, bag)
    if not hasattr(model, "feature_names_in_"):
        frame = frame.drop(columns=bag)
        if len(frame.columns) != len(schema.kinds):
            raise ValueError(
                f"the model was fitted on {len(schema.kinds)} features without names, {path} has {len(frame.columns)}"
                f" columns beside {bag!r}: give those, in their order"
            )
        frame = frame.set_axis(list(schema.kinds), axis=1)
    bags = as_bags(schema.features(frame).assign(**{bag: ids}), by=bag)
    return bags if hasattr(model, "feature_names_in_") else bags.without_feature_names()


def predictions(model: Any, schema: Schema, bags: Bags, std: bool, proba: bool, density: bool) -> "DataFrame":
    """A line for each bag: its name, its prediction, and the probabilities of its classes where they are asked for."""
    if std or density:
        raise ValueError(f"{'--std' if std else '--density'} is for rows, not for bags")
    made = {str(schema.bag): bags.names, schema.target: model.predict(bags)}
    if proba:
        if not hasattr(model, "predict_proba"):
            raise ValueError("--proba is for classification")
        chance = model.predict_proba(bags)
        clash = next((name for name in (f"p_{label}" for label in model.classes_) if name in made), None)
        if clash is not None:
            raise ValueError(f"--proba adds a column {clash!r}, and the table has one of that name: rename it")
        made |= {f"p_{label}": chance[:, place] for place, label in enumerate(model.classes_)}
    return tables.import_pandas().DataFrame(made)


def facts(model: Any, schema: Schema) -> dict[str, Any]:
    """What there is to tell of a model over bags, by name."""
    settings = model.get_params()
    told: dict[str, Any] = {
        "model": type(model).__name__,
        "target": schema.target,
        "classes": ", ".join(map(str, getattr(model, "classes_", []))),
        "bag": schema.bag or "",
    }
    told |= {
        name.replace("_", " "): settings[name]
        for name in ("attention", "init", "hidden_size", "heads", "rank", "alpha", "C", "epochs")
        if settings.get(name) is not None
    }
    told["missing"] = "an error" if schema.fill is None else "imputed"
    told["columns"] = len(schema.kinds)
    for name, kind in schema.kinds.items():
        told[f"  {name}"] = kind if schema.fill is None else f"{kind:<8}  missing: {schema.fill[name]}"
    return {name: value for name, value in told.items() if value != ""}
