"""What the command line does with a table of rows: `regard fit table`, `predict`, `evidence` and `info`."""

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from regard.data.columns import Schema, split_names, split_orders, target_column, target_hints, weight_column
from regard.data.tables import Value, count_text, read_table
from regard.estimators.settings import setting, with_settings
from regard.estimators.subject import Fitted, TableOptions, TableSubject, make, read_features

if TYPE_CHECKING:
    from pandas import DataFrame

    from regard.estimators.tables.estimator import NadarayaWatson, NadarayaWatsonClassifier

    Model = NadarayaWatson | NadarayaWatsonClassifier


@with_settings
class TableFile(TableOptions):
    """What a model of rows learns from."""

    categorical: str = setting("numeric columns that are categories: a,b", default="")
    ordered: str = setting("columns with ordered categories: grade,size=S:M:L", default="")
    weight: str | None = setting("column with the weight of each row", default=None)


class Tables(TableSubject[TableFile, "DataFrame"]):
    """Fit kernel regression or classification to a table, to predict a column."""

    name = "table"
    inputs = "rows"
    estimators = ("NadarayaWatson", "NadarayaWatsonClassifier")
    data = TableFile

    def fit(self, data: TableFile, settings: dict[str, Any], out: Path) -> Fitted:
        from regard.estimators.tables.estimator import NadarayaWatson, NadarayaWatsonClassifier

        frame = read_table(data.file)
        target = target_column(frame, data.target, data.kind)
        weight = None if data.weight is None else weight_column(frame, data.weight)
        used = [name for name in (data.target, data.weight) if name is not None]
        orders = split_orders(data.ordered)
        rows, fill = read_features(data, frame, used, categorical=split_names(data.categorical), ordered=orders)
        model = make(NadarayaWatson if target.dtype == float else NadarayaWatsonClassifier, settings)
        model.fit(rows, target, sample_weight=weight)
        messages = target_hints(target, data.kind)
        messages += [f"order of {name}: {' < '.join(map(str, rows[name].cat.categories))}" for name in orders]
        size = f"{count_text(rows, 'row')} and {count_text(rows.columns, 'column')}"
        messages += [*describe_quality(model), f"{type(model).__name__} on {size}"]
        return Fitted(model, messages, {"table": self.model_schema(model, fill).to_json()})

    def model_schema(self, model: "Model", fill: dict[str, Value] | None = None) -> Schema:
        return Schema(model.targets_[0], model.columns_.kinds, fill)

    def read_inputs(self, model: "Model", schema: Schema, path: Path) -> "DataFrame":
        """New rows; an array if the model was fitted without names."""
        rows = self.read_rows(model, schema, path)
        return rows if hasattr(model, "feature_names_in_") else rows.to_numpy()

    def describe(self, model: "Model", schema: Schema) -> dict[str, Any]:
        settings, widths = model.get_params(), model.bandwidth_
        bandwidth = f"by {settings['bandwidth']}" if isinstance(settings["bandwidth"], str) else "given"
        facts = {
            "rows": f"{len(model.X_):,}",
            "kernel": settings["kernel"],
            "order": settings.get("order", ""),
            "metric": settings["metric"],
            "scale": settings["scale"] or "none",
            "bandwidth": bandwidth if widths.ndim == 1 else f"{bandwidth}, a matrix {len(widths)} × {len(widths)}",
            "criterion": "" if model.criterion_ is None else f"{model.criterion_:.6g}",
        }
        notes = {
            name: f"{'bandwidth' if kind == 'number' else 'λ'} {width:.4g}"
            for (name, kind), width in zip(schema.kinds.items(), widths, strict=True)
            if widths.ndim == 1
        }
        return self.describe_table(model, schema, facts, notes)


def describe_quality(model: "Model") -> list[str]:
    """How well rows are predicted from the others, compared with a constant prediction."""
    if len(model.row_index_) < 2:
        return []
    score = model.left_out_score()
    if hasattr(model, "classes_"):
        frequency = np.average(model.smoother_.value, axis=0, weights=model.smoother_.weight).max()
        return [f"leave-one-out accuracy: {score:.1%}; the most frequent class has {frequency:.1%}"]
    return [f"leave-one-out R²: {score:.3f}; the mean has 0"]


SUBJECT = Tables()
