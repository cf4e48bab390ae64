"""The first compilation says that it takes its time."""

import threading

from regard.compiled import notice


def test_a_compilation_of_more_than_a_second_writes_one_line(monkeypatch, capsys):
    monkeypatch.setattr(notice, "DELAY", 0.01)
    found = notice.Notice()
    for _ in range(2):
        found.begin()
        found.begin()
        if found.timer is not None:
            found.timer.join()
        found.end()
        found.end()
    assert capsys.readouterr().err == notice.TEXT


def test_a_short_compilation_writes_nothing(monkeypatch, capsys):
    monkeypatch.setattr(notice, "DELAY", 0.2)
    found = notice.Notice()
    found.begin()
    found.end()
    assert isinstance(found.timer, threading.Timer)
    found.timer.join()
    assert capsys.readouterr().err == ""


def test_numba_tells_of_its_compilations(monkeypatch):
    from numba import njit

    notice.announce_compilation()
    begun = []
    monkeypatch.setattr(notice.Notice, "begin", lambda self: begun.append(1))
    monkeypatch.setattr(notice.Notice, "end", lambda self: None)
    assert njit(lambda x: x + 1)(1) == 2
    assert begun
