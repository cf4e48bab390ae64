"""`regard fit NAME` is made of declared settings: every option, one line of help, and errors that name the nearest."""

import pytest
from helpers.talking import refused, run

from regard.cli import app
from regard.cli.fit import subjects
from regard.estimators import ESTIMATORS, SUBJECTS
from regard.estimators.settings import settings_of

NAMES = sorted(subjects())


def options_of(name):
    lines = run("fit", name, "--help").stdout.splitlines()
    return [line.split()[0].rstrip(",") for line in lines if line.startswith("  -")]


def test_every_folder_is_a_subject_with_a_command_of_its_own():
    assert NAMES == ["bags", "captioner", "table", "translator", "writer"]
    assert len(SUBJECTS) == len(NAMES)
    listed = run("fit", "--help").stdout
    assert all(f"\n  {name} " in listed for name in NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_help_is_one_line_for_each_option_and_fits_one_screen(name, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "100")
    with pytest.raises(SystemExit):
        app(["fit", name, "--help"], prog_name="regard")  # a runner for tests would fix the width to 80
    printed = capsys.readouterr().out.splitlines()
    assert max(map(len, printed)) <= 100
    assert len(printed) <= 56
    first = printed.index("Options:")
    wrapped = [line for line in printed[first + 1 :] if not line.startswith("  -")]
    assert len(wrapped) <= 1, wrapped  # the names of a flag and its opposite may be long
    assert not [line for line in printed if "--random-state" in line or "--verbose" in line]  # --seed and --quiet


@pytest.mark.parametrize("name", NAMES)
def test_every_setting_of_the_estimators_is_an_option(name):
    import regard.estimators

    each = subjects()[name]
    expected = {s.name for e in each.estimators for s in settings_of(getattr(regard.estimators, e)) if s.option}
    shown = {option.removeprefix("--").replace("-", "_") for option in options_of(name)}
    assert expected <= shown
    assert set(each.estimators) <= set(ESTIMATORS)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("table", "--kernal", "boxcar"), "regard fit table has no option --kernal; did you mean --kernel?"),
        (("table", "--beams", "3", "--epochs", "3"), "regard fit table has no option --beams"),
        (("table", "--epochs=3"), "regard fit table has no option --epochs; it is an option of regard fit"),
        (("writer", "--bag", "x"), "regard fit writer has no option --bag; it is an option of regard fit bags"),
        (("tables",), "got 'tables'; did you mean regard fit table?"),
        (("houses.csv",), "got 'houses.csv': one of bags, captioner, table, translator, writer"),
        (("writer", "--set", "size=3"), "regard fit writer has no option --set"),
    ],
)
def test_an_unknown_option_names_the_nearest(words, message):
    assert message in refused("fit", *words)


def test_the_value_of_an_option_may_begin_with_dashes(tmp_path):
    (tmp_path / "t.csv").write_text("x,--y\n1,2\n2,3\n3,4\n")
    run("fit", "table", tmp_path / "t.csv", "--target", "--y", "--out", tmp_path / "m", "--quiet")
    assert (tmp_path / "m" / "config.json").exists()
