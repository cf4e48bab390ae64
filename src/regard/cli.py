"""The command line: one function a verb. It only talks; what it says is computed elsewhere.

    regard fit houses.csv --target price --out model/
    regard predict model/ new.csv
    regard evidence model/ new.csv --top 5
    regard info model/

Results go to stdout or to a file. Progress, messages and warnings go to stderr, so that stdout can be piped. A mistake
in what was asked, or in the data, is one line on stderr and exit code 1; a traceback is a bug of ours.
"""

import warnings
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.console import Console

from regard import saving
from regard.data import roles, tables
from regard.data import schema as schemas

try:
    import typer
except ImportError:
    raise SystemExit(f"the command line needs typer: {tables.INSTALL}") from None

if TYPE_CHECKING:
    from pandas import DataFrame, Series


class PlainGroup(typer.core.TyperGroup):
    """Verbs whose warnings, and the user's mistakes, are a line each on stderr."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *rest, **more: say(f"warning: {message}")
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                raise  # the reader has seen enough, as with `| head`: typer leaves quietly
            except (ValueError, OSError, ImportError, FloatingPointError) as error:
                say(f"error: {error}")
                raise typer.Exit(1) from None


app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Attention on your own data: every prediction shows its evidence.",
)


class Kind(StrEnum):
    """What is predicted: a number, or one of some classes."""

    auto = "auto"
    regression = "regression"
    classification = "classification"


Table = Annotated[Path, typer.Argument(help="A table: .csv, .csv.gz, .tsv or .parquet, with a header.")]
Folder = Annotated[Path, typer.Argument(help="A model folder, made by regard fit.")]
Out = Annotated[Path | None, typer.Option(help="Write to this file (.csv, .tsv or .parquet) instead of stdout.")]


@app.command()
def fit(
    table: Table,
    target: Annotated[str, typer.Option(help="The column to predict.")],
    out: Annotated[Path, typer.Option(help="The model folder to write; a model that is there is replaced.")],
    kernel: Annotated[
        str, typer.Option(help="gaussian, laplace, epanechnikov, boxcar, tricube, or constant.")
    ] = "gaussian",
    bandwidth: Annotated[
        str,
        typer.Option(help="A number, numbers for each column (0.5,1,2), scott, silverman, cv, aicc, or learn."),
    ] = "scott",
    metric: Annotated[
        str, typer.Option(help="What is searched or learned: scalar, diagonal (a number a column), full (a matrix).")
    ] = "scalar",
    order: Annotated[int, typer.Option(help="0: local averages. 1: local lines. Regression only.")] = 0,
    scale: Annotated[str, typer.Option(help="Units of the numeric columns: none, standard, or rank.")] = "none",
    categorical: Annotated[
        str, typer.Option(help="Columns of numbers that are categories: a,b. Text is categorical anyway.")
    ] = "",
    ordered: Annotated[
        str, typer.Option(help="Columns whose categories have an order: grade, or size=S:M:L to give it.")
    ] = "",
    kind: Annotated[Kind, typer.Option(help="auto: classification if the target is not a number.")] = Kind.auto,
    weight: Annotated[str | None, typer.Option(help="A column that says how much each row counts.")] = None,
    impute: Annotated[
        bool,
        typer.Option("--impute", help="Fill missing cells in, here and in predict, with medians and commonest values."),
    ] = False,
    seed: Annotated[int, typer.Option(help="One seed, one result.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no messages.")] = False,
) -> None:
    """Learn from a table, and write a model folder."""
    saving.check_place(out)
    frame = tables.read_table(table)
    value = roles.target_of(frame, target, kind.value)
    count = None if weight is None else roles.weight_of(frame, weight)
    rows = roles.features_of(frame, [target, weight or target], names_in(categorical), orders_in(ordered))
    for name in orders_in(ordered):
        say(f"order of {name}: {' < '.join(map(str, rows[name].cat.categories))}", quiet)
    rows, fill = tables.impute(rows) if impute else (rows, None)
    tables.check_complete(rows)
    settings = {
        "bandwidth": bandwidth_in(bandwidth),
        "kernel": kernel,
        "metric": metric,
        "scale": None if scale == "none" else scale,
        "random_state": seed,
        "verbose": not quiet,
    }
    model = model_for(value, order, settings).fit(rows, value, sample_weight=count)
    config, arrays = model.state()
    saving.write(out, {**config, "table": schemas.as_json(schema_of(model, fill))}, arrays)
    say(f"{type(model).__name__} on {counted(rows, 'row')} and {counted(rows.columns, 'column')} → {out}", quiet)


@app.command()
def predict(
    folder: Folder,
    table: Table,
    out: Out = None,
    std: Annotated[bool, typer.Option("--std", help="Add the standard deviation about each prediction.")] = False,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    density: Annotated[
        bool, typer.Option("--density", help="Add log_density: where it is low, the model is guessing.")
    ] = False,
) -> None:
    """Predict the target of new rows."""
    if out is not None:
        tables.check_destination(out)
    model, schema = opened(folder)
    rows = asked(model, schema, table)
    tables.write_table(predictions(model, rows, std, proba, density), out)


@app.command()
def evidence(
    folder: Folder,
    table: Table,
    top: Annotated[int, typer.Option(help="How many training rows to show for each new row.", min=1)] = 5,
    out: Out = None,
    plot: Annotated[Path | None, typer.Option(help="Draw the evidence of one row to this picture.")] = None,
    row: Annotated[int, typer.Option(help="Which row of the table to draw, from 1.", min=1)] = 1,
) -> None:
    """Show the training rows behind each prediction, and their weights.

    A line for each new row and training row: query and row are their numbers in their tables, from 1.
    """
    if out is not None:
        tables.check_destination(out)
    model, schema = opened(folder)
    rows = asked(model, schema, table)
    if plot is not None and row > len(rows):
        raise ValueError(f"--row must be between 1 and {len(rows)}, the rows of {table}, got {row}")
    found = model.evidence(rows, top=top)
    if plot is not None:
        draw(found, plot, row)
    tables.write_table(found.to_frame(), out)


@app.command()
def info(folder: Folder) -> None:
    """Tell what a model folder holds."""
    model, schema = opened(folder)
    told = facts(model, schema)
    wide = max(map(len, told))
    for name, value in told.items():
        typer.echo(f"{name:<{wide}}  {value}")


def model_for(value: "Series", order: int, settings: dict[str, Any]) -> Any:
    """A regressor for a target of floats, a classifier for the rest."""
    from regard.estimators import NadarayaWatson, NadarayaWatsonClassifier

    if value.dtype == float:
        return NadarayaWatson(order=order, **settings)  # type: ignore[arg-type]  # fit refuses an order it has not
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


def names_in(text: str) -> list[str]:
    """Names of columns as typed: a,b."""
    return [name.strip() for name in text.split(",") if name.strip()]


def orders_in(text: str) -> dict[str, list[str] | None]:
    """Ordered columns as typed: grade,size=S:M:L."""
    parts = [name.partition("=") for name in names_in(text)]
    return {name: [value.strip() for value in order.split(":")] if mark else None for name, mark, order in parts}


def opened(folder: Path) -> tuple[Any, schemas.Schema]:
    """A model, and what it knows of its table."""
    from regard.estimators import restored

    config, arrays = saving.read(folder)
    model = restored(folder, config, arrays)
    table = config.get("table")  # a model that was saved from Python has none
    return model, schema_of(model, None) if table is None else schemas.from_json(table, folder)


def schema_of(model: Any, fill: dict[str, Any] | None) -> schemas.Schema:
    """What a model knows of its table by itself."""
    columns = model.columns_
    categories = {columns.names[place]: category.values for place, category in columns.categories.items()}
    return schemas.Schema(model.targets_[0], schemas.kinds_of(columns.names, categories), fill)


def asked(model: Any, schema: schemas.Schema, table: Path) -> Any:
    """New rows as the model takes them: by name, or by place if it was fitted on columns without names."""
    frame = tables.read_table(table, text=schema.text)
    if hasattr(model, "feature_names_in_"):
        return schema.rows(frame)
    if len(frame.columns) != len(schema.kinds):
        raise ValueError(
            f"the model was fitted on {len(schema.kinds)} columns without names, {table} has {len(frame.columns)}:"
            " give those, in their order"
        )
    return schema.rows(frame.set_axis(list(schema.kinds), axis=1)).to_numpy()


def predictions(model: Any, rows: Any, std: bool, proba: bool, density: bool) -> "DataFrame":
    """A column for the target, and for what else was asked."""
    pd = tables.pandas()
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


def draw(found: Any, path: Path, row: int) -> None:
    """The evidence of one row as a picture."""
    try:
        axes = found.plot(query=row - 1)
    except ImportError:
        raise ImportError(f"pictures need matplotlib: {tables.INSTALL}") from None
    axes.set_title(f"what the prediction of row {row} looks at")
    path.parent.mkdir(parents=True, exist_ok=True)
    axes.figure.savefig(path)
    say(f"picture of row {row} → {path}")


def facts(model: Any, schema: schemas.Schema) -> dict[str, Any]:
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


def counted(things: Any, name: str) -> str:
    """How many there are, in words."""
    return f"{len(things):,} {name}" + ("" if len(things) == 1 else "s")


def say(message: str, quiet: bool = False) -> None:
    """A line on stderr."""
    if not quiet:
        Console(stderr=True).print(" ".join(message.split()), soft_wrap=True, markup=False, highlight=False)


def main() -> None:
    """What `regard` runs."""
    app(prog_name="regard")


if __name__ == "__main__":
    main()
