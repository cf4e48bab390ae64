"""`regard fit table`, `predict`, `evidence` and `info`, as they are typed: the output, its stream, and that it is what
Python gives.
"""

import io
import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from helpers.talking import frame_of, held, refused, run, typed
from sklearn.datasets import load_diabetes
from sklearn.metrics import r2_score

import regard

KERNEL = ("--model", "nadaraya-watson", "--bandwidth", "scott")


@pytest.fixture(scope="module")
def houses():
    """A table of numbers, counts, words, booleans and codes, each of which matters for the price."""
    random = np.random.default_rng(0)
    n = 120
    frame = pd.DataFrame(
        {
            "area": random.uniform(20, 150, n).round(1),
            "rooms": random.integers(1, 6, n),
            "city": random.choice(["Rome", "Paris", "Oslo"], n),
            "garden": random.random(n) < 0.4,
            "zone": random.choice([10, 20, 30], n),
        }
    )
    worth = frame["city"].map({"Rome": 0, "Paris": 50, "Oslo": 90}) + 30 * frame["garden"] + 10 * (frame["zone"] == 20)
    frame["price"] = (2 * frame["area"] + 10 * frame["rooms"] + worth + random.normal(0, 5, n)).round(2)
    return frame


@pytest.fixture
def here(houses, tmp_path, monkeypatch):
    """A folder with the first hundred houses, and the others as new ones, in another order and with more columns."""
    monkeypatch.chdir(tmp_path)
    houses[:100].to_csv("houses.csv", index=False)
    houses[:100].to_parquet("houses.parquet")
    houses[100:].iloc[:, ::-1].assign(extra="x").to_csv("new.csv", index=False)
    houses[100:].to_parquet("new.parquet")
    return tmp_path


def test_fit_predict_and_evidence_give_what_python_gives(tmp_path):
    X, y = load_diabetes(return_X_y=True, as_frame=True)  # noqa: N806
    train, new = X.join(y)[:300], X[300:]
    train.to_csv(tmp_path / "train.csv", index=False)
    new.to_csv(tmp_path / "new.csv", index=False)
    output = run(
        "fit",
        "table",
        *KERNEL,
        tmp_path / "train.csv",
        "--target",
        "target",
        "--out",
        tmp_path / "model",
        "--scale",
        "rank",
    )
    assert output.stdout == ""
    assert output.stderr.endswith(f"\nNadarayaWatson on 300 rows and 10 columns → {tmp_path / 'model'}\n")

    model = regard.NadarayaWatson("scott", scale="rank").fit(X[:300], y[:300])
    predicted = frame_of(run("predict", tmp_path / "model", tmp_path / "new.csv", "--std", "--density"))
    assert predicted.columns.tolist() == ["target", "target_std", "log_density"]
    mean, spread = model.predict(new, return_std=True)
    np.testing.assert_allclose(predicted["target"], mean, rtol=1e-12)
    np.testing.assert_allclose(predicted["target_std"], spread, rtol=1e-12)
    np.testing.assert_allclose(predicted["log_density"], model.log_density(new), rtol=1e-12)
    assert np.corrcoef(predicted["target"], y[300:])[0, 1] > 0.6

    shown = frame_of(run("evidence", tmp_path / "model", tmp_path / "new.csv", "--top", 4))
    expected = model.evidence(new, top=4)
    np.testing.assert_array_equal(shown["row"].to_numpy().reshape(-1, 4), expected.index + 1)  # rows count from 1
    np.testing.assert_array_equal(shown["query"], np.repeat(np.arange(1, len(new) + 1), 4))
    np.testing.assert_allclose(shown["weight"].to_numpy().reshape(-1, 4), expected.weight, rtol=1e-9)
    whole = shown.groupby("query")["weight"].sum() + shown.groupby("query")["rest"].first()
    np.testing.assert_allclose(whole, 1, atol=1e-9)
    np.testing.assert_allclose(shown["target"], y[shown["row"] - 1])


@pytest.mark.parametrize("table", ["houses.csv", "houses.parquet"])
@pytest.mark.parametrize("new", ["new.csv", "new.parquet"])
@pytest.mark.parametrize("out", ["out.csv", "out.tsv", "out.parquet"])
def test_every_kind_of_file_gives_the_same(here, houses, table, new, out):
    run("fit", "table", *KERNEL, table, "--target", "price", "--out", "model", "--quiet")
    output = run("predict", "model", new, "--out", out)
    assert output.stdout == ""
    assert re.fullmatch(r"R² on 20 rows with a target: 0\.\d{3}\n", output.stderr)
    read = {"csv": pd.read_csv, "tsv": lambda path: pd.read_csv(path, sep="\t"), "parquet": pd.read_parquet}
    predicted = read[out.rpartition(".")[2]](out)
    model = regard.NadarayaWatson("scott").fit(houses[:100].drop(columns="price"), houses["price"][:100])
    assert predicted.columns.tolist() == ["price"]
    np.testing.assert_allclose(predicted["price"], model.predict(houses[100:].drop(columns="price")), rtol=1e-12)


def test_text_and_booleans_are_categories_and_numbers_only_if_named(here, houses):
    words = ("--categorical", "zone", "--ordered", "rooms", "--bandwidth", "9,0.1,0.2,0.1,0.3")
    output = run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model", *words)
    assert "order of rooms: 1 < 2 < 3 < 4 < 5\n" in output.stderr
    X, y = houses.drop(columns="price"), houses["price"]  # noqa: N806
    categories = ["city", "garden", "zone"]
    model = regard.NadarayaWatson([9, 0.1, 0.2, 0.1, 0.3], categorical=categories, ordered=["rooms"])
    model.fit(X[:100], y[:100])
    predicted = frame_of(run("predict", "model", "new.csv"))
    np.testing.assert_allclose(predicted["price"], model.predict(X[100:]), rtol=1e-12)
    output = run("info", "model").stdout
    kinds = {line.split()[0]: line.split()[1] for line in output.splitlines() if line.startswith("  ")}
    assert kinds == {"area": "number", "rooms": "code", "city": "text", "garden": "truth", "zone": "code"}


def test_an_unseen_category_warns_and_raises_if_it_is_ordered(here, houses):
    new = houses[100:].assign(city="Rio")
    new.to_csv("rio.csv", index=False)
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model", "--ordered", "zone")
    output = run("predict", "model", "rio.csv")
    assert np.isfinite(frame_of(output)["price"]).all()
    assert "'city': 20 of 20 rows hold a category that was not in the training data, such as 'Rio'" in output.stderr
    new.assign(zone=25, city="Oslo").to_csv("zone.csv", index=False)
    assert "column 'zone' is ordered, and 25 is not in the training data" in refused("predict", "model", "zone.csv")


def test_codes_that_are_text_stay_text_in_a_table_of_numbers_alone(here, houses):
    y = np.where(houses["zone"] == 20, 100.0, houses["zone"])
    codes = houses["zone"].map({10: "A", 20: "1", 30: "01"})
    frame = pd.DataFrame({"code": codes, "area": houses["area"], "y": y})
    frame[:100].to_csv("codes.csv", index=False)
    assert "column 'code' holds numbers, but 'A'" in refused(
        "fit", "table", *KERNEL, "codes.csv", "--target", "y", "--out", "model"
    )
    run("fit", "table", *KERNEL, "codes.csv", "--target", "y", "--out", "model", "--categorical", "code")
    frame[frame["code"] != "A"].to_csv("numbers.csv", index=False)
    predicted = frame_of(run("predict", "model", "numbers.csv"))["y"]
    expected = y[frame["code"] != "A"]
    assert (predicted[expected == 100] > 60).all()
    assert (predicted[expected == 30] < 60).all()


def test_a_target_of_words_is_classified(here, houses):
    frame = houses.assign(dear=np.where(houses["price"] > 250, "yes", "no")).drop(columns="price")
    frame[:100].to_csv("dear.csv", index=False)
    frame[100:].to_csv("new.csv", index=False)
    output = run("fit", "table", *KERNEL, "dear.csv", "--target", "dear", "--out", "model")
    assert "\nNadarayaWatsonClassifier on 100 rows" in output.stderr
    predicted = frame_of(run("predict", "model", "new.csv", "--proba"))
    assert predicted.columns.tolist() == ["dear", "p_no", "p_yes"]
    model = regard.NadarayaWatsonClassifier("scott").fit(frame[:100].drop(columns="dear"), frame["dear"][:100])
    np.testing.assert_allclose(predicted[["p_no", "p_yes"]], model.predict_proba(frame[100:].drop(columns="dear")))
    assert predicted["dear"].tolist() == model.predict(frame[100:].drop(columns="dear")).tolist()
    assert frame_of(run("predict", "model", "new.csv"))["dear"].tolist() == predicted["dear"].tolist()
    assert "--std is for regression" in refused("predict", "model", "new.csv", "--std")


@pytest.mark.parametrize(("target", "kind", "classes"), [("garden", "auto", 2), ("zone", "classification", 3)])
def test_booleans_and_whole_numbers_can_be_classes(here, target, kind, classes):
    run("fit", "table", *KERNEL, "houses.csv", "--target", target, "--out", "model", "--kind", kind)
    predicted = frame_of(run("predict", "model", "new.csv", "--proba"))
    assert len(predicted.columns) == 1 + classes
    assert {f"p_{label}" for label in predicted[target]} <= set(predicted.columns)


def test_weights_are_those_of_python(here, houses):
    heavy = houses[:100].assign(times=np.arange(100) % 3)
    heavy.to_csv("heavy.csv", index=False)
    run(
        "fit", "table", *KERNEL, "heavy.csv", "--target", "price", "--weight", "times", "--out", "model", "--order", "1"
    )
    X = houses.drop(columns="price")  # noqa: N806
    model = regard.NadarayaWatson("scott", order=1).fit(
        X[:100], houses["price"][:100], sample_weight=np.arange(100) % 3
    )
    np.testing.assert_allclose(frame_of(run("predict", "model", "new.csv"))["price"], model.predict(X[100:]))


def test_a_missing_cell_raises_or_is_imputed_as_in_training(here, houses):
    holes = houses[:100].astype({"garden": object, "rooms": float})
    holes.loc[4, "area"] = holes.loc[7, "city"] = holes.loc[9, "garden"] = None
    holes.to_csv("holes.csv", index=False)
    output = refused("fit", "table", *KERNEL, "holes.csv", "--target", "price", "--out", "model")
    assert "column 'area', row 5 (line 6 of holes.csv), the first of 3 missing cells" in output
    assert "--impute" in output
    assert not Path("model").exists()

    run("fit", "table", *KERNEL, "holes.csv", "--target", "price", "--out", "model", "--impute")
    fill = json.loads(Path("model/config.json").read_text())["table"]["fill"]
    assert fill["area"] == houses["area"][:100].drop(4).median()
    assert fill["city"] == houses["city"][:100].drop(7).mode()[0]
    assert fill["garden"] is bool(houses["garden"][:100].drop(9).mode()[0])

    new = houses[100:103].drop(columns="price").astype({"garden": object})
    filled = new.assign(area=fill["area"], city=fill["city"], garden=fill["garden"])
    filled.to_csv("filled.csv", index=False)
    filled.assign(area=None, city=None, garden=None).to_csv("empty.csv", index=False)
    np.testing.assert_array_equal(
        frame_of(run("predict", "model", "empty.csv")), frame_of(run("predict", "model", "filled.csv"))
    )
    run(
        "fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model"
    )  # without --impute, over the other
    output = refused("predict", "model", "empty.csv")
    assert "column 'area', row 1 (line 2 of empty.csv), the first of 9" in output
    assert "fit the model with --impute" in output


def test_the_evidence_of_a_row_is_plotted(here):
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model")
    output = run("evidence", "model", "new.csv", "--plot", "deep/e.png", "--row", 3, "--out", "e.parquet", "--top", 2)
    assert output.stdout == ""
    assert output.stderr == "picture of row 3 → deep/e.png\n"
    assert matplotlib.image.imread("deep/e.png").std() > 0
    assert len(pd.read_parquet("e.parquet")) == 40
    output = refused("evidence", "model", "new.csv", "--plot", "e.png", "--row", 21)
    assert "--row must be between 1 and 20, the number of rows in new.csv, got 21" in output


def test_a_model_saved_from_python_is_read_too(here, houses):
    X, y = houses[["area", "rooms"]], houses[["price", "zone"]]  # noqa: N806
    named = regard.NadarayaWatson("scott").fit(X[:100], y[:100])
    named.save("named")
    predicted = frame_of(run("predict", "named", "new.csv", "--std"))
    assert predicted.columns.tolist() == ["price", "zone", "price_std", "zone_std"]
    np.testing.assert_allclose(predicted[["price", "zone"]], named.predict(X[100:]), rtol=1e-12)
    regard.NadarayaWatson("scott").fit(X[:100].to_numpy(), y["price"][:100].to_numpy()).save("nameless")
    X[100:].to_csv("two.csv", index=False)
    predicted = frame_of(run("predict", "nameless", "two.csv"))
    np.testing.assert_allclose(predicted["y"], named.predict(X[100:])[:, 0], rtol=1e-12)
    assert "fitted on 2 columns without names, new.csv has 7" in refused("predict", "nameless", "new.csv")


def test_warnings_of_the_model_are_one_line_on_stderr(here):
    words = ("--kernel", "boxcar", "--bandwidth", "0.001", "--quiet")
    assert run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model", *words).output == ""
    output = run("predict", "model", "new.csv")
    assert re.match(r"warning: \d+ of 20 rows see no training row", output.stderr)
    assert output.stderr.count("\n") == 2  # and R²: these rows have the target
    assert len(frame_of(output)) == 20


def test_progress_is_never_on_stdout(here, monkeypatch):
    monkeypatch.setattr("regard.progress.DELAY", -1.0)
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes stderr for a terminal
    words = ("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--bandwidth", "cv", "--out", "model")
    output = run(*words)
    assert output.stdout == ""
    assert "searching the bandwidth" in output.stderr
    assert run(*words, "--quiet").output == ""


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("none.csv", "--target", "price"), "there is no file none.csv"),
        (("houses.csv", "--target", "prize"), "houses.csv has no column 'prize'; did you mean 'price'?"),
        (("houses.csv", "--target", "price", "--bandwidth", "1,x"), "--bandwidth: bandwidth must be a number, one per"),
        (("houses.csv", "--target", "price", "--bandwidth", "1,2"), "one for each of 5 columns, got 2"),
        (("houses.csv", "--target", "price", "--bandwidth", "soft"), "scott, silverman, cv, aicc, learn, got 'soft'"),
        (("houses.csv", "--target", "price", "--kernel", "soft"), "--kernel: kernel must be gaussian, laplace"),
        (("houses.csv", "--target", "price", "--order", "2"), "--order: order must be 0 or 1, got '2'"),
        (("houses.csv", "--target", "price", "--tol", "2"), "--tol: tol must be a number of at least 0 and below 1"),
        (("houses.csv", "--target", "city", "--order", "1"), "--order is not a setting of NadarayaWatsonClassifier"),
        (("houses.csv", "--target", "city", "--kind", "both"), "--kind: kind must be auto, regression or classifi"),
        (("houses.csv", "--target", "city", "--kind", "regression"), "must hold numbers for --kind regression"),
        (("houses.csv", "--target", "price", "--categorical", "zine"), "did you mean 'zone'?"),
        (("houses.csv", "--target", "price", "--weight", "city"), "the weight 'city' must hold numbers"),
        (("houses.csv", "--target", "price", "--bandwith", "1"), "no option --bandwith; did you mean --bandwidth?"),
    ],
)
def test_a_mistake_is_one_line(here, words, message):
    assert message in refused("fit", "table", *KERNEL, *words, "--out", "model")
    assert not Path("model").exists()


def test_a_folder_without_a_model_raises(here):
    assert "none is not a model folder: no such folder" in refused("predict", "none", "new.csv")
    assert ". is not a model folder: it has no config.json" in refused("info", ".")


def test_the_help_fits_one_screen():
    lines = run("fit", "table", "--help").stdout.splitlines()  # 80 columns wide
    assert len(lines) <= 32
    assert sum(line.startswith("  --") for line in lines) == 21


def test_new_tables_with_wrong_columns_raise(here, houses):
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model")
    houses.drop(columns=["area", "city"]).to_csv("less.csv", index=False)
    assert "less.csv has no column 'area', 'city'" in refused("predict", "model", "less.csv")
    houses.astype({"area": object}).assign(area="wide").to_csv("wide.csv", index=False)
    assert "column 'area' must hold numbers, got 'wide' in row 1 (line 2" in refused("predict", "model", "wide.csv")
    assert "must end in .csv" in refused("predict", "model", "new.csv", "--out", "out.json")
    assert "--proba is for classification" in refused("predict", "model", "new.csv", "--proba")


def test_a_broken_model_raises(here):
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model")
    whole = held("model")
    assert set(whole) == {"config.json", "model.safetensors"}
    for name, half, message in (
        ("model.safetensors", whole["model.safetensors"][:99], "model/model.safetensors cannot be read"),
        ("config.json", b"{", "model/config.json is not JSON"),
        (
            "config.json",
            whole["config.json"].replace(b"settings", b"lost"),
            "holds a broken model, or one of",
        ),
        ("config.json", whole["config.json"].replace(b'"kinds"', b'"lost"'), "the description of the table in"),
        ("config.json", whole["config.json"].replace(b"model.safetensors", b"../x"), "names '../x' for its arrays"),
        ("config.json", b'{"format": 99}', "has format 99"),
    ):
        Path("model", name).write_bytes(half)
        assert message in refused("predict", "model", "new.csv")
        Path("model", name).write_bytes(whole[name])
    run("predict", "model", "new.csv")


def test_a_bug_of_ours_is_a_traceback(here, monkeypatch):
    def bug(*_, **__):
        raise TypeError("a bug")

    monkeypatch.setattr("regard.estimators.tables.command.read_table", bug)
    with pytest.raises(TypeError, match="a bug"):
        run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model")


def test_a_wrong_folder_raises_before_the_work(here, monkeypatch):
    monkeypatch.setattr("regard.estimators.tables.command.read_table", lambda *_: pytest.fail("the table was read"))
    assert "is not empty and holds no model" in refused(
        "fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", here
    )


@pytest.mark.slow
def test_processes_write_to_the_right_streams(here):
    fitted = typed("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model")
    assert (fitted.returncode, fitted.stdout) == (0, "")
    assert fitted.stderr.endswith("the mean has 0\nNadarayaWatson on 100 rows and 5 columns → model\n")
    wrong = typed("predict", "model", "none.csv")
    assert (wrong.returncode, wrong.stdout, wrong.stderr) == (1, "", "error: there is no file none.csv\n")


@pytest.mark.slow
def test_a_killed_fit_keeps_the_old_model(here):
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model")
    before = held("model")
    code = (
        "import os, signal, regard.saving as saving; from regard.cli import main;"
        "saving.save_file = lambda *_: os.kill(os.getpid(), signal.SIGKILL); main()"
    )
    words = ("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model", "--bandwidth", "7")
    killed = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, check=False)
    assert killed.returncode == -signal.SIGKILL
    assert held("model") == before
    run(*words)
    assert held("model")["config.json"] != before["config.json"]


def test_a_target_of_two_numbers_gives_a_hint(here, houses):
    houses.assign(sold=(houses["area"] > 80).astype(int)).to_csv("sold.csv", index=False)
    output = run("fit", "table", *KERNEL, "sold.csv", "--target", "sold", "--out", "model").stderr
    assert "sold holds the numbers 0 and 1: for classes, use --kind classification" in output


def test_a_table_of_a_european_spreadsheet_and_dropped_columns(here, houses):
    for name, rows in (("fit.csv", houses[:100]), ("ask.csv", houses[100:])):
        rows.assign(id=[f"h{index}" for index in rows.index]).to_csv(name, sep=";", decimal=",", index=False)
    run("fit", "table", *KERNEL, "fit.csv", "--target", "price", "--drop", "id,garden", "--out", "model")
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--drop", "garden", "--out", "same")
    predicted = frame_of(run("predict", "model", "ask.csv"))["price"]
    np.testing.assert_allclose(predicted, frame_of(run("predict", "same", "new.csv"))["price"], rtol=1e-12)
    assert "garden" not in run("info", "model").stdout
    output = refused("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--drop", "gardens", "--out", "model")
    assert "no column 'gardens'; did you mean 'garden'" in output


def test_fit_prints_the_leave_one_out_score(here, houses):
    output = run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model").stderr
    model = regard.load("model")
    assert f"leave-one-out R²: {model.left_out_score():.3f}; the mean has 0\n" in output
    assert 0.5 < model.left_out_score() < 1
    output = run("fit", "table", *KERNEL, "houses.csv", "--target", "garden", "--out", "model").stderr
    fraction = max(houses["garden"][:100].mean(), 1 - houses["garden"][:100].mean())
    right = regard.load("model").left_out_score()
    assert f"leave-one-out accuracy: {right:.1%}; the most frequent class has {fraction:.1%}\n" in output
    houses[:100].assign(count=1 + 8 * houses["garden"][:100]).to_csv("counted.csv", index=False)
    output = run(
        "fit", "table", *KERNEL, "counted.csv", "--target", "garden", "--weight", "count", "--out", "model"
    ).stderr
    fraction = 9 * houses["garden"][:100].sum() / (100 + 8 * houses["garden"][:100].sum())
    assert f"the most frequent class has {fraction:.1%}\n" in output


def with_dates_and_gaps(houses):
    table = houses.assign(sold=pd.date_range("2024-01-30", periods=len(houses), freq="D").strftime("%Y-%m-%d"))
    table.loc[3, "area"] = table.loc[101, "city"] = table.loc[4, "sold"] = None
    return table


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_the_default_model_takes_dates_and_missing_cells_and_gives_what_python_gives(here, houses, suffix):
    table = with_dates_and_gaps(houses)
    if suffix == "csv":
        table[:100].to_csv("train.csv", index=False)
        table[100:].to_csv("new.csv", index=False)
    else:
        table["sold"] = pd.to_datetime(table["sold"])
        table[:100].to_parquet("train.parquet")
        table[100:].to_parquet("new.parquet")
    words = ("fit", "table", f"train.{suffix}", "--target", "price", "--effort", "low", "--out", "model")
    output = run(*words).stderr
    assert "left-out R²: 0." in output
    assert "AttentionRegressor on 100 rows and 6 columns → model" in output
    x = table.drop(columns="price")
    model = regard.AttentionRegressor(effort="low", random_state=0).fit(x[:100], table["price"][:100])
    predicted = frame_of(run("predict", "model", f"new.{suffix}", "--interval", "0.8"))
    assert predicted.columns.tolist() == ["price", "price_low", "price_high"]
    np.testing.assert_allclose(predicted.to_numpy().T, model.predict(x[100:], interval=0.8), rtol=1e-6)
    shown = frame_of(run("evidence", "model", f"new.{suffix}", "--top", "2"))
    np.testing.assert_array_equal(shown["row"].to_numpy().reshape(-1, 2), model.evidence(x[100:], top=2).index + 1)
    described = run("info", "model").stdout
    assert re.search(r"effort +low\n", described)
    assert re.search(r"missing +allowed\n", described)
    assert re.search(r"  sold +date\n", described)
    assert re.search(r"members +\w", described)


def test_words_are_classified_by_the_default_model(here, houses):
    output = run("fit", "table", "houses.csv", "--target", "city", "--effort", "low", "--out", "model").stderr
    assert "left-out accuracy" in output
    assert frame_of(run("predict", "model", "new.csv", "--proba")).columns.tolist() == [
        "city",
        "p_Oslo",
        "p_Paris",
        "p_Rome",
    ]
    assert "--interval is for a regression" in refused("predict", "model", "new.csv", "--interval", "0.9")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--bandwidth", "cv"),
            "--bandwidth is not a setting of AttentionRegressor; settings of another model need --mo",
        ),
        (
            (*KERNEL, "--effort", "low"),
            "--effort is not a setting of NadarayaWatson; settings of another model need --m",
        ),
        (("--model", "forest"), "forest"),
        (("--effort", "huge"), "low, medium or high, got 'huge'"),
        (("--n-jobs", "0"), "n_jobs must be a positive whole number"),
    ],
)
def test_settings_of_the_other_model_raise(here, words, message):
    assert message in refused("fit", "table", "houses.csv", "--target", "price", *words, "--out", "model")


def test_what_a_model_does_not_predict_raises(here):
    run("fit", "table", "houses.csv", "--target", "price", "--effort", "low", "--out", "model")
    assert "--std is for --model nadaraya-watson" in refused("predict", "model", "new.csv", "--std")
    assert "interval must be a number above 0 and below 1" in refused("predict", "model", "new.csv", "--interval", "90")
    assert "--quantiles is for a regression" in refused("predict", "model", "new.csv", "--quantiles", "0.5")


def test_quantiles_and_intervals_of_kernel_regression(here, houses):
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model")
    predicted = frame_of(run("predict", "model", "new.csv", "--quantiles", "0.05,0.5", "--interval", "0.9", "--std"))
    assert predicted.columns.tolist() == [f"price{end}" for end in ("", "_low", "_high", "_std", "_q0.05", "_q0.5")]
    model = regard.load("model")
    new = pd.read_csv("new.csv")[list(model.feature_names_in_)]
    np.testing.assert_allclose(predicted.iloc[:, :3].to_numpy().T, model.predict(new, interval=0.9), rtol=1e-6)
    np.testing.assert_allclose(predicted.iloc[:, 4:], model.predict(new, quantiles=[0.05, 0.5]), rtol=1e-6)
    assert "quantiles must be numbers above 0 and below 1" in refused("predict", "model", "new.csv", "--quantiles", "5")
    assert "--quantiles must be numbers such as 0.05" in refused("predict", "model", "new.csv", "--quantiles", "half")


def test_a_table_comes_from_stdin_or_from_a_file_of_any_name(here, houses):
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model", "--quiet")
    expected = run("predict", "model", "new.csv").stdout
    assert run("predict", "model", "-", given=Path("new.csv").read_text()).stdout == expected
    Path("new.csv").rename("new.txt")
    assert run("predict", "model", "new.txt", "--format", "csv").stdout == expected
    assert "must end in .csv" in run("predict", "model", "new.txt", code=1).stderr
    assert "there is no file none.txt" in run("predict", "model", "none.txt", "--format", "csv", code=1).stderr
    Path("new.txt").rename("new.csv")


def test_columns_are_kept_beside_the_predictions_and_a_known_target_gives_a_score(here, houses):
    run("fit", "table", *KERNEL, "houses.csv", "--target", "price", "--out", "model", "--quiet")
    new = houses[100:].assign(id=[f"00{row}" for row in range(len(houses) - 100)])
    new.to_csv("known.csv", index=False)
    output = run("predict", "model", "known.csv", "--keep", "id,area")
    frame = pd.read_csv(io.StringIO(output.stdout), dtype={"id": str})
    assert list(frame.columns) == ["id", "area", "price"]
    assert frame["id"].tolist() == new["id"].tolist()
    assert f"R² on {len(new)} rows with a target: {r2_score(new['price'], frame['price']):.3f}" in output.stderr
    houses[100:].drop(columns="price").to_csv("unknown.csv", index=False)
    assert run("predict", "model", "unknown.csv").stderr == ""
    assert (
        "--keep price: the predictions have a column"
        in run("predict", "model", "known.csv", "--keep", "price", code=1).stderr
    )
    dear = houses.assign(dear=np.where(houses["price"] > houses["price"].median(), "yes", "no")).drop(columns="price")
    dear[:100].to_csv("dear.csv", index=False)
    run("fit", "table", *KERNEL, "dear.csv", "--target", "dear", "--out", "model", "--quiet")
    dear[100:].to_csv("known.csv", index=False)
    assert f"accuracy on {len(new)} rows with a target: " in run("predict", "model", "known.csv").stderr
