"""The tour runs whole, a station that fails does not stop it, and its page is right in a real browser."""

import base64
import os
import re
import shlex
import subprocess
import sys

import pytest
import torch
from helpers.browser import CHROMIUM, browser
from matplotlib.figure import Figure
from threadpoolctl import threadpool_info, threadpool_limits
from typer.testing import CliRunner

import regard.cli.tour
from regard.cli import app
from regard.cli.tour import STATIONS
from regard.tour.findings import Passage, Picture, Row, Station, number
from regard.tour.runner import run_stations, select_stations

LATER = {"Writer, 2 blocks", "ConvNet with attention", "bahdanau", "luong", "Transformer, 2 blocks"}
LATER |= {"soft attention", "hard attention", "weight on the object", "soft, λ = 0.1"}
"""Models that a quick tour trains too shortly to be sure that they are better than their baselines."""


def recorded(monkeypatch, stations):
    """The visits of a tour of these stations that the command line makes."""
    visits = []

    def record(*given):
        for visit in run_stations(*given):
            visits.append(visit)
            yield visit

    monkeypatch.setattr(regard.cli.tour, "run_stations", record)
    monkeypatch.setattr(regard.cli.tour, "STATIONS", stations)
    return visits


@pytest.fixture(scope="module")
def toured(tmp_path_factory):
    """The whole tour, quickly: its folder, what was printed, and what was found."""
    out = tmp_path_factory.mktemp("tour") / "deep" / "tour"
    with pytest.MonkeyPatch.context() as monkeypatch:
        visits = recorded(monkeypatch, STATIONS)
        result = CliRunner().invoke(app, ["tour", "--quick", "--out", str(out)])
    assert result.exit_code == 0, result.output
    return out, result.stdout, visits


@pytest.mark.slow
def test_the_whole_tour_runs(toured):
    out, printed, visits = toured
    assert [visit.station for visit in visits] == list(STATIONS)
    for visit in visits:
        assert not visit.error
        assert len(visit.findings) == visit.station.findings  # else its bar would end too soon, or never
        assert visit.rows
        assert printed.count(visit.station.title.split()[-1]) >= len(visit.rows)
        for row, seconds in visit.rows:
            assert row.better or row.model in LATER, row
            assert seconds >= 0
        assert [row for row, _ in visit.rows] == [one for one in visit.findings if isinstance(one, Row)]
    assert str(out / "index.html") in printed.replace("\n", "")
    assert not list(out.rglob(".*"))  # nothing temporary is left


@pytest.mark.slow
def test_the_page_holds_all_that_was_found(toured):
    out, _, visits = toured
    page = (out / "index.html").read_text()
    assert "still running" not in page
    assert "A quick tour" in page
    pictures = [found for visit in visits for found in visit.findings if isinstance(found, Picture)]
    inside = [base64.b64decode(data) for data in re.findall(r'src="data:image/png;base64,([^"]+)"', page)]
    files = [out / visit.station.name / f"{p.name}.png" for visit in visits for p in visit.findings if p in pictures]
    assert inside == [path.read_bytes() for path in files]
    assert len(set(inside)) == len(inside) >= 11
    for picture in pictures:
        assert 2 <= picture.text.count(". ") + 1 <= 5
        assert len(picture.alt) > 40
        assert 5 <= picture.figure.get_figwidth() <= 5.5  # readable on a phone
    assert not re.search(r"https?://", page)
    assert "<script" not in page


@pytest.mark.slow
def test_the_models_of_the_tour_open(toured):
    _, _, visits = toured
    commands = [command for visit in visits for command in visit.commands]
    assert len(commands) == 15
    for command in commands:
        echo, _, piped = command.rpartition(" | ")
        name, *rest = shlex.split(piped)
        assert name == "regard"
        result = CliRunner().invoke(app, rest, input=" ".join(shlex.split(echo)[1:]) + "\n")
        assert result.exit_code == 0, result.output
        assert result.stdout


@pytest.mark.slow
def test_the_page_in_a_real_browser(toured, tmp_path):
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    out, _, _ = toured
    page = out / "index.html"
    with browser(tmp_path) as tab:
        for width, dark in ((390, False), (1280, True)):
            tab.open(page, width, dark=dark)
            assert tab.complaints() == []
            assert tab.asked_for() == [page.as_uri()]
            assert min(tab.value("[...document.images].map(image => image.naturalWidth)")) > 0
            assert tab.value("document.images.length") >= 11
            assert tab.value("document.documentElement.scrollWidth") <= width
            assert tab.value("[...document.images].every(image => image.alt)")
            shown = tab.value("[...document.images].map(image => image.getBoundingClientRect().width)")
            assert min(shown) > 300


def test_the_browser_would_tell(tmp_path):
    if CHROMIUM is None:
        pytest.skip("there is no chromium here: apt-get install chromium")
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="gone.png"><div style="width: 500px">wide</div><script>nothing()</script>')
    with browser(tmp_path / "profile") as tab:
        tab.open(bad, 390)
        assert len(tab.asked_for()) == 2
        assert len(tab.complaints()) >= 2
        assert tab.value("document.documentElement.scrollWidth") > 390
        assert tab.value("document.images[0].naturalWidth") == 0


def small(name, *, fails=False):
    """A station that takes no time: a row, a picture, a passage, then perhaps an error."""

    def visit(folder, seed, quick):
        figure = Figure(figsize=(1, 1))
        figure.add_subplot().plot([1, 2])
        yield Row(f"data <{name}>", "model", "error", float(torch.rand(())) + seed, "other", 9.0, lower=True)
        yield Picture("one", figure, "A line & more", "It goes up.", "a line")
        if fails:
            raise ArithmeticError(f"{name} <fell>\nover")
        yield Passage("To read", "Short.", "a < b")

    return Station(name, f"The {name}", "What it is.", visit, 3, chapter=1)


def test_a_station_that_fails_is_told_and_the_others_go_on(tmp_path, monkeypatch):
    recorded(monkeypatch, (small("first"), small("second", fails=True), small("third")))
    result = CliRunner().invoke(app, ["tour", "--out", str(tmp_path)])
    assert result.exit_code == 1
    assert "The second failed: ArithmeticError: second <fell> over\n" in result.stdout
    assert "Traceback" not in result.output
    assert "data <third>" in result.stdout
    page = (tmp_path / "index.html").read_text()
    assert page.count("data:image/png") == 3  # what was found before it failed is kept
    assert page.count("failed: ArithmeticError: second &lt;fell&gt; over") == 2
    assert "raise ArithmeticError" in page
    assert page.count("a &lt; b") == 2
    assert "A quick tour" not in page


def test_the_page_is_written_after_each_station(tmp_path):
    pages = []
    for visit in run_stations([small("first"), small("second")], tmp_path):
        pages.append((tmp_path / "index.html").read_text())
        assert len(visit.findings) == 3
    assert "The first" in pages[0]
    assert "The second" not in pages[0]
    assert "still running: 1 more stations to come" in pages[0]
    assert "The second" in pages[1]
    assert "still running" not in pages[1]


def test_some_stations_alone_find_the_same(tmp_path, monkeypatch):
    visits = recorded(monkeypatch, (small("first"), small("second"), small("third")))
    state = torch.get_rng_state()
    assert CliRunner().invoke(app, ["tour", "--out", str(tmp_path)]).exit_code == 0
    assert CliRunner().invoke(app, ["tour", "--out", str(tmp_path), "--only", "third, second"]).exit_code == 0
    assert CliRunner().invoke(app, ["tour", "--out", str(tmp_path), "--only", "first", "--seed", "3"]).exit_code == 0
    assert [visit.station.name for visit in visits] == ["first", "second", "third", "second", "third", "first"]
    rows = [visit.rows[0][0] for visit in visits]
    assert rows[1:3] == rows[3:5]
    assert 3 <= rows[5].score != rows[0].score + 3
    assert torch.equal(torch.get_rng_state(), state)  # and what comes after the tour is as it was


def test_a_station_has_one_thread(tmp_path):
    seen = []

    def blas():
        return {pool["num_threads"] for pool in threadpool_info() if pool["internal_api"] == "openblas"}

    def visit(folder, seed, quick):
        seen.append((torch.get_num_threads(), blas()))
        yield from ()

    torch.set_num_threads(3)
    stations = [Station("one", "One", "Small.", visit, 0, chapter=1)]
    with threadpool_limits(3, user_api="blas"):
        kinds = len(blas())  # none, where NumPy has another
        assert not [visit.error for visit in run_stations(stations, tmp_path) if visit.error]
        assert seen == [(1, {1} if kinds else set())]
        assert torch.get_num_threads() == 3  # and what comes after the tour is as it was
        assert blas() == ({3} if kinds else set())


def test_a_station_that_is_not_there(tmp_path):
    result = CliRunner().invoke(app, ["tour", "--out", str(tmp_path / "tour"), "--only", "bags,zoo"])
    assert result.exit_code == 1
    assert (
        result.stderr
        == "error: a station must be one of kernel, bags, seq2seq, captions, layer, transformer, writer, got 'zoo'\n"
    )
    assert not (tmp_path / "tour").exists()
    assert select_stations(STATIONS, []) == list(STATIONS)


def test_a_file_in_the_place_of_the_folder(tmp_path):
    (tmp_path / "tour").write_text("mine")
    result = CliRunner().invoke(app, ["tour", "--out", str(tmp_path / "tour")])
    assert result.exit_code == 1
    assert result.stderr.endswith("tour is a file; the tour needs a folder\n")


def test_a_page_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "index.html").write_text("<title>mine</title>")
    with pytest.raises(FileExistsError, match=r"index\.html was not written by the tour and would be overwritten"):
        next(run_stations([small("first")], tmp_path))
    assert (tmp_path / "index.html").read_text() == "<title>mine</title>"


def test_a_tour_that_is_stopped_says_so(tmp_path):
    def stop(folder, seed, quick):
        yield small("other").visit(folder, seed, quick).__next__()
        raise KeyboardInterrupt

    visits = run_stations(
        [small("first"), Station("second", "The second", "…", stop, 1, chapter=1), small("third")], tmp_path
    )
    assert next(visits).station.name == "first"
    with pytest.raises(KeyboardInterrupt, match=r"the results so far are in .*index.html"):
        next(visits)
    page = (tmp_path / "index.html").read_text()
    assert "The tour was stopped: 2 of its stations are missing." in page
    assert "still running" not in page
    assert "The first" in page


def test_a_model_that_is_not_better_is_said_to_be_not(tmp_path):
    def visit(folder, seed, quick):
        yield Row("data", "good <one>", "error", 1.0, "other", 2.0, lower=True)
        yield Row("data", "bad <one>", "error", 3.0, "other", 2.0, lower=True)

    list(run_stations([Station("mixed", "Mixed", "…", visit, 2, chapter=1), small("good")], tmp_path))
    page = (tmp_path / "index.html").read_text()
    assert page.count("Not better than the baseline here: ") == 1
    assert "here: bad &lt;one&gt;. The captions" in page


def test_a_file_in_the_place_of_a_stations_folder_stops_only_that_station(tmp_path):
    (tmp_path / "first").write_text("mine")
    first, second = run_stations([small("first"), small("second")], tmp_path)
    assert first.error.startswith("FileExistsError")
    assert not second.error


@pytest.mark.slow
def test_a_console_without_greek_sees_the_tour(tmp_path):
    code = f"""if True:
        import sys
        from pathlib import Path
        import regard.cli.tour as cli
        from regard.tour.findings import Row, Station
        def visit(folder, seed, quick):
            yield Row("x + ε", "λ = 0", "error", 1.0, "other", 2.0, lower=True)
        cli.STATIONS = [Station(name, f"The {{name}}", "…", visit, 1, chapter=1) for name in ("one", "two")]
        sys.exit(not cli.run(Path({str(tmp_path)!r}), "", 0, True))
    """
    environment = os.environ | {"PYTHONIOENCODING": "latin-1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert b"x + ?" in done.stdout
    assert b"The two" in done.stdout


@pytest.mark.parametrize(("seed", "bound"), [(-1, "greater than or equal to 0"), (2**40, "or equal to 2147483647")])
def test_a_seed_that_is_none_raises_at_once(tmp_path, seed, bound):
    result = CliRunner().invoke(app, ["tour", "--out", str(tmp_path / "tour"), "--seed", str(seed)])
    assert result.exit_code == 2
    assert bound in result.stderr
    assert not (tmp_path / "tour").exists()


def test_numbers_in_the_table():
    assert [number(x) for x in (0.0, 2.384e-7, -0.4326, 0.05, 1.0, 12.345, 166.4)] == [
        *("0", "2.4e-07", "-0.433", "0.05", "1", "12.3", "166"),
    ]
