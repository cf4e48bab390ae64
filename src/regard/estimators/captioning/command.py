"""What the command line does with images and their captions: a `Captioner` that learns from them, and writes them."""

import shutil
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from textwrap import wrap
from typing import TYPE_CHECKING, Any

from regard.data.images import SUFFIXES, read_captions, read_image
from regard.estimators.pictures import drawn
from regard.estimators.runs import bleu_of, epoch_of, kept_run
from regard.estimators.runs import written as run_written
from regard.estimators.typed_settings import settings_in

if TYPE_CHECKING:
    from pandas import DataFrame

WHAT = "images and captions"
OPTIONS = ("set", "resume", "board", "images")
OURS = "made-by-regard-fit"
"""The file that says that a folder of features may go with its run."""
AT_ONCE = 64
"""Photos that are captioned together."""


def learn(path: Path, given: dict[str, Any]) -> tuple[Any, dict[str, Any], list[str]]:
    """A model of images and captions, nothing more to be written with it, and what there is to say.

    The run is kept beside the model folder, in NAME.run, until it is over; so is what a frozen encoder saw.
    """
    from regard.estimators import Captioner

    if given["images"] is None:
        raise ValueError("--images says the folder that the captions' images are in, and is missing")
    settings = settings_in(Captioner, given)
    if settings.get("encoder") == "efficientnet-lite0" and "cache" not in settings:
        settings["cache"] = own_cache(given["out"])
    found = read_captions(path, given["images"])
    captioner = Captioner(**settings)
    with kept_run(given["out"], given["resume"]) as run:
        captioner.fit(found.images, found.captions, checkpoint=run, resume=given["resume"], board=given["board"])
    words = captioner.tokenizer_.get_vocab_size()
    said = [f"left out: {found.left_out}"] if str(found.left_out) else []
    count = sum(map(len, found.captions))
    told = f"Captioner on {path}, {len(found.images):,} images with {count:,} captions, {words:,} {captioner.tokens}"
    return captioner, {}, [*said, f"{told}, held-out BLEU-4 {bleu_of(captioner)}"]


def features_of(out: Path) -> Path:
    """Where what a frozen encoder saw is kept while the run lasts."""
    return out.with_name(f"{out.name}.features")


def own_cache(out: Path) -> Path:
    """That folder; one that was not there before is marked as the run's own."""
    folder = features_of(out)
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / OURS).touch()
    return folder


def written(out: Path) -> None:
    """The model is in its folder: the run is no longer needed, nor is what it made beside it."""
    run_written(out)
    if (features_of(out) / OURS).exists():
        shutil.rmtree(features_of(out), ignore_errors=True)


def takes(model: Any) -> bool:
    """Whether a model is a `Captioner`."""
    return hasattr(model, "caption")


def schema_of(model: Any, config: dict[str, Any], folder: Path) -> None:
    """An image has no columns."""


def asked(model: Any, schema: None, path: Path) -> list[Path]:
    """An image to look at."""
    return [path]


def evidence(model: Any, asked: list[Path], top: int) -> Any:
    """Where each word of its caption looked."""
    return model.evidence(asked[0], top=top)


LETTERS = 12
"""Letters of a title that an inch has room for."""


class Strip:
    """Pictures that have one title together."""

    def __init__(self, axes: Any) -> None:
        self.figure = axes[0].figure

    def get_title(self, loc: str = "center") -> str:
        """They have one each."""
        return ""

    def set_title(self, title: str, loc: str = "center") -> None:
        """Over all of them, on so many lines as it takes."""
        self.figure.suptitle("\n".join(wrap(title, max(8, int(LETTERS * self.figure.get_figwidth())))), fontsize=10)


def picture(found: Any, place: int) -> Strip:
    """The strip of overlays."""
    return Strip(drawn(found.plot))


def called(asked: list[Path], place: int) -> str:
    """An image as a message calls it."""
    return asked[place].name


def predictions(model: Any, *_: Any) -> "DataFrame":
    """There are none."""
    raise ValueError("a Captioner writes captions instead of predicting: regard caption MODEL PHOTO …")


def photos_in(paths: Sequence[Path]) -> list[Path]:
    """Photos, and those of folders, in the order of their names."""
    found: list[Path] = []
    for path in paths:
        inside = (
            sorted(file for file in path.rglob("*") if file.suffix.lower() in SUFFIXES) if path.is_dir() else [path]
        )
        if not inside:
            raise ValueError(f"{path} has no image in it: {', '.join(sorted(SUFFIXES))}")
        found += inside
    return found


def plots_of(plot: Path, photos: Sequence[Path]) -> dict[Path, Path]:
    """Where the picture of each photo goes: several have their names added, and their folders where names are alike.

    >>> found = plots_of(Path("o.png"), [Path("a/x.jpg"), Path("b/x.jpg"), Path("y.png")])
    >>> [place.name for place in found.values()]
    ['o-a-x.jpg.png', 'o-b-x.jpg.png', 'o-y.png']
    """
    if len(photos) == 1:
        return {photos[0]: plot}
    often = Counter(path.stem for path in photos)
    names = {path: path.stem if often[path.stem] == 1 else "-".join(path.parts).strip("/-") for path in photos}
    return {path: plot.with_name(f"{plot.stem}-{name}{plot.suffix}") for path, name in names.items()}


def captions(
    model: Any, photos: Sequence[Path], beam: int, wrong: Callable[[str], None]
) -> Iterator[tuple[Path, Any, str]]:
    """Each photo, what the model saw of it, and its caption; of one that cannot be read, the error is told instead."""
    for start in range(0, len(photos), AT_ONCE):
        read: list[tuple[Path, Any]] = []
        for path in photos[start : start + AT_ONCE]:
            try:
                read.append((path, read_image(path, model.encoder_.image_size)))
            except (OSError, ValueError) as error:
                wrong(str(error))
        if read:
            said = model.caption([image for _, image in read], beam)
            yield from ((path, image, caption) for (path, image), caption in zip(read, said, strict=True))


def facts(model: Any, schema: None) -> dict[str, Any]:
    """What there is to tell of a `Captioner`, by name."""
    settings = model.get_params(deep=False)
    count = sum(parameter.numel() for parameter in model.decoder_.parameters())
    rows, columns = model.encoder_.shape
    told = {
        "model": "Captioner",
        "attention": settings["attention"],
        "encoder": f"{settings['encoder']}, images of {model.encoder_.image_size} pixels, a grid of {rows} × {columns}",
        "tokens": f"{settings['tokens']}, {model.tokenizer_.get_vocab_size()} of them",
        "decoder": f"{count:,} parameters",
    }
    told |= {name: settings[name] for name in ("size", "hidden", "score_size")}
    return told | {"epoch": epoch_of(model), "held-out BLEU-4": bleu_of(model)}
