"""`regard fit`: from a file to a model folder, whatever kind of data the file holds."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from regard import saving
from regard.cli.messages import say
from regard.data import tables
from regard.estimators.bags import command as bags
from regard.estimators.captioning import command as captioner
from regard.estimators.tables import command as rows
from regard.estimators.translation import command as translator
from regard.estimators.typed_settings import leads
from regard.estimators.writing import command as writer

try:
    import typer
except ImportError:
    raise SystemExit(f"the command line needs typer: {tables.INSTALL}") from None


class Kind(StrEnum):
    """What is learned: to predict a number or one of some classes, to write, to translate, or to caption."""

    auto = "auto"
    regression = "regression"
    classification = "classification"
    writer = "writer"
    translator = "translator"
    captioner = "captioner"


FORMS: dict[Kind, Any] = {Kind.writer: writer, Kind.translator: translator, Kind.captioner: captioner}
"""What is not a table with a target."""

ALWAYS = ("table", "out", "kind", "seed", "quiet")
"""Options of `fit` that always mean something; what else does, each kind of data says itself."""


def fit(
    ctx: typer.Context,
    out: Annotated[Path, typer.Option(help="The model folder to write; a model that is there is replaced.")],
    table: Annotated[
        Path | None,
        typer.Argument(
            help="A table with a header (.csv, .csv.gz, .tsv, .parquet); a text; source TAB target; image TAB caption."
        ),
    ] = None,
    target: Annotated[
        str | None, typer.Option(help="The column to predict. Translator: the file of translations, line by line.")
    ] = None,
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
    drop: Annotated[str, typer.Option(help="Columns to leave out, such as names of rows: a,b.")] = "",
    kind: Annotated[
        Kind,
        typer.Option(
            help="auto: classification if the target is not a number. writer: learn to go on with a text. translator:"
            " learn from sentences and their translations. captioner: learn to say what is in an image."
        ),
    ] = Kind.auto,
    weight: Annotated[str | None, typer.Option(help="A column that says how much each row counts.")] = None,
    impute: Annotated[
        bool,
        typer.Option("--impute", help="Fill missing cells in, here and in predict, with medians and commonest values."),
    ] = False,
    bag: Annotated[
        str | None, typer.Option(help="The column that says which bag a row is in: one prediction a bag of rows.")
    ] = None,
    attention: Annotated[
        str, typer.Option(help="Bags: softmax, gated, mean, max, or linear (regression).")
    ] = "softmax",
    hidden_size: Annotated[
        int | None, typer.Option(help="Bags: an embedding of this size, such as 64; none if it is not given.")
    ] = None,
    heads: Annotated[int, typer.Option(help="Bags: attentions side by side.")] = 1,
    epochs: Annotated[
        int | None, typer.Option(help="Bags: passes over the table; if not given 300, or 100 with a --hidden-size.")
    ] = None,
    batch_size: Annotated[int | None, typer.Option(help="Bags: how many a step; all if it is not given.")] = None,
    early_stopping: Annotated[
        bool, typer.Option("--early-stopping", help="Bags: hold out a tenth, and keep the epoch that is best on it.")
    ] = False,
    balanced: Annotated[bool, typer.Option("--balanced", help="Bags: every class counts the same.")] = False,
    set: Annotated[  # noqa: A002
        list[str] | None,
        typer.Option(help="Writer, translator, captioner: a setting, NAME=VALUE, such as size=256; several times."),
    ] = None,
    resume: Annotated[
        bool,
        typer.Option(
            "--resume",
            help="Writer, translator, captioner: go on with a run that was stopped, kept beside the model folder.",
        ),
    ] = False,
    board: Annotated[Path | None, typer.Option(help="Writer, translator, captioner: a folder for TensorBoard.")] = None,
    images: Annotated[Path | None, typer.Option(help="Captioner: the folder that the images are in.")] = None,
    source: Annotated[
        Path | None, typer.Option(help="Translator: the file of sentences, whose translations are --target.")
    ] = None,
    validation: Annotated[
        tuple[Path, Path] | None,
        typer.Option(help="Translator: two files, sources and targets, that the best epoch is chosen by."),
    ] = None,
    seed: Annotated[int, typer.Option(help="One seed, one result.")] = 0,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress and no messages.")] = False,
) -> None:
    """Learn from a table or a text, and write a model folder.

    With --bag, rows are instances, and a prediction is of a bag.
    """
    saving.check_place(out)
    form = FORMS.get(kind, rows if bag is None else bags)
    refuse(ctx, form)
    if table is None and form is not translator:
        raise ValueError(f"there is no file to learn from ({form.WHAT}): regard fit FILE --out MODEL")
    if target is None and kind not in FORMS:
        raise ValueError(
            "--target says the column to predict, and is missing; a text is learned by --kind writer, sentences and"
            " their translations by --kind translator, captions by --kind captioner"
        )
    model, more, said = form.learn(table, ctx.params)
    if not leads():
        return
    config, *rest = model.state()
    saving.write(out, {**config, **more}, *rest)
    form.written(out)
    for line in [*said[:-1], f"{said[-1]} → {out}"]:
        say(line, quiet)


def refuse(ctx: typer.Context, form: Any) -> None:
    """Options that were given, and that mean nothing for this kind of data, or beside another option, are a mistake."""
    sources = {name: ctx.get_parameter_source(name) for name in ctx.params}
    given = [name for name, source in sources.items() if source is not None and source.name == "COMMANDLINE"]
    idle: dict[tuple[str, str], tuple[str, ...]] = getattr(form, "IDLE", {})
    for name in given:
        if name not in (*ALWAYS, *form.OPTIONS):
            raise ValueError(f"{typed(name)} means nothing for {form.WHAT}")
        for (other, value), without in idle.items():
            if name in without and ctx.params[other] == value:
                raise ValueError(f"{typed(name)} means nothing with {typed(other)} {value}")


def typed(name: str) -> str:
    """An option as it is typed."""
    return f"--{name.replace('_', '-')}"
