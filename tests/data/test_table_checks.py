"""What the cells of a table must hold."""

import pandas as pd
import pytest
from helpers.table_files import write_file

from regard.data import table_checks, tables


def test_a_missing_cell_raises_with_its_line(tmp_path):
    # A blank line, and a cell of two lines: row 3 ends on line 6.
    path = write_file(tmp_path, 'a,b\n1,x\n\n2,"y\nz"\n3,\n,w\n')
    with pytest.raises(ValueError, match=r"column 'b', row 3 \(line 6 of .*table\.csv\), the first of 2") as error:
        table_checks.check_complete(tables.read_table(path))
    assert "--impute" in str(error.value)
    # A frame of some of the rows and columns still knows where they were.
    with pytest.raises(ValueError, match=r"column 'a', row 4 \(line 7 of .*\): correct it"):
        table_checks.check_complete(tables.read_table(path).loc[[1, 4], ["a"]], "correct it")


def test_a_missing_cell_of_parquet_raises_with_its_row(tmp_path):
    pd.DataFrame({"a": [1.0, 2.0], "b": ["x", None]}).to_parquet(tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"column 'b', row 2: "):
        table_checks.check_complete(tables.read_table(tmp_path / "t.parquet"))
    table_checks.check_complete(pd.DataFrame({"a": [1.0]}))


def test_infinity_and_a_wrong_cell_raise_with_their_position(tmp_path):
    frame = tables.read_table(write_file(tmp_path, "a,b,c\n1,2,u\n2,-inf,v\n?,4,1\n5,6,w\n"))
    with pytest.raises(ValueError, match=r"column 'b' is infinite in row 2 \(line 3"):
        table_checks.check_finite(frame)
    with pytest.raises(ValueError, match=r"column 'a' holds numbers, but '\?' in row 3 \(line 4.*--categorical"):
        table_checks.check_misread_numbers(frame)
    table_checks.check_misread_numbers(frame[["b", "c"]])  # text with a number in it is text
