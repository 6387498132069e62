"""A file of records that someone has edited is told from a whole one, by its line."""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import replace

import pytest
from small import small_run

from transferrisk.errors import InputError
from transferrisk.training import Output, read_records, train, write_records


@pytest.fixture(scope="module")
def records():
    return train(small_run("erm"))


def edited(path, change, line=2):
    """The file with one of its records changed."""
    lines = path.read_text().splitlines()
    values = json.loads(lines[line - 1])
    change(values)
    lines[line - 1] = json.dumps(values)
    path.write_text("\n".join(lines) + "\n")


@pytest.mark.parametrize(
    ("change", "what"),
    [
        (lambda v: v.update(algorithm=3), "algorithm is 3, not a text"),
        (lambda v: v.update(seed="0"), "seed is '0', not a whole number"),
        (lambda v: v.update(step=True), "step is True, not a whole number"),
        (lambda v: v.update(step=2), "step 2 comes after step 3"),
        (lambda v: v.update(epoch="one"), "epoch is 'one', not a finite number"),
        (lambda v: v.update(seconds=10**400), "seconds"),
        (lambda v: v.update(logs=[1]), r"logs is \[1\], not an object"),
        (lambda v: v["logs"].update(loss="x"), "logs of 'loss' is 'x', not a finite number"),
        (lambda v: v.update(irm=None), "irm is None, not an object"),
        (lambda v: v.update(held_out=1), "held_out is 1, not a text"),
        (lambda v: v.update(settings=[]), r"settings is \[\], not an object"),
        (lambda v: v.update(test=None), "test is None, not an object"),
        (lambda v: v["test"].update(east=0.5), "test of 'east' is 0.5, not an object"),
        (lambda v: v["test"]["east"].pop("loss"), "test of 'east' has accuracy, worst_group where accuracy and loss"),
        (lambda v: v["test"]["east"].update(accuracy="high"), "test of 'east' is 'high', not a finite number"),
        (lambda v: v.update(transfer_matrix=[[1.0, 2.0]]), "transfer_matrix is not square"),
        (lambda v: v.update(transfer_matrix=[1.0]), "transfer_matrix is 1.0, not a list"),
        (lambda v: v.update(extra=1), "'extra' is not known"),
        (lambda v: v.pop("step"), "'step' is missing"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(tmp_path, records, change, what):
    path = tmp_path / "records.jsonl"
    write_records(path, records)
    edited(path, change)
    with pytest.raises(InputError, match=rf"records.jsonl, line 2, is not a record \(.*{what}") as told:
        read_records(path)
    assert "\n" not in str(told.value)


def test_numbers_too_large_and_lines_too_deep(tmp_path, records):
    path = tmp_path / "records.jsonl"
    write_records(path, records[:1])
    whole = path.read_text()
    for broken in (whole.replace('"seconds": ', '"seconds": 1e999, "epoch": '), "[" * 100_000 + "\n", "\xff\n"):
        path.write_text(broken)
        with pytest.raises(InputError, match="line 1, is not a record"):
            read_records(path)


def test_what_is_no_number_is_null_and_comes_back_as_nan(tmp_path, records):
    def refuse(constant):
        raise AssertionError(constant)

    path = tmp_path / "records.jsonl"
    nan, inf = math.nan, math.inf
    scores = replace(records[0].test["east"], loss=inf)
    odd = replace(records[0], transfer_matrix=[[1.0, nan], [inf, 2.0]], logs={"loss": nan}, test={"east": scores})
    write_records(str(path), [odd])
    line = json.loads(path.read_text(), parse_constant=refuse)
    assert (line["transfer_matrix"], line["logs"]) == ([[1.0, None], [None, 2.0]], {"loss": None})
    (back,) = read_records(str(path))
    assert math.isnan(back.transfer_matrix[0][1])
    assert math.isnan(back.transfer_matrix[1][0])
    assert math.isnan(back.logs["loss"])
    assert math.isnan(back.test["east"].loss)
    path.write_text(path.read_text().replace("null", "NaN", 1))  # as earlier versions wrote it
    assert math.isnan(read_records(path)[0].transfer_matrix[0][1])


def test_a_records_run_says_what_it_was(records):
    """So runs that differ in any of it are kept apart, and one that differs in nothing is the same."""
    same, other = train(small_run("erm"))[-1], train(small_run("erm", lr=0.01))[-1]
    assert records[-1].run == same.run != other.run
    assert other.training["lr"] == 0.01
    moved = train(replace(small_run("erm"), origin={"backbone": "own"}))[-1]
    assert moved.origin == {"backbone": "own"}
    assert moved.run != same.run


def test_a_folder_holds_one_run(tmp_path):
    train(small_run("erm"), output=Output(tmp_path, say=print))
    path = tmp_path / "records.jsonl"
    edited(path, lambda v: v.update(identity="another"), line=3)
    before = path.read_bytes()
    with pytest.raises(InputError, match="line 3, is of another run than those before it: bring the file back"):
        train(small_run("erm"), output=Output(tmp_path, resume=True, say=print))
    edited(path, lambda v: v.update(test={}), line=1)
    with pytest.raises(InputError, match="line 2, is of another run"):
        train(small_run("erm"), output=Output(tmp_path, resume=True, say=print))
    assert path.read_bytes().splitlines()[1:] == before.splitlines()[1:]


@pytest.mark.parametrize("order", list(itertools.permutations([0.1, 0.5, math.nan])))
def test_transfer_risk_is_unknown_where_a_loss_is_in_whatever_order(records, order):
    matrix = [[math.nan, 0.2, 0.3, 0.4]] + [[0.1] * 4] * 2 + [[*order, 0.9]]
    assert math.isnan(replace(records[-1], transfer_matrix=matrix).transfer_risk)
    known = [[math.nan if p == q else 0.1 * (p + 1) for p in range(3)] for q in range(3)]
    assert replace(records[-1], transfer_matrix=known).transfer_risk == pytest.approx((0.3 + 0.3 + 0.2) / 3)
