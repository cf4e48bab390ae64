"""The tour's stations for translation."""

from pathlib import Path

from regard.data.samples import held_out_dates
from regard.estimators.translation.station import HELD_OUT, STATIONS, exact_fraction, translate_command


def test_the_exact_fraction_is_of_dates_without_any_mistake():
    class Parrot:
        def translate(self, sources):
            assert sources == held_out_dates(HELD_OUT, 3)[0]
            targets = held_out_dates(HELD_OUT, 3)[1]
            return [*targets[: HELD_OUT // 4], *(f"{target}!" for target in targets[HELD_OUT // 4 :])]

    assert exact_fraction(Parrot(), 3) == 0.25


def test_stations_have_their_chapters_and_commands_that_can_be_typed():
    assert [(station.name, station.chapter) for station in STATIONS] == [("seq2seq", 3), ("transformer", 6)]
    assert translate_command(Path("a b")).line == "echo 'Tuesday, 9 August 1988' | regard translate 'a b'"
