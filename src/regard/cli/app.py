"""The command line: one function per command. The subjects in `regard.estimators` do the work.

    regard fit table houses.csv --target price --out model/
    regard predict model/ new.csv
    regard evidence model/ new.csv --top 5
    regard info model/
    regard summary model/ --significance

    regard fit bags molecules.csv --bag molecule --target active --out model/      bags: a row for each instance
    regard fit writer book.txt --out model/                                        a text, to continue
    regard write model/ --prompt "Once upon a time"
    regard fit translator pairs.tsv --out model/                                   sentences, source TAB target
    regard translate model/ < in.txt > out.txt
    regard fit captioner captions.tsv --images photos/ --out model/                images and their captions
    regard caption model/ photo.jpg --plot looked.png
    regard tour                                                                    every system on a small case

Results go to stdout or to a file. Progress, messages and warnings go to stderr, so that stdout can be piped. A mistake
of the user, or in the data, is one line on stderr and exit code 1; a traceback is a bug of ours. Ctrl-C is exit
code 130, and a line that says where the checkpoint is.
"""

import warnings
from pathlib import Path
from typing import Annotated, Any

from regard.checks import INSTALL
from regard.data import tables

try:
    import typer
except ImportError:
    raise SystemExit(f"the command line needs typer: {INSTALL}") from None

from regard.cli.fit import AnySubject, FitGroup, subjects
from regard.estimators import restore
from regard.estimators.subject import parse_levels, say
from regard.saving import read_folder

_STOPPED = 130
"""The exit code of a program that was ended by Ctrl-C."""
_LARGEST_SEED = 2**31 - 1
"""NumPy takes no negative seed, scikit-learn none above 2³²."""


class _PlainGroup(typer.core.TyperGroup):
    """Verbs whose warnings, and the user's mistakes, are a line each on stderr."""

    def invoke(self, ctx: Any) -> Any:
        with warnings.catch_warnings():
            warnings.simplefilter("always", UserWarning)
            warnings.showwarning = lambda message, *rest, **more: say(f"warning: {message}")
            try:
                return super().invoke(ctx)
            except BrokenPipeError:
                raise  # the reader closed the pipe, as `| head` does: typer exits quietly
            except (ValueError, OSError, ImportError, FloatingPointError) as error:
                say(f"error: {error}")
                raise typer.Exit(1) from None
            except KeyboardInterrupt as stop:
                say(f"stopped: {stop}" if str(stop) else "stopped")
                raise typer.Exit(_STOPPED) from None


app = typer.Typer(
    cls=_PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Attention on your own data: every prediction shows its evidence.",
)


def _print_version(wanted: bool) -> None:
    if wanted:
        from regard import __version__

        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Attention on your own data: every prediction shows its evidence."""


_Folder = Annotated[Path, typer.Argument(help="A model folder, made by regard fit.")]
_Format = Annotated[str | None, typer.Option(help="Format of the table, whatever its name: csv, tsv, parquet.")]
_Out = Annotated[Path | None, typer.Option(help="Write to this file (.csv, .tsv or .parquet) instead of stdout.")]

fit = typer.Typer(cls=FitGroup, no_args_is_help=True, rich_markup_mode=None)
app.add_typer(fit, name="fit", help="Learn from data and write a model folder.")


for _subject in subjects().values():
    for _verb in _subject.verbs:
        app.command()(_verb)


@app.command()
def predict(  # noqa: PLR0913  # each argument is an option
    folder: _Folder,
    table: Annotated[
        Path,
        typer.Argument(help="A table: .csv, .csv.gz, .tsv or .parquet, with a header; - reads stdin.", allow_dash=True),
    ],
    out: _Out = None,
    std: Annotated[bool, typer.Option("--std", help="Add the standard deviation about each prediction.")] = False,
    proba: Annotated[bool, typer.Option("--proba", help="Add the probability of each class.")] = False,
    density: Annotated[
        bool, typer.Option("--density", help="Add log_density: where it is low, the model has little data.")
    ] = False,
    interval: Annotated[
        float | None, typer.Option(help="Add the ends of intervals that hold this share of new targets, such as 0.9.")
    ] = None,
    quantiles: Annotated[
        str, typer.Option(help="Add quantiles of the target: 0.05,0.5,0.95 (--model nadaraya-watson).")
    ] = "",
    keep: Annotated[str, typer.Option(help="Columns of the table to copy beside the predictions: id,name")] = "",
    format: _Format = None,  # noqa: A002
) -> None:
    """Predict the target of new rows, or of new bags: a line for each.

    If the table has the target too, stderr has R² or the accuracy.
    """
    if out is not None:
        tables.table_suffix(out)
    model, schema, subject = _open_folder(folder)
    columns = frozenset(name for name, wanted in (("std", std), ("proba", proba), ("density", density)) if wanted)
    levels = parse_levels(quantiles)
    with tables.as_file(table, format) as file:
        predicted = subject.predict(model, schema, subject.read_inputs(model, schema, file), columns, interval, levels)
        if hasattr(subject, "compare"):
            predicted = subject.compare(model, schema, file, predicted, keep)
    tables.write_table(predicted, out)


@app.command()
def evidence(
    folder: _Folder,
    data: Annotated[
        Path,
        typer.Argument(
            help="A table with a header; for a writer a text, for a translator sentences, one per line; for a"
            " captioner an image."
        ),
    ],
    top: Annotated[
        int, typer.Option(help="Number of training rows, instances, tokens or image cells to show.", min=1)
    ] = 5,
    out: _Out = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the evidence of one row, bag, sentence, text or image to this picture.")
    ] = None,
    row: Annotated[int, typer.Option(help="Which row, bag or sentence to draw, from 1.", min=1)] = 1,
) -> None:
    """Show the training rows behind each prediction, and their weights.

    A line for each new row and training row: query and row are their numbers in their tables, from 1. Of bags: the
    instances behind each prediction, by their rows in the new table, from 1, and the class that each supports. Of
    sentences, texts and images: the tokens or cells that each token or word looks at.
    """
    if out is not None:
        tables.table_suffix(out)
    model, schema, subject = _open_folder(folder)
    inputs = subject.read_inputs(model, schema, data)
    count = len(inputs)
    if plot is not None and row > count:
        raise ValueError(f"--row must be between 1 and {count}, the number of {subject.inputs} in {data}, got {row}")
    weights = subject.evidence(model, inputs, top)
    if plot is not None:
        subject.save_plot(weights, row - 1, plot, subject.label(inputs, row - 1))
    tables.write_table(weights.to_frame(), out)


@app.command()
def info(folder: _Folder) -> None:
    """Describe the model in a folder."""
    model, schema, subject = _open_folder(folder)
    facts = subject.describe(model, schema)
    width = max(map(len, facts))
    for name, value in facts.items():
        typer.echo(f"{name:<{width}}  {value}")


@app.command()
def summary(
    folder: _Folder,
    significance: Annotated[bool, typer.Option("--significance", help="Test whether each column matters.")] = False,
    samples: Annotated[int, typer.Option(help="Number of bootstrap samples of the tests.", min=1)] = 399,
) -> None:
    """Print the table of a regression as a statistician reads it: degrees of freedom, bandwidths or coefficients."""
    model, _, _ = _open_folder(folder)
    if not hasattr(model, "summary"):
        raise ValueError(f"{type(model).__name__} has no summary, only a kernel regression has; use regard info")
    options = {"significance": significance, "samples": samples} if significance else {}
    typer.echo(model.summary(**options))


@app.command()
def tour(
    out: Annotated[Path, typer.Option(help="The folder for the page, its pictures and the models.")] = Path("tour"),
    only: Annotated[
        str, typer.Option(help="Some stations, by name: kernel,bags,seq2seq,captions,layer,transformer,writer.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, max=_LARGEST_SEED, help="One seed, one result.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Less data and fewer steps: under a minute.")] = False,
) -> None:
    """See every system work on a small case: a table, and a page with what each looked at."""
    from regard.cli.tour import run

    if not run(out, only, seed, quick):
        raise typer.Exit(1)


def _open_folder(folder: Path) -> tuple[Any, Any, AnySubject]:
    """A model, what its folder knows of its data, and its subject."""
    config, arrays = read_folder(folder)
    model = restore(folder, config, arrays)
    subject = next(
        each for each in subjects().values() if type(model).__name__ in (*each.estimators, *each.other_estimators)
    )
    return model, subject.schema(model, config, folder), subject


def main() -> None:
    """Run `regard`."""
    app(prog_name="regard")
