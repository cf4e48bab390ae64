"""`regard fit captioner`, `caption`, `evidence` and `info`."""

import shutil
from types import SimpleNamespace

import matplotlib as mpl
import pandas as pd
import pytest
from helpers.talking import refused, run

import regard
from regard.data.samples import scenes
from regard.estimators.captioning.command import SUBJECT, grid_folder
from regard.plots import new_axes

FIT = (
    "fit", "captioner", "captions.tsv", "--images", "photos", "--out", "model", "--size", 8, "--hidden", 16,
    "--score-size", 8, "--epochs", 10, "--least", 1, "--batch-size", 16, "--image-size", 32, "--learning-rate", 0.03,
    "--warm", 1, "--longest", 13, "--dropout", 0,
)  # fmt: skip
FIRST, SECOND = "photos/03.png", "photos/07.png"


@pytest.fixture(scope="session")
def fitted(tmp_path_factory):
    """A folder with photos, their captions and a captioner of them; and what `regard fit` printed."""
    image = pytest.importorskip("PIL.Image")
    mpl.use("Agg")
    folder = tmp_path_factory.mktemp("captioner")
    few = scenes(20, seed=1)
    (folder / "photos").mkdir()
    lines = ["image\tcaption"]
    for number, (pixels, caption) in enumerate(zip(few.images, few.captions, strict=True)):
        image.fromarray(pixels).save(folder / "photos" / f"{number:02}.png")
        lines += [f"{number:02}.png\t{caption}", f"{number:02}.png\tthere is {caption}"]
    (folder / "captions.tsv").write_text("\n".join([*lines, "99.png\ta lost caption"]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        return folder, run(*FIT)


@pytest.fixture(autouse=True)
def folder(fitted, tmp_path, monkeypatch):
    """A copy of that folder, to work in."""
    shutil.copytree(fitted[0], tmp_path, dirs_exist_ok=True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_fit_writes_a_model_and_says_what_it_did(fitted, folder):
    printed = fitted[1]
    assert printed.stdout == ""
    assert "left out: 1 captions without their image ('99.png')" in printed.stderr
    assert "Captioner on captions.tsv, 20 images with 40 captions, " in printed.stderr
    assert printed.stderr.endswith(" → model\n")
    assert not (folder / "model.run").exists()


def test_caption_writes_a_line_and_a_picture_for_each_photo(folder):
    model = regard.load("model")
    assert run("caption", "model", FIRST, SECOND).stdout == "".join(
        f"{path}\t{caption}\n" for path, caption in zip((FIRST, SECOND), model.caption([FIRST, SECOND]), strict=True)
    )
    assert run("caption", "model", "photos", "--beam", 1).stdout.count("\n") == 20
    run("caption", "model", FIRST, "--plot", "one.png")
    assert (folder / "one.png").stat().st_size > 1000
    run("caption", "model", FIRST, SECOND, "--plot", "out/many.png")
    assert {file.name for file in (folder / "out").iterdir()} == {"many-03.png", "many-07.png"}


def test_evidence_and_info(folder):
    run("evidence", "model", FIRST, "--top", 2, "--out", "e.csv", "--plot", "e.png")
    frame = pd.read_csv("e.csv")
    assert frame["rank"].max() == 2
    assert (folder / "e.png").stat().st_size > 1000
    facts = run("info", "model").stdout
    assert "images of 32 pixels, a grid of 4 × 4" in facts
    assert "soft" in facts


def test_errors_are_one_line_each(folder):
    (folder / "photos" / "half.png").write_bytes((folder / "photos" / "00.png").read_bytes()[:99])
    result = run("caption", "model", "photos/gone.png", "photos/half.png", "photos/01.png", code=1)
    assert result.stdout.startswith("photos/01.png\t")
    assert result.stdout.count("\n") == 1
    assert "error: there is no image photos/gone.png" in result.stderr
    assert "error: photos/half.png is " in result.stderr
    assert "Captioner has no predictions of a table; use regard caption" in refused("predict", "model", FIRST)
    assert "regard write needs a Writer, got a Captioner" in refused("write", "model", "--prompt", "a")
    (folder / "empty").mkdir()
    assert "empty must have an image in it, got none" in refused("caption", "model", "empty")


def test_a_users_own_cache_folder_is_not_removed_with_the_run(tmp_path):
    own, made = tmp_path / "model.features", grid_folder(tmp_path / "model")
    for folder in (own, made):
        folder.mkdir()
        (folder / "precious.npy").write_bytes(b"mine")
    SUBJECT.finish(tmp_path / "model")
    assert (own / "precious.npy").exists()
    assert not made.exists()


@pytest.mark.slow
def test_photos_with_equal_names_have_different_pictures(folder):
    (folder / "photos" / "more").mkdir()
    (folder / "photos" / "more" / "03.png").write_bytes((folder / "photos" / "07.png").read_bytes())
    run("caption", "model", FIRST, "photos/more/03.png", "photos/05.png", "--plot", "o/x.png", "--beam", 1)
    assert sorted(path.name for path in (folder / "o").iterdir()) == [
        "x-05.png",
        "x-photos-03.png.png",
        "x-photos-more-03.png.png",
    ]
    printed = run("caption", "model", "photos/05.png", "--plot", "o/plain", "--beam", 1).stderr
    assert "→ o/plain.png" in printed
    assert (folder / "o" / "plain.png").exists()


def test_one_title_for_several_pictures_is_wrapped(tmp_path):
    axes = new_axes(1.5, 2)
    SUBJECT.save_plot(SimpleNamespace(plot=lambda: [axes]), 0, tmp_path / "o.png", "a photo of some length.png")
    title = axes.figure.get_suptitle()
    assert max(map(len, title.split("\n"))) <= 18
    assert title.replace("\n", " ") == "evidence for the prediction of a photo of some length.png"


def test_fit_needs_a_folder_of_images():
    without = [word for word in FIT if word not in ("--images", "photos")]
    assert "--images" in run(*without, code=2).stderr
    assert "nowhere is not a folder" in refused(*[word if word != "photos" else "nowhere" for word in FIT])
    assert "regard fit captioner has no option --target" in refused(*FIT, "--target", "x")
    message = refused("fit", "writer", "captions.tsv", "--images", "photos", "--out", "model")
    assert "regard fit writer has no option --images; it is an option of regard fit captioner" in message
