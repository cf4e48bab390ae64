"""What the command line does with a table of rows: kernel regression and classification, `NadarayaWatson`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data import table_checks as cells
from regard.data import table_roles as roles
from regard.data import tables
from regard.data.table_roles import Schema, column_kinds
from regard.estimators.pictures import drawn

if TYPE_CHECKING:
    from pandas import DataFrame, Series

WHAT = "rows"
SETTINGS = ("kernel", "bandwidth", "metric", "order", "scale")
OPTIONS = (*SETTINGS, "target", "drop", "categorical", "ordered", "weight", "impute")


def learn(path: Path, given: dict[str, Any]) -> tuple[Any, dict[str, Any], list[str]]:
    """A model of a table, what it must know of it, and what there is to say: what it has learned from, last.

    given    the options of `regard fit`, as typed
    """
    target, kind, impute = given["target"], given["kind"], given["impute"]
    frame = tables.read_table(path)
    value = roles.target_column(frame, target, kind)
    weight, order = given["weight"], roles.split_orders(given["ordered"])
    count = None if weight is None else roles.weight_column(frame, weight)
    others = [target, weight or target, *roles.dropped_columns(frame, given["drop"], [target, weight])]
    rows = roles.feature_columns(frame, others, roles.split_names(given["categorical"]), order)
    said = roles.target_hints(value, kind)
    said += [f"order of {name}: {' < '.join(map(str, rows[name].cat.categories))}" for name in order]
    rows, fill = tables.impute(rows) if impute else (rows, None)
    cells.check_complete(rows)
    settings = {
        "bandwidth": bandwidth_in(given["bandwidth"]),
        "scale": None if given["scale"] == "none" else given["scale"],
        **{name: given[name] for name in ("kernel", "metric")},
        "random_state": given["seed"],
        "verbose": not given["quiet"],
    }
    model = model_for(value, given["order"], settings).fit(rows, value, sample_weight=count)
    schema = known(model, fill)
    whole = f"{tables.count_text(rows, 'row')} and {tables.count_text(rows.columns, 'column')}"
    return model, {"table": schema.to_json()}, [*said, *quality(model), f"{type(model).__name__} on {whole}"]


def quality(model: Any) -> list[str]:
    """How well rows are predicted from the others, beside what needs no model."""
    if len(model.row_index_) < 2:
        return []
    score = model.left_out_score()
    if hasattr(model, "classes_"):
        usual = np.average(model.smoother_.value, axis=0, weights=model.smoother_.weight).max()
        return [f"of rows left out in turn, {score:.1%} are predicted right; the commonest class has {usual:.1%}"]
    return [f"R² of rows left out in turn: {score:.3f}; their mean has 0"]


def written(out: Path) -> None:
    """The model is in its folder: there is nothing to tidy up."""


def evidence(model: Any, asked: Any, top: int) -> Any:
    """What each prediction looked at."""
    return model.evidence(asked, top=top)


def picture(found: Any, place: int) -> Any:
    """The evidence of one row."""
    return drawn(lambda: found.plot(query=place))


def called(rows: Any, place: int) -> str:
    """A row as a message calls it."""
    return f"row {place + 1}"


def model_for(value: "Series", order: int, settings: dict[str, Any]) -> Any:
    """A regressor for a target of floats, a classifier for the rest."""
    from regard.estimators import NadarayaWatson, NadarayaWatsonClassifier

    if value.dtype == float:
        return NadarayaWatson(order=order, **settings)
    if order:
        raise ValueError(f"--order must be 0 for classification, got {order}: local lines are for regression")
    return NadarayaWatsonClassifier(**settings)


def bandwidth_in(text: str) -> Any:
    """A bandwidth as typed: a number, several, or a word, which the model knows or refuses."""
    parts = text.split(",")
    try:
        numbers = [float(part) for part in parts]
    except ValueError:
        if len(parts) > 1:
            raise ValueError(
                f"--bandwidth must be a number, numbers for each column, or a word, got {text!r}"
            ) from None
        return text.strip()
    return numbers if len(parts) > 1 else numbers[0]


def takes(model: Any) -> bool:
    """Whether a model is one of rows: all others are asked first."""
    return True


def schema_of(model: Any, config: dict[str, Any], folder: Path) -> Schema:
    """What is known of the model's table; a model that was saved from Python knows only what it was fitted on."""
    return Schema.from_json(config["table"], folder) if "table" in config else known(model, None)


def known(model: Any, fill: dict[str, Any] | None) -> Schema:
    """What a model knows of its table by itself."""
    columns = model.columns_
    categories = {columns.names[place]: category.values for place, category in columns.categories.items()}
    return Schema(model.targets_[0], column_kinds(columns.names, categories), fill)


def asked(model: Any, schema: Schema, table: Path) -> Any:
    """New rows as the model takes them: by name, or by place if it was fitted on columns without names."""
    frame = tables.read_table(table, text=schema.text)
    if hasattr(model, "feature_names_in_"):
        return schema.features(frame)
    if len(frame.columns) != len(schema.kinds):
        raise ValueError(
            f"the model was fitted on {len(schema.kinds)} columns without names, {table} has {len(frame.columns)}:"
            " give those, in their order"
        )
    return schema.features(frame.set_axis(list(schema.kinds), axis=1)).to_numpy()


def predictions(model: Any, schema: Schema, rows: Any, std: bool, proba: bool, density: bool) -> "DataFrame":
    """A column for the target, and for what else was asked."""
    pd = tables.import_pandas()
    classes = hasattr(model, "predict_proba")
    if std and classes:
        raise ValueError("--std is for regression; ask a classifier for --proba")
    if proba and not classes:
        raise ValueError("--proba is for classification; ask a regression for --std")
    names = model.targets_
    if proba:
        chance = model.predict_proba(rows)
        made = pd.DataFrame({names[0]: model.classes_[chance.argmax(axis=1)]})
        made = made.assign(**{f"p_{label}": chance[:, place] for place, label in enumerate(model.classes_)})
    elif std:
        mean, spread = (part.reshape(len(rows), -1) for part in model.predict(rows, return_std=True))
        made = pd.DataFrame(mean, columns=names)
        made = made.assign(**{f"{name}_std": spread[:, place] for place, name in enumerate(names)})
    else:
        made = pd.DataFrame(model.predict(rows).reshape(len(rows), -1), columns=names)
    return made.assign(log_density=model.log_density(rows)) if density else made


def facts(model: Any, schema: Schema) -> dict[str, Any]:
    """What there is to tell of a model, by name."""
    settings = model.get_params()
    told = {
        "model": type(model).__name__,
        "target": ", ".join(model.targets_),
        "classes": ", ".join(map(str, getattr(model, "classes_", []))),
        "rows": f"{len(model.X_):,}",
        "kernel": settings["kernel"],
        "order": settings.get("order", ""),
        "metric": settings["metric"],
        "scale": settings["scale"] or "none",
        "bandwidth": f"by {settings['bandwidth']}" if isinstance(settings["bandwidth"], str) else "given",
        "criterion": "" if model.criterion_ is None else f"{model.criterion_:.6g}",
        "missing": "an error" if schema.fill is None else "imputed",
    }
    told |= {"columns": len(schema.kinds)}
    widths = model.bandwidth_
    if widths.ndim == 2:
        told["bandwidth"] += f", a matrix {widths.shape[0]} × {widths.shape[1]}"
    for place, (name, kind) in enumerate(schema.kinds.items()):
        width = f"{'bandwidth' if kind == 'number' else 'λ'} {widths[place]:.4g}" if widths.ndim == 1 else ""
        fill = "" if schema.fill is None else f"missing: {schema.fill[name]}"
        told[f"  {name}"] = "  ".join(part for part in (f"{kind:<8}", width, fill) if part)
    return {name: value for name, value in told.items() if value != ""}
