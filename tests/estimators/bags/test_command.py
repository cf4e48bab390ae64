"""The command line on bags: the long form of a table, a row for each instance."""

import re
import subprocess
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from helpers.talking import frame_of, refused, run

import regard


def fit(*more, table="bags.csv", out="model"):
    return run("fit", table, "--bag", "molecule", "--target", "active", "--out", out, *more)


@pytest.fixture(scope="module")
def molecules():
    """Bags of shapes with names like numbers, of which some are active; rows in no order."""
    drawn = np.random.default_rng(0)
    sizes = drawn.integers(1, 7, size=60)
    frame = pd.DataFrame(drawn.normal(size=(sizes.sum(), 3)).round(4), columns=["width", "charge", "length"])
    frame.insert(1, "molecule", np.repeat([f"{place:03}" for place in range(60)], sizes))
    active = frame.groupby("molecule")["charge"].max() > 0.8
    frame["active"] = np.where(active[frame["molecule"]], "yes", "no")
    frame["energy"] = frame.groupby("molecule")["charge"].transform(lambda x: np.square(x).sum()).round(6)
    return frame.sample(frac=1, random_state=1).reset_index(drop=True)


@pytest.fixture
def here(molecules, tmp_path, monkeypatch):
    """A folder with forty molecules, and twenty new ones, in another order and with more columns."""
    monkeypatch.chdir(tmp_path)
    old = molecules["molecule"] < "040"
    molecules[old].drop(columns="energy").to_csv("bags.csv", index=False)
    molecules[old].drop(columns="energy").to_parquet("bags.parquet")
    molecules[old].drop(columns="active").to_csv("energy.csv", index=False)
    molecules[~old].drop(columns="active").iloc[:, ::-1].assign(extra="x").to_csv("new.csv", index=False)
    molecules[~old].drop(columns=["active", "energy"]).to_parquet("new.parquet")
    return tmp_path


@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_fit_predict_and_evidence_say_what_python_says(here, molecules, suffix):
    said = fit("--hidden-size", 8, "--heads", 2, "--epochs", 30, "--seed", 3, table=f"bags.{suffix}")
    assert said.stdout == ""
    old = molecules["molecule"] < "040"
    assert said.stderr == f"BagClassifier on 40 bags, {old.sum()} rows, 3 columns → model\n"

    names = ["width", "molecule", "charge", "length"]
    label = molecules[old].groupby("molecule", sort=False)["active"].first()
    model = regard.BagClassifier(hidden_size=8, heads=2, epochs=30, random_state=3, bag="molecule", verbose=False)
    model.fit(molecules.loc[old, names], label)
    new = molecules.loc[~old, names].reset_index(drop=True)
    new.index += 1
    told = frame_of(run("predict", "model", f"new.{suffix}", "--proba"), dtype={"molecule": str})
    assert list(told) == ["molecule", "active", "p_no", "p_yes"]
    assert told["molecule"].tolist() == new["molecule"].unique().tolist()
    np.testing.assert_array_equal(told["active"], model.predict(new))
    np.testing.assert_allclose(told[["p_no", "p_yes"]], model.predict_proba(new), rtol=1e-12)

    seen = frame_of(run("evidence", "model", f"new.{suffix}", "--top", 2), dtype={"bag": str})
    expected = model.evidence(new, top=2).to_frame()
    pd.testing.assert_frame_equal(seen, expected, check_dtype=False, rtol=1e-9)
    np.testing.assert_array_equal(new.loc[seen["instance"], "molecule"], seen["bag"])  # rows count from 1


def test_names_that_look_like_numbers_stay_as_written(here):
    table = pd.DataFrame({"molecule": ["1", "01", "1", "2"], "x": [0.0, 1.0, 2.0, 3.0], "active": list("anab")})
    table.loc[1, "active"] = "b"
    table.to_csv("bags.csv", index=False)
    assert "3 bags, 4 rows, 1 column" in fit("--epochs", 1).stderr
    told = frame_of(run("predict", "model", "bags.csv"), dtype=str)
    assert told["molecule"].tolist() == ["1", "01", "2"]


def test_numbers_are_for_regression(here):
    words = ("fit", "energy.csv", "--bag", "molecule", "--target", "energy", "--out", "model")
    assert "BagRegressor on 40 bags" in run(*words, "--attention", "linear").stderr
    told = frame_of(run("predict", "model", "new.csv"), dtype={"molecule": str})
    assert list(told) == ["molecule", "energy"]
    truth = pd.read_csv("new.csv", dtype={"molecule": str}).groupby("molecule", sort=False)["energy"].first()
    np.testing.assert_allclose(told["energy"], truth, atol=0.1)  # it is a square of one feature
    seen = frame_of(run("evidence", "model", "new.csv", "--top", 1))
    assert "class" not in seen
    assert "--proba is for classification" in refused("predict", "model", "new.csv", "--proba")


def test_two_numbers_are_told_how_to_be_classes(here):
    table = pd.read_csv("bags.csv")
    table["active"] = (table["active"] == "yes").astype(int)
    table.to_csv("bags.csv", index=False)
    said = fit("--epochs", 2).stderr.splitlines()
    assert said[0] == "active holds the numbers 0 and 1: for classes, use --kind classification"
    assert said[1].startswith("BagRegressor on 40 bags")
    assert fit("--epochs", 2, "--kind", "classification", "--balanced").stderr.startswith("BagClassifier on 40 bags")
    assert set(frame_of(run("predict", "model", "new.csv"))["active"]) <= {0, 1}
    assert regard.load("model").class_weight == "balanced"


def test_info_tells_what_there_is(here):
    fit("--attention", "gated", "--hidden-size", 4, "--epochs", 3, "--batch-size", 9, "--early-stopping", "--impute")
    told = run("info", "model").stdout
    for line in (
        r"model +BagClassifier",
        r"target +active",
        r"classes +no, yes",
        r"bag +molecule",
        r"attention +gated",
        r"hidden size +4",
        r"missing +imputed",
        r"columns +3",
        r"  charge +number +missing: ",
    ):
        assert re.search(f"^{line}", told, re.MULTILINE), line
    settings = regard.load("model").get_params()
    assert (settings["batch_size"], settings["early_stopping"], settings["epochs"]) == (9, True, 3)


def test_missing_cells_are_filled_in_or_refused(here, molecules):
    fit("--epochs", 2, "--impute")
    new = pd.read_csv("new.csv", dtype={"molecule": str})
    new.loc[4, "charge"] = np.nan
    new.to_csv("gap.csv", index=False)
    filled = frame_of(run("predict", "model", "gap.csv", "--proba"))
    new["charge"] = new["charge"].fillna(molecules.loc[molecules["molecule"] < "040", "charge"].median())
    new.to_csv("full.csv", index=False)
    pd.testing.assert_frame_equal(filled, frame_of(run("predict", "model", "full.csv", "--proba")))
    fit("--epochs", 2)
    assert "missing in column 'charge', row 5 (line 6 of gap.csv)" in refused("predict", "model", "gap.csv")


@pytest.mark.parametrize("gap", [False, True])
def test_truths_are_0_and_1(here, gap):
    """A column of true and false is a feature like any other; what is missing is the commoner of the two."""
    table = pd.read_csv("bags.csv", dtype={"molecule": str})
    flag = (table["charge"] > 0.8).astype(object)
    new = pd.read_csv("new.csv", dtype={"molecule": str}).assign(ring=lambda new: new["charge"] > 0.8)
    new.to_csv("new.csv", index=False)
    more = ("--impute",) if gap else ()
    for name, value in {"truth": flag, "number": flag.astype(int)}.items():
        if gap:
            value = value.astype(object).where(value.index > 2, None)
            value = value if name == "truth" else value.fillna(0)
        table.assign(ring=value).to_csv(f"{name}.csv", index=False)
        fit("--epochs", 20, *more, table=f"{name}.csv", out=name)
    told = run("predict", "truth", "new.csv", "--proba").stdout
    assert told == run("predict", "number", "new.csv", "--proba").stdout
    assert told != run("predict", "truth", changed_flag(new), "--proba").stdout
    assert re.search(r"  ring +number", run("info", "truth").stdout)


def changed_flag(table):
    """The table with the other truths, in a file."""
    table.assign(ring=~table["ring"]).to_csv("other.csv", index=False)
    return "other.csv"


def test_a_seed_has_64_bits(here):
    fit("--epochs", 1, "--seed", 2**64 - 1)
    words = ("fit", "bags.csv", "--bag", "molecule", "--target", "active", "--out", "other")
    assert "random_state, the seed, must be" in (said := refused(*words, "--seed", 2**64))
    assert f"below 2**64, got {2**64}" in said


def test_the_evidence_of_a_bag_is_drawn(here):
    fit("--epochs", 5)
    said = run("evidence", "model", "new.csv", "--plot", "deep/why.png", "--row", 2, "--out", "why.csv")
    name = pd.read_csv("new.csv", dtype=str)["molecule"].unique()[1]
    assert said.stderr == f"picture of bag {name} → deep/why.png\n"
    assert matplotlib.image.imread("deep/why.png").std() > 0.05
    message = refused("evidence", "model", "new.csv", "--plot", "why.png", "--row", 21)
    assert "--row must be between 1 and 20, the bags of new.csv, got 21" in message


def changed(**columns):
    """The table of bags with other columns."""
    pd.read_csv("bags.csv", dtype={"molecule": str}).assign(**columns).to_csv("bags.csv", index=False)


def first(values, value):
    """A column whose third cell is another."""
    return lambda table: table[values].astype(object).where(table.index != 2, value)


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        (
            {"active": first("active", "maybe")},
            (),
            r"the same target, those of bag \d+ have .*'maybe'.* column 'active'",
        ),
        ({"active": first("active", None)}, (), r"missing in column 'active', row 3 \(line 4 of bags.csv\)"),
        ({"active": "yes"}, (), "y must have at least two classes, got 1 class"),
        ({"molecule": first("molecule", None)}, (), r"column 'molecule', row 3 \(line 4 .*a row must say its bag"),
        ({"charge": first("charge", "?")}, (), "column 'charge' holds numbers, but '\\?' in row 3"),
        ({"charge": first("charge", None)}, (), r"missing in column 'charge', row 3 \(line 4 .*or use --impute"),
        ({"charge": first("charge", np.inf)}, (), "column 'charge' is infinite in row 3"),
        ({"colour": "red"}, (), "the features of a bag must be numbers, and column 'colour' holds 'red'"),
        ({}, ("--bag", "molecul"), "no column 'molecul'; did you mean 'molecule'"),
        ({}, ("--bag", "active"), "--bag and --target must be two columns, got 'active' for both"),
        ({}, ("--target", "activ"), "no column 'activ'; did you mean 'active'"),
        ({}, ("--kernel", "gaussian"), "--kernel means nothing for bags"),
        ({}, ("--weight", "charge"), "--weight means nothing for bags"),
        ({}, ("--attention", "hard"), "attention must be one of softmax, gated, mean, max, got 'hard'"),
        ({}, ("--attention", "gated"), "attention='gated' needs a hidden_size"),
        ({}, ("--attention", "linear"), "--attention linear is for regression, and the target holds classes"),
        ({}, ("--kind", "regression"), "must hold numbers for --kind regression"),
        ({}, ("--epochs", 0), "epochs and patience must be at least 1, got 0"),
    ],
)
def test_a_mistake_is_one_clear_line(here, columns, more, message):
    changed(**columns)
    said = refused("fit", "bags.csv", "--bag", "molecule", "--target", "active", "--out", "model", *more)
    assert re.search(message, said), said
    assert not (here / "model").exists()


def test_options_of_bags_mean_nothing_to_rows(here):
    words = ("fit", "energy.csv", "--target", "energy", "--out", "model")
    assert "--hidden-size means nothing for rows" in refused(*words, "--hidden-size", 3)
    fit("--epochs", 1)
    assert "--std is for rows, not for bags" in refused("predict", "model", "new.csv", "--std")
    assert "--density is for rows, not for bags" in refused("predict", "model", "new.csv", "--density")


@pytest.mark.parametrize("more", [("--epochs", 100), ("--batch-size", 9), ("--early-stopping",)])
def test_linear_attention_has_no_epochs(here, more):
    words = ("fit", "energy.csv", "--bag", "molecule", "--target", "energy", "--out", "model", "--attention")
    assert refused(*words, "linear", *more) == f"{more[0]} means nothing with --attention linear\n"
    run(*words, "mean", *more)


def test_new_tables_must_have_what_the_model_knows(here):
    fit("--epochs", 1)
    new = pd.read_csv("new.csv", dtype=str)
    for name, message in {"molecule": "lone.csv has no column 'molecule'", "charge": "has no column 'charge'"}.items():
        new.drop(columns=name).to_csv("lone.csv", index=False)
        assert message in refused("predict", "model", "lone.csv")
        assert message in refused("evidence", "model", "lone.csv")
    new.assign(charge="high").to_csv("lone.csv", index=False)
    assert "column 'charge' must hold numbers, got 'high' in row 1" in refused("predict", "model", "lone.csv")


def test_models_saved_from_python_are_asked_too(here):
    bags = np.random.default_rng(0).normal(size=(20, 4, 3))
    model = regard.QuadraticRegressor(bag="molecule").fit(bags, np.square(bags[:, :, 1]).sum(axis=1))
    model.save("model")
    plain = pd.read_csv("new.csv", dtype={"molecule": str})[["width", "molecule", "charge", "length"]]
    plain.to_csv("plain.csv", index=False)
    told = frame_of(run("predict", "model", "plain.csv"))
    by_hand = regard.as_bags(
        plain.set_axis(["x0", "molecule", "x1", "x2"], axis=1), by="molecule"
    ).without_feature_names()
    np.testing.assert_allclose(told["y"], model.predict(by_hand), rtol=1e-9)
    assert "QuadraticRegressor" in run("info", "model").stdout
    assert "fitted on 3 features without names, new.csv has 5 columns beside" in refused("predict", "model", "new.csv")
    model.set_params(bag=None).save("model")
    assert "the model does not know which column says the bag" in refused("predict", "model", "plain.csv")


def test_it_runs_as_a_process(here):
    command = [sys.executable, "-m", "regard", "fit", "bags.csv", "--bag", "molecule", "--target", "active"]
    ran = subprocess.run([*command, "--out", "model", "--epochs", "2"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.startswith("BagClassifier on 40 bags")
