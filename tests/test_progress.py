"""Progress bars: nested bars share one display; nothing is written without a terminal."""

import io
import sys
import threading

import pytest
from rich.console import Console

from regard import progress
from regard.progress import ProgressBar


@pytest.fixture
def terminal(monkeypatch):
    """A terminal, and bars that are shown at once."""
    screen = io.StringIO()
    monkeypatch.setattr(progress, "DELAY", -1.0)
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen, force_terminal=True, width=80))
    return screen


def test_a_bar_within_a_bar_is_a_line_of_the_same_display(terminal):
    with ProgressBar("outer", 2) as outer:
        outer.update(done=0)
        with ProgressBar("inner", 5) as inner:
            inner.update(done=3, loss=0.5)
            assert inner.bar is outer.bar
            assert [task.description for task in outer.bar.tasks if task.visible] == ["outer", "inner"]
            assert outer.bar.live.is_started
        assert [task.description for task in outer.bar.tasks] == ["outer"]
        assert outer.bar.live.is_started  # the inner one has not taken it away
        outer.update(done=1)
    assert not outer.bar.live.is_started
    with ProgressBar("next", 1) as other:
        assert other.bar is not outer.bar


def test_bars_of_two_threads_are_independent(terminal):
    with ProgressBar("here", 2) as here:
        here.update(done=0)
        result = []

        def work():
            with ProgressBar("there", 2) as there:
                there.update(done=1)
                result.append((there.bar is here.bar, there.inner))

        thread = threading.Thread(target=work)
        thread.start()
        thread.join()
        assert result == [(False, False)]
        with ProgressBar("within", 1) as within:
            assert within.bar is here.bar
    assert not here.bar.live.is_started


def test_an_inner_bar_shows_the_outer_one(terminal):
    with ProgressBar("outer", 2) as outer, ProgressBar("inner", 5) as inner:
        inner.update(done=1)
        assert outer.bar.live.is_started
    assert "outer" in terminal.getvalue()
    assert "inner" in terminal.getvalue()


def test_a_hidden_bar_within_a_bar_is_not_shown(terminal):
    with ProgressBar("outer", 2) as outer, ProgressBar("inner", 5, shown=False) as inner:
        inner.update(done=1)
        assert [task.description for task in outer.bar.tasks] == ["outer"]
        assert not outer.bar.live.is_started


def test_without_a_terminal_nothing_is_written(monkeypatch):
    screen = io.StringIO()
    monkeypatch.setattr(progress, "DELAY", -1.0)
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=screen))
    with ProgressBar("outer", 2) as outer, ProgressBar("inner", 5) as inner:
        inner.update(done=1)
        outer.update(done=1)
    assert screen.getvalue() == ""


def test_printed_lines_go_to_stdout(terminal, capsys):
    with ProgressBar("outer", 2) as outer:
        outer.update(done=1)
        assert outer.bar.live.is_started
        sys.stdout.write("a line\n")
    assert capsys.readouterr().out == "a line\n"
    assert "a line" not in terminal.getvalue()
