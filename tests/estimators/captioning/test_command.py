"""`regard fit --kind captioner`, `caption`, `evidence` and `info`, as they are typed."""

import pandas as pd
import pytest
from typer.testing import CliRunner

import regard
from regard.cli import app
from regard.data.samples import scenes
from regard.estimators.captioning import command as captioner

SMALL = [
    f"--set={setting}"
    for setting in (
        "size=8",
        "hidden=16",
        "score_size=8",
        "epochs=4",
        "least=1",
        "batch_size=16",
        "image_size=32",
        "learning_rate=0.03",
        "warm=1",
    )
]
FIT = ("fit", "captions.tsv", "--kind", "captioner", "--images", "photos", "--out", "model", *SMALL)


def run(*words, code=0):
    found = CliRunner().invoke(app, list(map(str, words)), prog_name="regard")
    assert found.exit_code == code, found.stderr
    return found


def refused(*words):
    return run(*words, code=1).stderr


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    image = pytest.importorskip("PIL.Image")
    monkeypatch.chdir(tmp_path)
    drawn = scenes(20, seed=1)
    (tmp_path / "photos").mkdir()
    lines = ["image\tcaption"]
    for number, (pixels, caption) in enumerate(zip(drawn.images, drawn.captions, strict=True)):
        image.fromarray(pixels).save(tmp_path / "photos" / f"{number:02}.png")
        lines += [f"{number:02}.png\t{caption}", f"{number:02}.png\tthere is {caption}"]
    (tmp_path / "captions.tsv").write_text("\n".join([*lines, "99.png\ta lost caption"]) + "\n")


def test_fit_caption_evidence_and_info(tmp_path):
    said = run(*FIT)
    assert said.stdout == ""
    assert "left out: 1 captions without their image ('99.png')" in said.stderr
    assert "Captioner on captions.tsv, 20 images with 40 captions, " in said.stderr
    assert said.stderr.endswith(" → model\n")
    assert not (tmp_path / "model.run").exists()
    model = regard.load("model")
    first, second = "photos/03.png", "photos/07.png"
    assert run("caption", "model", first, second).stdout == "".join(
        f"{path}\t{caption}\n" for path, caption in zip((first, second), model.caption([first, second]), strict=True)
    )
    assert run("caption", "model", "photos", "--beam", 1).stdout.count("\n") == 20
    run("caption", "model", first, "--plot", "one.png")
    assert (tmp_path / "one.png").stat().st_size > 1000
    run("caption", "model", first, second, "--plot", "out/many.png")
    assert {file.name for file in (tmp_path / "out").iterdir()} == {"many-03.png", "many-07.png"}
    run("evidence", "model", first, "--top", 2, "--out", "e.csv", "--plot", "e.png")
    frame = pd.read_csv("e.csv")
    assert frame["rank"].max() == 2
    assert (tmp_path / "e.png").stat().st_size > 1000
    told = run("info", "model").stdout
    assert "images of 32 pixels, a grid of 4 × 4" in told
    assert "soft" in told


def test_mistakes_are_a_line_each(tmp_path):
    run(*FIT, "--quiet")
    (tmp_path / "photos" / "half.png").write_bytes((tmp_path / "photos" / "00.png").read_bytes()[:99])
    found = run("caption", "model", "photos/gone.png", "photos/half.png", "photos/01.png", code=1)
    assert found.stdout.startswith("photos/01.png\t")
    assert found.stdout.count("\n") == 1
    assert "error: there is no image photos/gone.png" in found.stderr
    assert "error: photos/half.png is " in found.stderr
    assert "a Captioner writes captions instead of predicting" in refused("predict", "model", "photos/01.png")
    assert "holds a Captioner, and only a Writer writes" in refused("write", "model", "--prompt", "a")
    (tmp_path / "empty").mkdir()
    assert "empty has no image in it" in refused("caption", "model", "empty")


def test_only_a_folder_that_fit_made_goes_with_its_run(tmp_path):
    mine = tmp_path / "model.features"
    mine.mkdir()
    (mine / "precious.npy").write_bytes(b"mine")
    assert captioner.own_cache(tmp_path / "model") == mine
    captioner.written(tmp_path / "model")
    assert (mine / "precious.npy").exists()
    made = captioner.own_cache(tmp_path / "other")
    assert captioner.own_cache(tmp_path / "other") == made == tmp_path / "other.features"
    assert made.is_dir()
    captioner.written(tmp_path / "other")
    assert not made.exists()


def test_photos_of_one_name_have_pictures_of_their_own(tmp_path):
    run(*FIT)
    (tmp_path / "photos" / "more").mkdir()
    (tmp_path / "photos" / "more" / "03.png").write_bytes((tmp_path / "photos" / "07.png").read_bytes())
    run("caption", "model", "photos/03.png", "photos/more/03.png", "photos/05.png", "--plot", "o/x.png", "--beam", 1)
    assert sorted(path.name for path in (tmp_path / "o").iterdir()) == [
        "x-05.png",
        "x-photos-03.png.png",
        "x-photos-more-03.png.png",
    ]
    said = run("caption", "model", "photos/05.png", "--plot", "o/plain", "--beam", 1).stderr
    assert "→ o/plain.png" in said
    assert (tmp_path / "o" / "plain.png").exists()


def test_what_fit_lacks_is_named():
    without = [word for word in FIT if word not in ("--images", "photos")]
    assert "--images says the folder that the captions' images are in, and is missing" in refused(*without)
    assert "--target means nothing for images and captions" in refused(*FIT, "--target", "x")
    assert "nowhere is not a folder" in refused(*[word if word != "photos" else "nowhere" for word in FIT])
    assert "--images means nothing for a text" in refused(
        "fit", "captions.tsv", "--kind", "writer", "--images", "photos", "--out", "model"
    )
