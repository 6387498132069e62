"""Tables, the sentence under them, and the page."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from transferrisk.errors import InputError
from transferrisk.reports import summarise, verdict, write_page
from transferrisk.training.records import Record, Scores

HOSTILE = "<script>alert('x')</script>"


def record(algorithm, seed, test, matrix, name="site A"):
    def scores(accuracy, *names):
        return {n: Scores(accuracy, 0.5) for n in names}

    return Record(
        algorithm, seed, 10, 1.0, 3.0, scores(0.9, name, "site B"), scores(0.8, name, "site B"), scores(0.7, "new"),
        scores(test, "new"), matrix,
    )  # fmt: skip


def records(name="site A"):
    return [
        record("erm", 0, 0.5, [[0.1, 0.8], [0.6, 0.1]], name),
        record("erm", 1, 0.7, [[0.1, 0.8], [0.8, 0.1]], name),
        record("trm", 0, 0.8, [[0.1, 0.2], [0.4, 0.1]], name),
        record("trm", 1, 0.6, [[0.1, 0.2], [0.4, 0.1]], name),
    ]


def test_rows_are_mean_and_sample_deviation_over_seeds():
    erm, trm = summarise(records())
    assert (erm.name, trm.name) == ("ERM", "TRM")
    assert erm.test.mean == pytest.approx(0.6)
    assert erm.test.std == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert erm.transfer_risk.mean == pytest.approx((0.7 + 0.8) / 2)
    assert erm.transfer_matrix[1][0] == pytest.approx(0.7)
    assert erm.test.percent() == "60.0 ± 14.1"
    assert list(erm.train) == ["site A", "site B"]


def test_verdict_says_who_wins_and_by_how_much():
    text = verdict(summarise(records()))
    assert "TRM gets 70.0 % right where ERM gets 60.0 %: 10.0 points more, ahead on 1 of 2 seeds" in text
    assert "2.5 times less" in text
    turned = [
        record("trm" if r.algorithm == "erm" else "erm", r.seed, r.test["new"].accuracy, r.transfer_matrix)
        for r in records()
    ]
    assert "10.0 points fewer" in verdict(summarise(turned))
    assert "2.5 times more" in verdict(summarise(turned))


def test_verdict_without_trm():
    assert verdict(summarise(records()[:2])).startswith("ERM is the most accurate")


def test_no_records_is_an_error():
    with pytest.raises(InputError, match="no records"):
        summarise([])


class Links(HTMLParser):
    """Collects everything a browser would fetch, and checks that tags are closed."""

    VOID = frozenset({"meta", "link", "img", "br"})

    def __init__(self):
        super().__init__()
        self.fetched, self.open, self.scripts, self.text = [], [], 0, ""

    def handle_starttag(self, tag, attrs):
        self.scripts += tag == "script"
        self.fetched += [v for k, v in attrs if k in ("src", "href") and v]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_is_whole_escapes_names_and_fetches_nothing(tmp_path):
    pictures = {HOSTILE: np.zeros((10, 2, 8, 8, 3), np.uint8)}
    path = tmp_path / "report.html"
    write_page(path, f"Title {HOSTILE}", records(HOSTILE), pictures, {"Key": HOSTILE}, "trm demo")
    parser = Links()
    parser.feed(path.read_text())
    assert parser.open == []
    assert parser.scripts == 0
    assert parser.fetched
    assert all(link.startswith("data:") for link in parser.fetched)
    assert parser.text.count(HOSTILE) > 5  # shown as text, in table, matrices, captions and settings
    assert "70.0 ± 14.1" in parser.text
    assert "best accuracy on held-out data of the training environments" in parser.text
