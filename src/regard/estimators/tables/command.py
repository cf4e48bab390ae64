"""What the command line does with a table of rows: `regard fit table`, `predict`, `evidence` and `info`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from regard import estimators
from regard.data.columns import Schema, split_names, split_orders, target_column, target_hints, weight_column
from regard.data.tables import Value, count_text, read_table
from regard.estimators.settings import setting, with_settings
from regard.estimators.subject import Fitted, TableOptions, TableSubject, make, read_features

if TYPE_CHECKING:
    from pandas import DataFrame

_MODELS = {
    "attention": ("AttentionRegressor", "AttentionClassifier"),
    "nadaraya-watson": ("NadarayaWatson", "NadarayaWatsonClassifier"),
    "partially-linear": ("PartiallyLinear",),
}
"""The estimators of each model, for regression and, if it has one, for classification."""


@with_settings
class TableFile(TableOptions):
    """What a model of rows learns from."""

    model: Literal["attention", "nadaraya-watson", "partially-linear"] = setting("kind of model", default="attention")
    categorical: str = setting("numeric columns that are categories: a,b", default="")
    ordered: str = setting("columns with ordered categories: grade,size=S:M:L", default="")
    weight: str | None = setting("column with the weight of each row", default=None)


class Tables(TableSubject[TableFile, "DataFrame"]):
    """Fit regression or classification to a table, to predict a column."""

    name = "table"
    inputs = "rows"
    estimators = tuple(name for names in _MODELS.values() for name in names)
    data = TableFile

    def fit(self, data: TableFile, settings: dict[str, Any], out: Path) -> Fitted:
        frame = read_table(data.file)
        target = target_column(frame, data.target, data.kind)
        weight = None if data.weight is None else weight_column(frame, data.weight)
        used = [name for name in (data.target, data.weight) if name is not None]
        orders, strong = split_orders(data.ordered), data.model == "attention"
        rows, fill = read_features(
            data,
            frame,
            used,
            allow_missing=strong,
            categorical=split_names(data.categorical),
            ordered=orders,
            dates=strong,
        )
        chosen, others = _MODELS[data.model], " or ".join(name for name in _MODELS if name != data.model)
        if target.dtype != float and len(chosen) == 1:
            raise ValueError(f"--model {data.model} predicts numbers, and the target {data.target!r} is classes")
        kind = getattr(estimators, chosen[int(target.dtype != float)])
        model = make(kind, settings, f"; settings of another model need --model {others}")
        model.fit(rows, target, sample_weight=weight)
        messages = target_hints(target, data.kind)
        messages += [f"order of {name}: {' < '.join(map(str, rows[name].cat.categories))}" for name in orders]
        size = f"{count_text(rows, 'row')} and {count_text(rows.columns, 'column')}"
        messages += [*describe_quality(model), f"{type(model).__name__} on {size}"]
        return Fitted(model, messages, {"table": self.model_schema(model, fill).to_json()})

    def model_schema(self, model: Any, fill: dict[str, Value] | None = None) -> Schema:
        return Schema(model.targets_[0], model.column_kinds_, fill, missing=_is_strong(model))

    def read_inputs(self, model: Any, schema: Schema, path: Path) -> "DataFrame":
        """New rows; an array if the model was fitted without names."""
        rows = self.read_rows(model, schema, path)
        return rows if hasattr(model, "feature_names_in_") else rows.to_numpy()

    def describe(self, model: Any, schema: Schema) -> dict[str, Any]:
        linear = hasattr(model, "coef_")
        describe = _describe_stack if _is_strong(model) else _describe_linear if linear else _describe_kernel
        facts, notes = describe(model, schema)
        return self.describe_table(model, schema, facts, notes)


def _is_strong(model: Any) -> bool:
    return type(model).__name__ in _MODELS["attention"]


def _describe_stack(model: Any, schema: Schema) -> tuple[dict[str, Any], dict[str, str]]:
    """Facts about a stack; notes on columns there are none."""
    shares = ", ".join(f"{name} {share:.0%}" for name, share in model.weights_.items())
    quality = "accuracy" if hasattr(model, "classes_") else "R²"
    return {
        "rows": f"{len(model.row_index_):,}",
        "effort": model.effort,
        "members": shares,
        f"left-out {quality}": f"{model.left_out_score():.3f}",
    }, {}


def _describe_kernel(model: Any, schema: Schema) -> tuple[dict[str, Any], dict[str, str]]:
    """Facts about a kernel regression, and the bandwidth of each column."""
    settings, widths = model.get_params(), model.bandwidth_
    rule = "auto" if settings["bandwidth"] is None else settings["bandwidth"]
    bandwidth = f"by {rule}" if isinstance(rule, str) else "given"
    facts = {
        "rows": f"{len(model.X_):,}",
        "kernel": settings["kernel"],
        "order": settings.get("order", ""),
        "metric": settings["metric"],
        "scale": model.scale_.unit,
        "bandwidth": bandwidth if widths.ndim == 1 else f"{bandwidth}, a matrix {len(widths)} × {len(widths)}",
        "ridge": f"{model.ridge_:g}" if hasattr(model, "ridge_") else "",
        "criterion": f"{model.criterion_:.6g}" if hasattr(model, "criterion_") else "",
    }
    notes = {
        name: f"{'bandwidth' if kind == 'number' else 'λ'} {width:.4g}"
        for (name, kind), width in zip(schema.kinds.items(), widths, strict=True)
        if widths.ndim == 1
    }
    return facts, notes


def _describe_linear(model: Any, schema: Schema) -> tuple[dict[str, Any], dict[str, str]]:
    """Facts about a partially linear model, and its coefficients."""
    kinds = list(schema.kinds)
    notes = {
        kinds[index]: f"coefficient {value:.4g}, standard error {error:.3g}"
        for index, value, error in zip(model.linear_, model.coef_, model.standard_error_, strict=True)
    }
    return {"rows": f"{len(model.row_index_):,}"}, notes


def describe_quality(model: Any) -> list[str]:
    """How well rows are predicted from the others, compared with a constant prediction."""
    if len(model.row_index_) < 2:
        return []
    score = model.left_out_score()
    how = "left-out" if _is_strong(model) else "leave-one-out"
    if hasattr(model, "classes_"):
        rows = model.rows_ if _is_strong(model) else model.smoother_
        frequency = np.average(rows.value, axis=0, weights=rows.weight).max()
        return [f"{how} accuracy: {score:.1%}; the most frequent class has {frequency:.1%}"]
    return [f"{how} R²: {score:.3f}; the mean has 0"]


SUBJECT = Tables()
