"""Records are flat lines that survive a cut-off, and one function selects among them."""

from __future__ import annotations

import math

import pytest

from transferrisk.errors import InputError
from transferrisk.results import (
    append_records,
    keep_records,
    leave_one_environment_out,
    mean_score,
    read_records,
    read_table,
    records_table,
    select,
    selected_steps,
    table_bytes,
)


def evaluation(step, training=0.5, test_domain=0.5, test=0.1, environments=("a", "b")):
    scores = {"training_domain": training, "test_domain": test_domain, "test": test}
    return [
        {"step": step, "part": part, "environment": name, "accuracy": accuracy}
        for part, accuracy in scores.items()
        for name in environments
    ]


def test_lines_are_appended_and_cut_off_where_a_checkpoint_ends(tmp_path):
    path = tmp_path / "records.jsonl"
    append_records(path, evaluation(1))
    append_records(path, [{"step": 2, "part": "test", "environment": "a", "loss": math.nan}])
    whole = path.read_bytes()
    assert len(read_records(path)) == 7
    assert read_records(path)[-1]["loss"] is None
    path.write_bytes(whole + b'{"step": 3, "par')
    assert keep_records(path, 6) == evaluation(1)
    assert read_records(path) == evaluation(1)
    with pytest.raises(InputError, match=r"7.*6"):
        keep_records(path, 7)


@pytest.mark.parametrize(
    "line",
    ["", "[1]", "{", '{"step": "one"}', '{"step": true}', '{"step": 0}', '{"accuracy": "good"}', '{"transfer": 3}'],
)
def test_a_damaged_line_is_named(tmp_path, line):
    path = tmp_path / "records.jsonl"
    append_records(path, [{"step": 1, "part": "test", "environment": "a", "accuracy": 1.0}])
    path.write_bytes(path.read_bytes() + line.encode() + b"\n")
    with pytest.raises(InputError, match="line 2"):
        read_records(path)


def test_a_table_goes_through_parquet(tmp_path):
    runs = [
        ({"run": "r", "method": "TRM", "seed": 0}, [{"step": 1, "seed": 5, "accuracy": 0.5, "transfer": {"a": 1.0}}]),
        ({"run": "s", "method": "ERM", "seed": 1}, [{"step": 2, "accuracy": None, "huge": 2**70, "flag": True}]),
    ]
    table = records_table(runs)
    path = tmp_path / "records.parquet"
    path.write_bytes(table_bytes(table))
    read = read_table(path)
    assert list(read) == ["run", "method", "seed", "step", "result.seed", "accuracy", "transfer", "huge", "flag"]
    assert read["seed"].tolist() == [0, 1]
    assert read["result.seed"].tolist()[0] == 5
    assert math.isnan(read["accuracy"][1])
    assert read["transfer"][0] == '{"a": 1.0}'
    assert read["huge"][1] == str(2**70)
    path.write_bytes(b"damaged")
    with pytest.raises(InputError, match=r"records\.parquet"):
        read_table(path)


def test_the_highest_counts_and_the_later_of_two_that_tie():
    records = [*evaluation(1, 0.7, 0.9), *evaluation(2, 0.8, 0.1), *evaluation(3, 0.8, 0.2), *evaluation(4, 0.6, 0.3)]
    assert {r["step"] for r in select(records, "training_domain")} == {3}
    assert {r["step"] for r in select(records, "test_domain")} == {1}
    assert {r["step"] for r in select(records, "last")} == {4}
    assert mean_score(records[:6], "training_domain") == pytest.approx(0.7)
    with pytest.raises(InputError, match="best"):
        select(records, "best")


def test_an_evaluation_that_lacks_an_environment_is_not_selected():
    records = [*evaluation(1, 0.7), *evaluation(2, 0.9)]
    records[6]["accuracy"] = None
    assert {r["step"] for r in select(records, "training_domain")} == {1}
    assert select([{"step": 1, "part": "train", "accuracy": 1.0}], "training_domain") == []


def test_many_runs_are_selected_at_once():
    frame = records_table([({"run": "a"}, evaluation(1, 0.3) + evaluation(2, 0.2)), ({"run": "b"}, evaluation(7))])
    assert selected_steps(frame, "training_domain") == {"a": 1, "b": 7}
    assert selected_steps(frame, "last") == {"a": 2, "b": 7}


def run(ridge, hold_out=None, test=0.5, algorithm="trm"):
    about = {"algorithm": algorithm, "seed": 0, "settings": {"ridge": ridge}, "training": {}, "hold_out": hold_out}
    return about, evaluation(1, test=test)


def test_settings_are_selected_by_what_was_held_out():
    runs = [run(1.0), run(0.1), *(run(1.0, name, 0.4) for name in "ab"), run(0.1, "a", 0.1), run(0.1, "b", 0.9)]
    assert leave_one_environment_out(runs) == [1]
    assert leave_one_environment_out([*runs, run(3.0, algorithm="erm"), run(3.0, "a", algorithm="erm")]) == [1, 6]
    with pytest.raises(InputError, match="trm"):
        leave_one_environment_out(runs[:2])
    with pytest.raises(InputError, match="'b'"):
        leave_one_environment_out(runs[:-1])
    with pytest.raises(InputError, match=r"0\.1"):
        leave_one_environment_out([runs[0], *runs[2:]])


def test_one_file_may_hold_several_runs(tmp_path):
    path = tmp_path / "records.jsonl"
    append_records(path, [{"algorithm": "erm", "seed": 0, "step": 9}, {"algorithm": "erm", "seed": 1, "step": 3}])
    assert [record["step"] for record in read_records(path)] == [9, 3]
    append_records(path, [{"algorithm": "erm", "seed": 1, "step": 2}])
    with pytest.raises(InputError, match="line 3"):
        read_records(path)
