"""The command line: one function a verb. It only talks; what it says is computed elsewhere.

    regard fit houses.csv --target price --out model/
    regard predict model/ new.csv
    regard evidence model/ new.csv --top 5
    regard info model/

    regard fit molecules.csv --bag molecule --target active --out model/       bags: a row for each instance
    regard fit book.txt --kind writer --out model/                             a text, to go on with
    regard write model/ --prompt "Once upon a time"
    regard fit pairs.tsv --kind translator --out model/                        sentences, source TAB target
    regard translate model/ < in.txt > out.txt
    regard fit captions.tsv --images photos/ --kind captioner --out model/     images, to say what is in them
    regard caption model/ photo.jpg --plot looked.png
    regard tour                                                                every system on a small case

Results go to stdout or to a file. Progress, messages and warnings go to stderr, so that stdout can be piped. A mistake
in what was asked, or in the data, is one line on stderr and exit code 1; a traceback is a bug of ours. Ctrl-C is exit
code 130, and a line that says what is left.
"""

import sys
import warnings
from pathlib import Path
from typing import Annotated, Any

from regard import saving
from regard.cli.fitting import fit
from regard.cli.messages import say
from regard.data import tables
from regard.data.sentence_pairs import lines_of
from regard.data.text import decoded
from regard.estimators.bags import command as bags
from regard.estimators.captioning import command as captioner
from regard.estimators.tables import command as rows
from regard.estimators.translation import command as translator
from regard.estimators.writing import command as writer

try:
    import typer
except ImportError:
    raise SystemExit(f"the command line needs typer: {tables.INSTALL}") from None


STOPPED = 130
"""What a shell says of a program that was ended by Ctrl-C."""
SEEDS = 2**31 - 1
"""The largest seed of the tour; NumPy takes none that is negative, scikit-learn none above 2³²."""


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
            except KeyboardInterrupt as stop:
                say(f"stopped: {stop}" if str(stop) else "stopped")
                raise typer.Exit(STOPPED) from None


app = typer.Typer(
    cls=PlainGroup,
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="Attention on your own data: every prediction shows its evidence.",
)


def tell_version(asked: bool) -> None:
    """The version, and no more."""
    if asked:
        from regard import __version__

        typer.echo(f"regard {__version__}")
        raise typer.Exit


@app.callback()
def regard(
    version: Annotated[
        bool, typer.Option("--version", callback=tell_version, is_eager=True, help="Say which version this is.")
    ] = False,
) -> None:
    """Attention on your own data: every prediction shows its evidence."""


Table = Annotated[
    Path,
    typer.Argument(
        help="A table: .csv, .csv.gz, .tsv or .parquet, with a header.",
    ),
]
Asked = Annotated[
    Path,
    typer.Argument(
        help="A table: .csv, .csv.gz, .tsv or .parquet, with a header. For a writer, a text; for a translator,"
        " sentences, one a line; for a captioner, an image."
    ),
]
Folder = Annotated[Path, typer.Argument(help="A model folder, made by regard fit.")]
Out = Annotated[Path | None, typer.Option(help="Write to this file (.csv, .tsv or .parquet) instead of stdout.")]


app.command()(fit)


@app.command()
def write(
    folder: Folder,
    prompt: Annotated[str, typer.Option(help="What to go on from.")],
    length: Annotated[int, typer.Option(help="How many tokens to add.", min=1)] = 200,
    temperature: Annotated[float, typer.Option(help="0: always the likeliest token. Higher: more daring.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw from so many tokens, the likeliest.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw from the fewest tokens that are together so likely.")
    ] = None,
    seed: Annotated[int, typer.Option(help="One seed, one text.")] = 0,
) -> None:
    """Go on with a text, and show it as it is written."""
    model, _, form = opened(folder)
    if form is not writer:
        raise ValueError(f"{folder} holds a {type(model).__name__}, and only a Writer writes: regard predict")
    pieces = model.stream(prompt, length, temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
    typer.echo(prompt, nl=False)
    for piece in pieces:
        typer.echo(piece, nl=False)
        sys.stdout.flush()
    typer.echo()


@app.command()
def translate(
    folder: Folder,
    beam: Annotated[int, typer.Option(help="Hypotheses of each sentence; 1 is quickest.", min=1)] = 5,
    penalty: Annotated[float, typer.Option(help="How much longer translations are favoured.", min=0)] = 1.0,
    alignments: Annotated[
        Path | None, typer.Option(help="Also write what each translation looked at: a line of JSON for each.")
    ] = None,
) -> None:
    """Translate stdin to stdout, line by line."""
    model, _, form = opened(folder)
    if form is not translator:
        raise ValueError(f"{folder} holds a {type(model).__name__}, and only a Translator translates")
    if alignments is not None:
        translator.check_alignments(model, folder, alignments)
    if sys.stdin is None:
        raise ValueError("sentences come on stdin, a line each, and it is closed: regard translate MODEL < in.txt")
    lines = lines_of(decoded(sys.stdin.buffer.read(), "stdin"))
    done = []
    for line in translator.translations(model, lines, beam, penalty):
        typer.echo(line)
        done.append(line)
    if alignments is not None:
        translator.write_alignments(model, lines, done, alignments)
        say(f"{len(done)} alignments → {alignments}")


@app.command()
def caption(
    folder: Folder,
    photos: Annotated[list[Path], typer.Argument(help="Images, or folders of them.")],
    beam: Annotated[int, typer.Option(help="Hypotheses of each caption; 1 is quickest.", min=1)] = 5,
    plot: Annotated[
        Path | None, typer.Option(help="Draw where each word looked; of several photos, their names are added.")
    ] = None,
) -> None:
    """Say what is in images: a line for each, its path and its caption.

    One that cannot be read is an error on stderr; the others are captioned.
    """
    model, _, form = opened(folder)
    if form is not captioner:
        raise ValueError(f"{folder} holds a {type(model).__name__}, and only a Captioner captions")
    wrong: list[str] = []
    found = captioner.photos_in(photos)
    places = {} if plot is None else captioner.plots_of(plot, found)
    for path, image, said in captioner.captions(model, found, beam, wrong.append):
        typer.echo(f"{path}\t{said}")
        if places:
            draw(captioner.picture(model.evidence(image, said), 0), places[path], path.name)
    for message in wrong:
        say(f"error: {message}")
    if wrong:
        raise typer.Exit(1)


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
    """Predict the target of new rows, or of new bags: a line for each."""
    if out is not None:
        tables.check_destination(out)
    model, schema, form = opened(folder)
    asked = form.asked(model, schema, table)
    tables.write_table(form.predictions(model, schema, asked, std, proba, density), out)


@app.command()
def evidence(
    folder: Folder,
    table: Asked,
    top: Annotated[
        int,
        typer.Option(
            help="How many training rows to show for each row, instances a bag, tokens a token, or cells a word.", min=1
        ),
    ] = 5,
    out: Out = None,
    plot: Annotated[
        Path | None, typer.Option(help="Draw the evidence of one row, bag, sentence, text or image to this picture.")
    ] = None,
    row: Annotated[int, typer.Option(help="Which row, bag or sentence to draw, from 1.", min=1)] = 1,
) -> None:
    """Show the training rows behind each prediction, and their weights.

    A line for each new row and training row: query and row are their numbers in their tables, from 1. Of bags: the
    instances behind each prediction, by their rows in the new table, from 1, and the class that each speaks for. Of
    sentences, texts and images: the tokens or cells that each token or word looks at.
    """
    if out is not None:
        tables.check_destination(out)
    model, schema, form = opened(folder)
    asked = form.asked(model, schema, table)
    count = 1 if form is writer else len(asked)
    if plot is not None and row > count:
        what = "there is one text" if form is writer else f"the {form.WHAT} of {table}"
        raise ValueError(f"--row must be between 1 and {count}, {what}, got {row}")
    found = form.evidence(model, asked, top)
    if plot is not None:
        draw(form.picture(found, row - 1), plot, form.called(asked, row - 1))
    tables.write_table(found.to_frame(), out)


@app.command()
def info(folder: Folder) -> None:
    """Tell what a model folder holds."""
    model, schema, form = opened(folder)
    told = form.facts(model, schema)
    wide = max(map(len, told))
    for name, value in told.items():
        typer.echo(f"{name:<{wide}}  {value}")


@app.command()
def tour(
    out: Annotated[Path, typer.Option(help="The folder for the page, its pictures and the models.")] = Path("tour"),
    only: Annotated[
        str, typer.Option(help="Some stations, by name: kernel,bags,seq2seq,captions,layer,transformer.")
    ] = "",
    seed: Annotated[int, typer.Option(min=0, max=SEEDS, help="One seed, one result.")] = 0,
    quick: Annotated[bool, typer.Option("--quick", help="Less data and fewer steps: under a minute.")] = False,
) -> None:
    """See every system work on a small case: a table, and a page with what each looked at."""
    from regard.cli.tour import run

    if not run(out, only, seed, quick):
        raise typer.Exit(1)


def opened(folder: Path) -> tuple[Any, Any, Any]:
    """A model, what it knows of its table, and which kind of data it takes."""
    from regard.estimators import restored

    config, arrays = saving.read(folder)
    model = restored(folder, config, arrays)
    form: Any = next(form for form in (writer, translator, captioner, bags, rows) if form.takes(model))
    return model, form.schema_of(model, config, folder), form


def draw(axes: Any, path: Path, name: str) -> None:
    """A picture of what one prediction looks at, to a file."""
    if not axes.get_title() + axes.get_title(loc="left"):
        axes.set_title(f"what the prediction of {name} looks at", loc="left")
    path = path if path.suffix else path.with_suffix(".png")
    path.parent.mkdir(parents=True, exist_ok=True)
    axes.figure.savefig(path)
    say(f"picture of {name} → {path}")


def main() -> None:
    """What `regard` runs."""
    app(prog_name="regard")
