"""Tables for people: nothing is cut off where no terminal sets a width, and titles are plain text."""

from __future__ import annotations

import pytest

from edgeinfer.core.tables import PLAIN_WIDTH, new_table, report_console


def test_a_table_in_a_file_keeps_its_figures(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    table = new_table("of edgeinfer[bench]")
    for column in range(12):
        table.add_column(f"column {column}", no_wrap=True)
    table.add_row(*["0.123456"] * 12)
    report_console(stderr=False).print(table)
    printed = capsys.readouterr().out
    assert printed.count("0.123456") == 12 and "of edgeinfer[bench]" in printed
    assert max(map(len, printed.splitlines())) <= PLAIN_WIDTH


def test_columns_of_the_environment_is_heeded_and_standard_error_is_one(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    report_console(stderr=True).print("word " * 30)
    captured = capsys.readouterr()
    assert captured.out == "" and max(map(len, captured.err.splitlines())) <= 40
