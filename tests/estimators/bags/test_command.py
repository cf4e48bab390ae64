"""`regard fit bags`, predict, evidence and info: a table with a row for each instance."""

import re
import subprocess
import sys

import matplotlib.image
import numpy as np
import pandas as pd
import pytest
from helpers.talking import frame_of, refused, run
from typer.testing import CliRunner

import regard
from regard.cli.app import app


def fit(*more, table="bags.csv", out="model"):
    return run("fit", "bags", table, "--bag", "molecule", "--target", "active", "--out", out, *more)


@pytest.fixture(scope="module")
def molecules():
    """Bags with names that look like numbers, of which some are active; rows in no order."""
    random = np.random.default_rng(0)
    sizes = random.integers(1, 7, size=60)
    frame = pd.DataFrame(random.normal(size=(sizes.sum(), 3)).round(4), columns=["width", "charge", "length"])
    frame.insert(1, "molecule", np.repeat([f"{index:03}" for index in range(60)], sizes))
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


@pytest.mark.slow
@pytest.mark.parametrize("suffix", ["csv", "parquet"])
def test_fit_predict_and_evidence_agree_with_python(here, molecules, suffix):
    result = fit("--hidden-size", 8, "--heads", 2, "--epochs", 30, "--seed", 3, table=f"bags.{suffix}")
    assert result.stdout == ""
    old = molecules["molecule"] < "040"
    assert result.stderr == f"BagClassifier on 40 bags, {old.sum()} rows, 3 columns → model\n"

    names = ["width", "molecule", "charge", "length"]
    label = molecules[old].groupby("molecule", sort=False)["active"].first()
    model = regard.BagClassifier(hidden_size=8, heads=2, epochs=30, random_state=3, bag="molecule", verbose=False)
    model.fit(molecules.loc[old, names], label)
    new = molecules.loc[~old, names].reset_index(drop=True)
    new.index += 1
    output = frame_of(run("predict", "model", f"new.{suffix}", "--proba"), dtype={"molecule": str})
    assert list(output) == ["molecule", "active", "p_no", "p_yes"]
    assert output["molecule"].tolist() == new["molecule"].unique().tolist()
    np.testing.assert_array_equal(output["active"], model.predict(new))
    np.testing.assert_allclose(output[["p_no", "p_yes"]], model.predict_proba(new), rtol=1e-12)

    evidence = frame_of(run("evidence", "model", f"new.{suffix}", "--top", 2), dtype={"bag": str})
    expected = model.evidence(new, top=2).to_frame()
    pd.testing.assert_frame_equal(evidence, expected, check_dtype=False, rtol=1e-9)
    np.testing.assert_array_equal(new.loc[evidence["instance"], "molecule"], evidence["bag"])  # rows count from 1


def test_names_that_look_like_numbers_stay_text(here):
    table = pd.DataFrame({"molecule": ["1", "01", "1", "2"], "x": [0.0, 1.0, 2.0, 3.0], "active": list("anab")})
    table.loc[1, "active"] = "b"
    table.to_csv("bags.csv", index=False)
    assert "3 bags, 4 rows, 1 column" in fit("--epochs", 1).stderr
    output = frame_of(run("predict", "model", "bags.csv"), dtype=str)
    assert output["molecule"].tolist() == ["1", "01", "2"]


def test_a_target_of_numbers_is_a_regression(here):
    words = ("fit", "bags", "energy.csv", "--bag", "molecule", "--target", "energy", "--out", "model")
    assert "BagRegressor on 40 bags" in run(*words, "--attention", "linear").stderr
    output = frame_of(run("predict", "model", "new.csv"), dtype={"molecule": str})
    assert list(output) == ["molecule", "energy"]
    truth = pd.read_csv("new.csv", dtype={"molecule": str}).groupby("molecule", sort=False)["energy"].first()
    np.testing.assert_allclose(output["energy"], truth, atol=0.1)  # it is a square of one feature
    evidence = frame_of(run("evidence", "model", "new.csv", "--top", 1))
    assert "class" not in evidence
    assert "--proba is for classification" in refused("predict", "model", "new.csv", "--proba")


def test_two_numbers_give_a_hint_at_classes(here):
    table = pd.read_csv("bags.csv")
    table["active"] = (table["active"] == "yes").astype(int)
    table.to_csv("bags.csv", index=False)
    lines = fit("--epochs", 2).stderr.splitlines()
    assert lines[0] == "active holds the numbers 0 and 1: for classes, use --kind classification"
    assert lines[1].startswith("BagRegressor on 40 bags")
    assert fit("--epochs", 2, "--kind", "classification", "--class-weight", "balanced").stderr.startswith(
        "BagClassifier on 40 bags"
    )
    assert set(frame_of(run("predict", "model", "new.csv"))["active"]) <= {0, 1}
    assert regard.load("model").class_weight == "balanced"


def test_info_describes_the_model(here):
    fit("--attention", "gated", "--hidden-size", 4, "--epochs", 3, "--batch-size", 9, "--early-stopping", "--impute")
    output = run("info", "model").stdout
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
        assert re.search(f"^{line}", output, re.MULTILINE), line
    settings = regard.load("model").get_params()
    assert (settings["batch_size"], settings["early_stopping"], settings["epochs"]) == (9, True, 3)


def test_missing_cells_are_imputed_or_raise(here, molecules):
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
def test_booleans_are_0_and_1(here, gap):
    """A column of true and false is a feature like any other; missing cells become the commoner of the two."""
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
    output = run("predict", "truth", "new.csv", "--proba").stdout
    assert output == run("predict", "number", "new.csv", "--proba").stdout
    assert output != run("predict", "truth", changed_flag(new), "--proba").stdout
    assert re.search(r"  ring +number", run("info", "truth").stdout)


def changed_flag(table):
    """The table with the booleans negated, in a file."""
    table.assign(ring=~table["ring"]).to_csv("other.csv", index=False)
    return "other.csv"


def test_a_seed_has_64_bits(here):
    fit("--epochs", 1, "--seed", 2**64 - 1)
    words = ("fit", "bags", "bags.csv", "--bag", "molecule", "--target", "active", "--out", "other")
    assert "random_state, the seed, must be" in (error := refused(*words, "--seed", 2**64))
    assert f"below 2**64, got {2**64}" in error


def test_evidence_plots_a_bag(here):
    fit("--epochs", 5)
    result = run("evidence", "model", "new.csv", "--plot", "deep/why.png", "--row", 2, "--out", "why.csv")
    name = pd.read_csv("new.csv", dtype=str)["molecule"].unique()[1]
    assert result.stderr == f"picture of bag {name} → deep/why.png\n"
    assert matplotlib.image.imread("deep/why.png").std() > 0.05
    message = refused("evidence", "model", "new.csv", "--plot", "why.png", "--row", 21)
    assert "--row must be between 1 and 20, the number of bags in new.csv, got 21" in message


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
        ({"molecule": first("molecule", None)}, (), r"column 'molecule', row 3 \(line 4 .*each row must name its bag"),
        ({"charge": first("charge", "?")}, (), "column 'charge' holds numbers, but '\\?' in row 3"),
        ({"charge": first("charge", None)}, (), r"missing in column 'charge', row 3 \(line 4 .*or use --impute"),
        ({"charge": first("charge", np.inf)}, (), "column 'charge' is infinite in row 3"),
        (
            {"colour": "red"},
            (),
            "the features of a bag must be numbers, and column 'colour' is not: could not convert",
        ),
        ({}, ("--bag", "molecul"), "no column 'molecul'; did you mean 'molecule'"),
        ({}, ("--bag", "active"), "--bag and --target must be two columns, got 'active' for both"),
        ({}, ("--target", "activ"), "no column 'activ'; did you mean 'active'"),
        ({}, ("--kernel", "gaussian"), "regard fit bags has no option --kernel"),
        ({}, ("--attention", "hard"), "attention must be softmax, gated, mean, max or linear, got 'hard'"),
        ({}, ("--attention", "gated"), "attention='gated' needs a hidden_size"),
        ({}, ("--attention", "linear"), "--attention linear is for regression, and the target holds classes"),
        ({}, ("--kind", "regression"), "must hold numbers for --kind regression"),
        ({}, ("--class-weight", "equal"), "--class-weight must be balanced or none, got 'equal'"),
        ({}, ("--epochs", 0), "--epochs: epochs must be a positive whole number or None, got 0"),
    ],
)
def test_an_error_is_one_line(here, columns, more, message):
    changed(**columns)
    error = refused("fit", "bags", "bags.csv", "--bag", "molecule", "--target", "active", "--out", "model", *more)
    assert re.search(message, error), error
    assert not (here / "model").exists()


def test_help_fits_on_a_screen_with_a_line_for_each_option():
    lines = CliRunner().invoke(app, ["fit", "bags", "--help"], terminal_width=120).stdout.splitlines()
    assert len(lines) <= 40
    options = "".join(lines)
    assert all(f"--{name}" in options for name in ("bag", "target", "attention", "hidden-size", "patience", "impute"))
    assert [line for line in lines if line.startswith(" " * 10)] == [
        line
        for line in lines
        if "scale features" in line  # --standardise / --no-standardise fills its line
    ]


def test_std_and_density_are_not_for_bags(here):
    fit("--epochs", 1)
    assert "--std is for rows, not for bags" in refused("predict", "model", "new.csv", "--std")
    assert "--density is for rows, not for bags" in refused("predict", "model", "new.csv", "--density")


@pytest.mark.parametrize("more", [("--epochs", 2), ("--batch-size", 9), ("--early-stopping",)])
def test_linear_attention_has_no_epochs(here, more):
    words = ("fit", "bags", "energy.csv", "--bag", "molecule", "--target", "energy", "--out", "model", "--attention")
    assert refused(*words, "linear", *more) == f"{more[0]} has no effect with --attention linear\n"
    run(*words, "mean", "--epochs", 2, *more)


def test_new_tables_must_have_the_columns_of_the_model(here):
    fit("--epochs", 1)
    new = pd.read_csv("new.csv", dtype=str)
    for name, message in {"molecule": "lone.csv has no column 'molecule'", "charge": "has no column 'charge'"}.items():
        new.drop(columns=name).to_csv("lone.csv", index=False)
        assert message in refused("predict", "model", "lone.csv")
        assert message in refused("evidence", "model", "lone.csv")
    new.assign(charge="high").to_csv("lone.csv", index=False)
    assert "column 'charge' must hold numbers, got 'high' in row 1" in refused("predict", "model", "lone.csv")


def test_models_saved_from_python_predict_too(here):
    bags = np.random.default_rng(0).normal(size=(20, 4, 3))
    model = regard.QuadraticRegressor(bag="molecule").fit(bags, np.square(bags[:, :, 1]).sum(axis=1))
    model.save("model")
    plain = pd.read_csv("new.csv", dtype={"molecule": str})[["width", "molecule", "charge", "length"]]
    plain.to_csv("plain.csv", index=False)
    output = frame_of(run("predict", "model", "plain.csv"))
    by_hand = regard.as_bags(plain.set_axis(["x0", "molecule", "x1", "x2"], axis=1), by="molecule")
    np.testing.assert_allclose(output["y"], model.predict(list(by_hand)), rtol=1e-9)
    assert "QuadraticRegressor" in run("info", "model").stdout
    assert "fitted on 3 columns without names, new.csv has 5" in refused("predict", "model", "new.csv")
    model.set_params(bag=None).save("model")
    assert "the model has no column of bags" in refused("predict", "model", "plain.csv")


@pytest.mark.slow
def test_it_runs_as_a_process(here):
    command = [sys.executable, "-m", "regard", "fit", "bags", "bags.csv", "--bag", "molecule", "--target", "active"]
    ran = subprocess.run([*command, "--out", "model", "--epochs", "2"], capture_output=True, text=True, check=False)
    assert (ran.returncode, ran.stdout) == (0, "")
    assert ran.stderr.startswith("BagClassifier on 40 bags")
