"""What a subject offers to the command line: how its data is read, what is learned from it, and how results are shown.

A subject is a folder of `regard.estimators` (tables, bags, translation, captioning, writing). Its `command.py` has a
class derived from `Subject`, and one instance of it, `SUBJECT`. The command line knows no subject by name: it finds
the folders, and makes `regard fit NAME` of the settings that the subject's data and its estimators declare.
"""

import inspect
import shutil
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, Literal, NamedTuple, Protocol, TypeVar

from rich.console import Console

from regard import estimators
from regard.checks import optional_import
from regard.data.columns import Schema as TableSchema
from regard.data.columns import feature_columns, split_names
from regard.data.tables import Value, check_complete, import_pandas, impute, read_header, read_table, select_columns
from regard.estimators.settings import setting, settings_of, with_settings
from regard.saving import CONFIG

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure
    from pandas import DataFrame, Series
    from torch import nn

    from regard.training import History
Data = TypeVar("Data")  # the options of `regard fit NAME` that say what to learn from
Schema = TypeVar("Schema")  # what a model folder knows of its data: the columns of a table; None for a text
Inputs = TypeVar("Inputs")  # new data: rows, bags, sentences, a text, images
Options = TypeVar("Options", bound="RunOptions")  # the same as Data, of a `TrainedSubject`


class Fitted(NamedTuple):
    """What `Subject.fit` returns.

    messages   to print; the last one says what was fitted
    extra      what the model folder's config has beside the model
    """

    model: Any
    messages: list[str]
    extra: dict[str, Any] = {}  # noqa: RUF012  (a NamedTuple's default is never changed)


class Evidence(Protocol):
    """What predictions looked at."""

    def to_frame(self) -> "DataFrame": ...


class Subject(ABC, Generic[Data, Schema, Inputs]):
    """What `command.py` of a subject must offer."""

    name: ClassVar[str]  # `regard fit NAME`
    inputs: ClassVar[str]  # what its data is called in messages: "rows", "lines"
    estimators: ClassVar[tuple[str, ...]]  # public names of the estimators that it fits; their settings are options
    other_estimators: ClassVar[tuple[str, ...]] = ()  # those that it does not fit, but opens from a model folder
    data: type[Data]  # a class `with_settings`: what to learn from
    verbs: ClassVar[tuple[Callable[..., None], ...]] = ()  # its own commands, such as `regard translate`

    @abstractmethod
    def fit(self, data: Data, settings: dict[str, Any], out: Path) -> Fitted:
        """Learn from data. `settings` holds what was typed, the seed and `verbose`; `out` is the model's folder."""

    @abstractmethod
    def read_inputs(self, model: Any, schema: Schema, path: Path) -> Inputs:
        """New data from a file, checked."""

    def label(self, inputs: Inputs, index: int) -> str:
        """An input as a message calls it: "row 3"."""
        return f"{self.inputs.removesuffix('s')} {index + 1}"

    @abstractmethod
    def describe(self, model: Any, schema: Schema) -> dict[str, Any]:
        """Facts about a model, by name."""

    def evidence(self, model: Any, inputs: Inputs, top: int) -> Evidence:
        """What each prediction looked at."""
        return model.evidence(inputs, top=top)  # type: ignore[no-any-return]

    def plot(self, evidence: Any, index: int) -> "Axes":
        """A picture of the evidence of one input."""
        return evidence.plot(index)  # type: ignore[no-any-return]

    def figure(self, evidence: Any, index: int, title: str) -> "Figure":
        """The figure of that picture, with a title if it has none of its own."""
        axes = self.plot(evidence, index)
        if not axes.get_title() + axes.get_title(loc="left"):
            axes.set_title(title, loc="left")
        return axes.get_figure(root=True)  # type: ignore[return-value]

    def save_plot(self, evidence: Any, index: int, path: Path, name: str) -> None:
        """Write the picture to a file."""
        with optional_import("pictures need matplotlib"):
            figure = self.figure(evidence, index, f"evidence for the prediction of {name}")
        path = path if path.suffix else path.with_suffix(".png")
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path)
        say(f"picture of {name} → {path}")

    def schema(self, model: Any, config: dict[str, Any], folder: Path) -> Schema:
        """What a model folder knows of its data. By default nothing."""
        return None  # type: ignore[return-value]

    def predict(
        self,
        model: Any,
        schema: Schema,
        inputs: Inputs,
        columns: frozenset[str],
        interval: float | None = None,
        quantiles: Sequence[float] = (),
    ) -> "DataFrame":
        """Predictions, with the additional columns `std`, `proba` and `density`, the ends of intervals, and quantiles.

        By default there are none.
        """
        verbs = " or ".join(f"regard {verb.__name__}" for verb in self.verbs)
        raise ValueError(f"{type(model).__name__} has no predictions of a table; use {verbs}")

    def finish(self, out: Path) -> None:
        """Clean up after the model folder was written."""

    def open_folder(self, folder: Path, verb: str) -> Any:
        """The model in a folder; raises if it is not of this subject."""
        model = estimators.load(folder)
        if type(model).__name__ not in self.estimators:
            kinds = " or ".join(self.estimators)
            raise ValueError(f"regard {verb} needs a {kinds}, got a {type(model).__name__} in {folder}")
        return model


@with_settings
class TableOptions:
    """The options of `regard fit` that all subjects with tables share."""

    file: Path = setting("a table with a header: .csv, .tsv or .parquet", kw_only=False)
    target: str = setting("column to predict")
    kind: Literal["auto", "regression", "classification"] = setting("what to predict", default="auto")
    drop: str = setting("columns to leave out, such as names of rows: a,b", default="")
    impute: bool = setting("fill missing cells with medians or commonest values", default=False)


class TableSubject(Subject[Data, TableSchema, Inputs]):
    """A subject that learns from a table: its schema, reading of new rows, and description."""

    @abstractmethod
    def model_schema(self, model: Any, fill: dict[str, Value] | None = None) -> TableSchema:
        """The schema of the columns that a model was fitted on."""

    def schema(self, model: Any, config: dict[str, Any], folder: Path) -> TableSchema:
        """What the folder says of the table; a model that was saved from Python knows its own columns only."""
        return TableSchema.from_json(config["table"], folder) if "table" in config else self.model_schema(model)

    def read_rows(self, model: Any, schema: TableSchema, path: Path) -> "DataFrame":
        """New rows: columns by name, or by position if the model was fitted on columns without names."""
        extra_columns = [] if schema.bag is None else [schema.bag]
        frame = read_table(path, text=[*schema.text, *extra_columns])
        if not hasattr(model, "feature_names_in_"):
            names = [name for name in frame.columns if name not in extra_columns]
            if len(names) != len(schema.kinds):
                raise ValueError(
                    f"the model was fitted on {len(schema.kinds)} columns without names, {path} has {len(names)}:"
                    " give those, in their order"
                )
            frame = frame.rename(columns=dict(zip(names, schema.kinds, strict=True)))
        return schema.features(frame)

    def predict(
        self,
        model: Any,
        schema: TableSchema,
        inputs: Inputs,
        columns: frozenset[str],
        interval: float | None = None,
        quantiles: Sequence[float] = (),
    ) -> "DataFrame":
        """The name of the bag if there are bags, the target, and what is added to it.

        That is `target_std`, `target_low` and `target_high`, `target_q0.05` for each quantile, `p_…` for each class,
        `log_density`.
        """
        of_rows, classifies = columns & {"density", "std"}, hasattr(model, "classes_")
        if schema.bag is not None and of_rows:
            raise ValueError(f"--{max(of_rows)} is for rows, not for bags")
        if "proba" in columns and not classifies:
            raise ValueError("--proba is for classification; a regression of rows has --std")
        if "std" in columns and classifies:
            raise ValueError("--std is for regression; a classifier has --proba")
        if interval is not None and (classifies or not takes(model.predict, "interval")):
            raise ValueError("--interval is for a regression by regard fit table")
        if quantiles and (classifies or not takes(model.predict, "quantiles")):
            raise ValueError("--quantiles is for a regression by regard fit table --model nadaraya-watson")
        if of_rows and not hasattr(model, "log_density"):
            raise ValueError(f"--{max(of_rows)} is for --model nadaraya-watson; this model has --interval 0.9")
        table = {} if schema.bag is None else {schema.bag: inputs.names}  # type: ignore[attr-defined]
        if classifies:
            table |= _predict_classes(model, inputs, "proba" in columns, taken=list(table))
        else:
            parts = _predict_numbers(model, inputs, "std" in columns, interval, quantiles)
            names = [f"{name}{suffix}" for suffix in parts for name in model.targets_]
            numbers = [
                column for part in parts.values() for column in part.reshape(len(part), -1).T
            ]  # [m] or [m, c] to c of [m]
            table |= zip(names, numbers, strict=True)
        if "density" in columns:
            table["log_density"] = model.log_density(inputs)
        return import_pandas().DataFrame(table)

    def compare(self, model: Any, schema: TableSchema, path: Path, predicted: "DataFrame", keep: str) -> "DataFrame":
        """Predictions after columns of the new table, and on stderr how good they are, if it has the target too."""
        names = split_names(keep)
        if schema.bag is not None:
            if names:
                raise ValueError("--keep is for rows, not for bags")
            return predicted
        target, header = model.targets_[0], read_header(path)
        if not names and target not in header:
            return predicted
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # it has been read before
            table = read_table(path, text=names)
        taken = [name for name in names if name in predicted.columns]
        if taken:
            raise ValueError(f"--keep {taken[0]}: the predictions have a column of this name")
        kept = select_columns(table, names).reset_index(drop=True)
        if target in header:
            _say_score(model, table[target].reset_index(drop=True), predicted[target])
        return import_pandas().concat([kept, predicted], axis=1) if names else predicted

    def describe_table(
        self, model: Any, schema: TableSchema, facts: dict[str, Any], notes: Mapping[str, str]
    ) -> dict[str, Any]:
        """Facts about a model: its target, then `facts`, then a line per column, with its note if `notes` has one."""
        facts = {
            "model": type(model).__name__,
            "target": ", ".join(model.targets_),
            "classes": ", ".join(map(str, getattr(model, "classes_", []))),
            **facts,
            "missing": "imputed" if schema.fill is not None else "allowed" if schema.missing else "an error",
            "columns": len(schema.kinds),
        }
        for name, kind in schema.kinds.items():
            fill = "" if schema.fill is None else f"missing: {schema.fill[name]}"
            facts[f"  {name}"] = "  ".join(part for part in (f"{kind:<8}", notes.get(name, ""), fill) if part).rstrip()
        return {name: value for name, value in facts.items() if value != ""}


def read_features(
    data: TableOptions, frame: "DataFrame", used: Sequence[str], allow_missing: bool = False, **named: Any
) -> tuple["DataFrame", dict[str, Value] | None]:
    """The columns to learn from, without missing cells, and their values; `named` goes to `feature_columns`."""
    rows = feature_columns(frame, used, drop=split_names(data.drop), **named)
    filled, fill = impute(rows) if data.impute else (rows, None)
    if not allow_missing:
        check_complete(filled)
    return filled, fill


def _say_score(model: Any, truth: "Series", predicted: "Series") -> None:
    """Print the accuracy, or R², on the rows that have a target."""
    from sklearn.metrics import r2_score

    known = truth.notna()
    if hasattr(model, "classes_"):
        if known.any():
            say(f"accuracy on {known.sum():,} rows with a target: {(truth[known] == predicted[known]).mean():.1%}")
        return
    truth = import_pandas().to_numeric(truth, errors="coerce")
    known = truth.notna()
    if known.sum() > 1:
        say(f"R² on {known.sum():,} rows with a target: {r2_score(truth[known], predicted[known]):.3f}")


def parse_levels(text: str) -> list[float]:
    """Levels of quantiles as typed: 0.05,0.5,0.95.

    >>> parse_levels("0.05, 0.5")
    [0.05, 0.5]
    """
    try:
        return [float(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise ValueError(f"--quantiles must be numbers such as 0.05,0.5,0.95, got {text!r}") from None


def takes(function: Callable[..., Any], argument: str) -> bool:
    """Whether a function has an argument of this name."""
    return argument in inspect.signature(function).parameters


def _predict_numbers(
    model: Any, inputs: Any, std: bool, interval: float | None, quantiles: Sequence[float]
) -> dict[str, Any]:
    """Predictions, standard deviations, ends of intervals and quantiles, by what is added to the target's name."""
    parts: dict[str, Any] = {}
    if interval is not None:
        parts |= zip(("", "_low", "_high"), model.predict(inputs, interval=interval), strict=True)
    if std:
        parts |= zip(("", "_std"), model.predict(inputs, return_std=True), strict=True)
    if not parts:
        parts[""] = model.predict(inputs)
    if quantiles:
        found = model.predict(inputs, quantiles=quantiles)
        parts |= {f"_q{level:g}": found[..., index] for index, level in enumerate(quantiles)}
    return parts


def _predict_classes(model: Any, inputs: Any, proba: bool, taken: Sequence[str]) -> dict[str, Any]:
    """The most probable class, and with `proba` the probability of each class, by the name of the column."""
    chance, target = model.predict_proba(inputs), model.targets_[0]
    predicted = {target: model.classes_[chance.argmax(axis=1)]}
    for index, label in enumerate(model.classes_ if proba else ()):
        name = f"p_{label}"
        if name in (target, *taken):
            raise ValueError(f"--proba adds a column {name!r}, but the table has a column of this name: rename it")
        predicted[name] = chance[:, index]
    return predicted


@with_settings
class RunOptions:
    """The options of `regard fit` for models with checkpoints."""

    resume: bool = setting("resume the stopped run in MODEL.run", default=False)
    tensorboard: Path | None = setting("folder for TensorBoard logs", default=None)


def run_folder(out: Path) -> Path:
    """Where the checkpoint of a training is while it lasts: NAME.run beside the model folder."""
    out = out.resolve() if out.name in ("", "..") else out
    return out.with_name(f"{out.name}.run")


class TrainedSubject(Subject[Options, None, Inputs]):
    """A subject with one estimator, whose training writes a checkpoint beside the model folder."""

    def train(self, data: Options, settings: dict[str, Any], out: Path, *examples: object, **more: object) -> Any:
        """The estimator, trained on examples. After Ctrl-C the message says where the checkpoint is."""
        run = run_folder(out)
        if data.resume and not (run / CONFIG).exists():
            if (out / CONFIG).exists():
                raise FileExistsError(
                    f"{run} has no checkpoint to resume, and {out} holds a finished model; leave out --resume to train"
                    " a new model in its place"
                )
            warnings.warn(f"{run} has no checkpoint to resume: training starts from the beginning", stacklevel=2)
        more |= {"checkpoint": run, "resume": data.resume, "tensorboard": data.tensorboard}
        try:
            return getattr(estimators, self.estimators[0])(**settings).fit(*examples, **more)
        except KeyboardInterrupt:
            if not (run / CONFIG).exists():
                raise KeyboardInterrupt("no checkpoint was written yet") from None
            raise KeyboardInterrupt(f"the checkpoint is in {run}; resume with the same command and --resume") from None

    def evidence(self, model: Any, inputs: Inputs, top: int) -> Evidence:
        return model.evidence(inputs[0], top=top)  # type: ignore[index, no-any-return]

    def finish(self, out: Path) -> None:
        shutil.rmtree(run_folder(out), ignore_errors=True)


def describe_epoch(history: "History") -> str:
    """Which epoch the weights of a model are from."""
    which = f"mean of the last {history.averaged}" if history.averaged else history.best_epoch + 1
    return f"{which} of {len(history.validation)}"


def describe_bleu(history: "History") -> str:
    """The BLEU by which a model's weights were chosen; its validations are -BLEU."""
    return "unknown" if history.best is None else f"{-history.best:.1f}"


def count_parameters(network: "nn.Module") -> str:
    """The number of parameters of a network."""
    return f"{sum(parameter.numel() for parameter in network.parameters()):,}"


def make(estimator: type, settings: dict[str, Any], advice: str = "") -> Any:
    """An estimator with the settings that were typed; one that only another estimator has raises, with an advice."""
    known = [field.name for field in settings_of(estimator)]
    foreign = [name for name in settings if name not in known]
    if foreign:
        raise ValueError(f"--{foreign[0].replace('_', '-')} is not a setting of {estimator.__name__}{advice}")
    return estimator(**settings)


def say(message: str, quiet: bool = False) -> None:
    """Print a line on stderr."""
    if not quiet:
        Console(stderr=True).print(" ".join(message.split()), soft_wrap=True, markup=False, highlight=False)
