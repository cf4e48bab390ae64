"""Images and their captions on the command line: `regard fit captioner` and `regard caption`."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Annotated, Any, cast

import numpy as np
import typer
from numpy.typing import NDArray

from regard.data.images import SUFFIXES, describe_left_out, read_captions, read_image
from regard.estimators.settings import setting, with_settings
from regard.estimators.subject import (
    Fitted,
    RunOptions,
    TrainedSubject,
    count_parameters,
    describe_bleu,
    describe_epoch,
    run_folder,
    say,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from regard.estimators.captioning.estimator import Captioner
    from regard.estimators.captioning.evidence import CaptionEvidence

IMAGES_PER_BATCH = 64
LETTERS_PER_INCH = 12
"""Letters of a title per inch of a figure's width."""


@with_settings
class CaptionFile(RunOptions):
    """What a captioner learns from."""

    file: Path = setting("a table: image, caption; several lines per image", kw_only=False)
    images: Path = setting("folder of the images")


class Captioning(TrainedSubject[CaptionFile, list[Path]]):
    """Train a captioner on images and their captions, for regard caption."""

    name = "captioner"
    inputs = "images"
    estimators = ("Captioner",)
    data = CaptionFile

    def fit(self, data: CaptionFile, settings: dict[str, Any], out: Path) -> Fitted:
        """Train with a checkpoint, and with the grids of a frozen encoder, beside the model folder."""
        if settings.get("encoder") == "efficientnet-lite0" and "cache" not in settings:
            settings = settings | {"cache": grid_folder(out)}
        table = read_captions(data.file, data.images)
        captioner = self.train(data, settings, out, table.images, table.captions)
        left_out = [f"left out: {kinds}"] if (kinds := describe_left_out(table.left_out)) else []
        counts = f"{len(table.images):,} images with {sum(map(len, table.captions)):,} captions"
        tokens = f"{captioner.tokenizer_.get_vocab_size():,} {captioner.tokens}"
        bleu = describe_bleu(captioner.history_)
        return Fitted(captioner, [*left_out, f"Captioner on {data.file}, {counts}, {tokens}, held-out BLEU-4 {bleu}"])

    def finish(self, out: Path) -> None:
        super().finish(out)
        shutil.rmtree(grid_folder(out), ignore_errors=True)

    def read_inputs(self, model: "Captioner", schema: None, path: Path) -> list[Path]:
        return [path]

    def figure(self, evidence: "CaptionEvidence", index: int, title: str) -> "Figure":
        """The pictures of all words, with one title, on as many lines as needed."""
        figure = cast("Figure", evidence.plot()[0].figure)
        figure.suptitle("\n".join(wrap(title, max(8, int(LETTERS_PER_INCH * figure.get_figwidth())))), fontsize=10)
        return figure

    def label(self, inputs: list[Path], index: int) -> str:
        return inputs[index].name

    def describe(self, model: "Captioner", schema: None) -> dict[str, Any]:
        rows, columns = model.encoder_.shape
        return {
            "model": "Captioner",
            "attention": model.attention,
            "encoder": f"{model.encoder}, images of {model.encoder_.image_size} pixels, a grid of {rows} × {columns}",
            "tokens": f"{model.tokens}, vocabulary of {model.tokenizer_.get_vocab_size()}",
            "decoder": f"{count_parameters(model.decoder_)} parameters",
            "size": model.size,
            "hidden": model.hidden,
            "score_size": model.score_size,
            "epoch": describe_epoch(model.history_),
            "held-out BLEU-4": describe_bleu(model.history_),
        }


def grid_folder(out: Path) -> Path:
    """Where the grids of a frozen encoder are cached during a training: a hidden folder beside that of the run."""
    run = run_folder(out)
    return run.with_name(f".{run.name}.grids")


def caption(
    folder: Annotated[Path, typer.Argument(help="A model folder, made by regard fit captioner.")],
    photos: Annotated[list[Path], typer.Argument(help="Images, or folders of images.")],
    beam: Annotated[int, typer.Option(help="Hypotheses per caption; 1 is fastest.", min=1)] = 5,
    plot: Annotated[
        Path | None, typer.Option(help="Draw where each word looked; for several photos, their names are added.")
    ] = None,
) -> None:
    """Caption images: a line for each, its path and its caption.

    An image that cannot be read is an error on stderr; the others are captioned.
    """
    model = SUBJECT.open_folder(folder, "caption")
    errors: list[str] = []
    paths = find_images(photos)
    plots = {} if plot is None else plot_paths(plot, paths)
    for path, pixels, text in caption_images(model, paths, beam, errors.append):
        typer.echo(f"{path}\t{text}")
        if plots:
            SUBJECT.save_plot(model.evidence(pixels, text), 0, plots[path], path.name)
    for error in errors:
        say(f"error: {error}")
    if errors:
        raise typer.Exit(1)


def find_images(paths: Sequence[Path]) -> list[Path]:
    """Images, and those in folders, in the order of their names."""
    images: list[Path] = []
    for path in paths:
        files = sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        if not files:
            raise ValueError(f"{path} must have an image in it, got none: {', '.join(sorted(SUFFIXES))}")
        images += files
    return images


def plot_paths(plot: Path, images: Sequence[Path]) -> dict[Path, Path]:
    """The path of each image's plot: of several images their names are added, of equal names also their folders.

    >>> paths = plot_paths(Path("o.png"), [Path("a/x.jpg"), Path("b/x.jpg"), Path("y.png")])
    >>> [path.name for path in paths.values()]
    ['o-a-x.jpg.png', 'o-b-x.jpg.png', 'o-y.png']
    """
    if len(images) == 1:
        return {images[0]: plot}
    counts = Counter(path.stem for path in images)
    names = {path: path.stem if counts[path.stem] == 1 else "-".join(path.parts).strip("/-") for path in images}
    return {path: plot.with_name(f"{plot.stem}-{name}{plot.suffix}") for path, name in names.items()}


def caption_images(
    model: "Captioner", paths: Sequence[Path], beam: int, report: Callable[[str], None]
) -> Iterator[tuple[Path, NDArray[np.uint8], str]]:
    """Path, pixels [size, size, 3] and caption of each image; the error of one that cannot be read is reported."""
    for start in range(0, len(paths), IMAGES_PER_BATCH):
        images: dict[Path, NDArray[np.uint8]] = {}
        for path in paths[start : start + IMAGES_PER_BATCH]:
            try:
                images[path] = read_image(path, model.encoder_.image_size)
            except (OSError, ValueError) as error:
                report(str(error))
        if images:
            yield from zip(images, images.values(), model.caption(list(images.values()), beam), strict=True)


Captioning.verbs = (caption,)
SUBJECT = Captioning()
