"""Tables, the sentence under them, and the page."""

from __future__ import annotations

from html.parser import HTMLParser

import numpy as np
import pytest

from transferrisk.errors import InputError
from transferrisk.reports import Curves, Group, Table, render_page, write_page
from transferrisk.reports.demo_page import caption, comparison_page, summarise, verdict

HOSTILE = "<script>alert('x')</script>"


def run(algorithm, seed, test, matrix, name="site A", epochs=(1.0,)):
    """A run; `test` is its accuracy there, at each epoch or at all."""
    names, lines = (name, "site B"), []
    for epoch, accuracy in zip(epochs, test if isinstance(test, list) else [test] * len(epochs), strict=True):
        scores = {"train": (names, 0.9), "training_domain": (names, 0.8), "test_domain": (["new"], 0.7)}
        for part, (environments, value) in (scores | {"test": (["new"], accuracy)}).items():
            for e, environment in enumerate(environments):
                lines.append({"step": round(10 * epoch), "epoch": epoch, "seconds": 3.0, "part": part,
                              "environment": environment, "accuracy": value, "loss": 0.5})  # fmt: skip
                if part == "training_domain" and matrix:
                    worst = max(loss for p, loss in enumerate(matrix[e]) if p != e)
                    lines[-1] |= {"transfer": dict(zip(names, matrix[e], strict=True)), "transfer_risk": worst}
    return {"algorithm": algorithm, "seed": seed}, lines


def runs_of_two(name="site A"):
    return [
        run("erm", 0, 0.5, [[0.1, 0.8], [0.6, 0.1]], name),
        run("erm", 1, 0.7, [[0.1, 0.8], [0.8, 0.1]], name),
        run("trm", 0, 0.8, [[0.1, 0.2], [0.4, 0.1]], name),
        run("trm", 1, 0.6, [[0.1, 0.2], [0.4, 0.1]], name),
    ]


def test_rows_are_mean_and_sample_deviation_over_seeds():
    erm, trm = summarise(runs_of_two())
    assert (erm.name, trm.name) == ("ERM", "TRM")
    assert erm.test.mean == pytest.approx(0.6)
    assert erm.test.std == pytest.approx(np.std([0.5, 0.7], ddof=1))
    assert erm.transfer_risk.mean == pytest.approx((0.7 + 0.8) / 2)
    assert erm.transfer["site B"]["site A"] == pytest.approx(0.7)
    assert erm.test.cell(100, 1).text == "60.0 ± 14.1"
    assert list(erm.train) == ["site A", "site B"]


def compared(erm, trm, erm_risk=0.5, trm_risk=0.5):
    """The verdict on these accuracies, one a seed, and transfer risks."""
    runs = [run("erm", i, x, [[0.1, erm_risk], [erm_risk, 0.1]]) for i, x in enumerate(erm)]
    runs += [run("trm", i, x, [[0.1, trm_risk], [trm_risk, 0.1]]) for i, x in enumerate(trm)]
    return verdict(summarise(runs))


@pytest.mark.parametrize(
    ("erm", "trm", "said"),
    [
        ([0.5, 0.6, 0.7], [0.6, 0.7, 0.9], "ERM gets 60.0 %: 13.3 points more, ahead on 3 of 3 seeds."),
        ([0.6, 0.7, 0.9], [0.5, 0.6, 0.7], "ERM gets 73.3 %: 13.3 points fewer, ahead on 0 of 3 seeds."),
        ([0.5, 0.7], [0.8, 0.6], "TRM gets 70.0 % right where ERM gets 60.0 %: 10.0 points more, which over 2 seeds "
         "may well be chance."),
        ([0.8, 0.6], [0.5, 0.7], "10.0 points fewer, which over 2 seeds may well be chance."),
        ([0.5, 0.7], [0.5, 0.7], "no difference over 2 seeds."),
        ([0.5, 0.7], [0.5002, 0.7001], "no difference over 2 seeds."),
        ([0.5], [0.6], "10.0 points more on the one seed."),
        ([0.5], [0.5], "no difference on the one seed."),
        ([0.5, 0.6, 0.1], [0.6, 0.72], "TRM gets 66.0 % right where ERM gets 55.0 %: 11.0 points more, ahead on 2 of 2 "
         "seeds that both have."),
        ([0.5], [0.5, 0.9], "no difference on the one seed that both have."),
    ],
)  # fmt: skip
def test_verdict_says_who_wins_by_how_much_and_whether_to_believe_it(erm, trm, said):
    assert said in compared(erm, trm)


def test_seeds_are_paired_by_their_number():
    """In whatever order the runs came, and with several runs of one seed."""
    matrix = [[0.1, 0.5], [0.5, 0.1]]
    accuracies = {"erm": {2: 0.5, 0: 0.9, 1: 0.7}, "trm": {0: 0.92, 1: 0.73, 2: 0.54}}
    runs = [run(name, seed, value, matrix) for name, mine in accuracies.items() for seed, value in mine.items()]
    assert "TRM gets 73.0 % right where ERM gets 70.0 %: 3.0 points more, ahead on 3 of 3" in verdict(summarise(runs))
    runs[3:4] = [run("trm", 0, x, matrix) for x in (0.91, 0.93)]
    assert "3.0 points more, ahead on 3 of 3 seeds." in verdict(summarise(runs))
    apart = [run("erm", 0, 0.5, matrix), run("erm", 1, 0.7, matrix), run("trm", 2, 0.8, matrix)]
    assert "80.0 % right where ERM gets 60.0 %: the two share no seed" in verdict(summarise(apart))
    assert caption(summarise(apart)) == "Mean ± standard deviation over 1 to 2 seeds"


@pytest.mark.parametrize(
    ("erm", "trm", "said"),
    [(0.5, 0.2, "2.5 times less"), (0.2, 0.5, "2.5 times more"), (0.5, 0.49, "as much"), (0.5, 0.5, "as much"),
     (0.5, 0.0, "loses less"), (0.0, 0.0, "as much")],
)  # fmt: skip
def test_verdict_on_transfer_risks(erm, trm, said):
    assert f"{said} in the other (transfer risk {trm:.3f} against {erm:.3f})" in compared([0.5], [0.5], erm, trm)


def test_one_seed_has_no_spread(tmp_path):
    one = [r for r in runs_of_two() if r[0]["seed"] == 0]
    rows = summarise(one)
    assert (rows[0].test.cell(100, 1).text, rows[0].transfer_risk.cell(1, 3).text) == ("50.0", "0.700")
    assert caption(rows).startswith("One seed")
    assert caption(summarise(runs_of_two())) == "Mean ± standard deviation over 2 seeds"
    path = tmp_path / "report.html"
    write_page(path, comparison_page("Title", one, {}, {}, "trm demo"))
    parser = Links()
    parser.feed(path.read_text())
    assert "±" not in parser.text
    assert "1 seeds" not in parser.text
    assert "standard deviation" not in parser.text


def test_verdict_without_trm():
    assert verdict(summarise(runs_of_two()[:2])).startswith("ERM is the most accurate")


def test_no_records_is_an_error():
    with pytest.raises(InputError, match="runs"):
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


def test_page_is_whole_escapes_names_and_fetches_nothing():
    pictures = {HOSTILE: np.zeros((10, 2, 8, 8, 3), np.uint8)}
    settings = {"Key": HOSTILE, "List": ["one", HOSTILE]}
    html = render_page(comparison_page(f"Title {HOSTILE}", runs_of_two(HOSTILE), pictures, settings, "trm demo"))
    parser = Links()
    parser.feed(html)
    assert parser.open == []
    assert parser.scripts == 1  # its own
    assert any(link.startswith("data:image/png") for link in parser.fetched)
    assert all(link.startswith(("data:", "#")) for link in parser.fetched)
    assert parser.text.count(HOSTILE) > 5  # shown as text, in table, matrices, captions and settings
    assert "70.0 ± 14.1" in parser.text
    assert "<dd>one</dd>" in html
    assert "the highest accuracy on held-out data of the training environments" in parser.text


def sections(runs, kind):
    return [
        section for section in comparison_page("Title", runs, {}, {}, "trm demo").sections if isinstance(section, kind)
    ]


def test_training_curves_are_means_over_seeds_at_each_epoch():
    matrix = [[0.1, 0.2], [0.3, 0.1]]
    runs = [run("trm", s, [0.5 + 0.1 * s + 0.2 * epoch for epoch in (1, 2)], matrix, epochs=(1, 2)) for s in (0, 1)]
    runs.append(run("irm", 0, 0.4, matrix))
    unseen, validation = sections(runs, Curves)
    assert list(unseen.series) == ["TRM"]  # IRM was evaluated once, which is no curve
    epochs, accuracies = unseen.series["TRM"]
    assert epochs == [1, 2]
    assert accuracies == pytest.approx([75, 95])
    assert validation.series["TRM"][1] == pytest.approx([80, 80])
    assert sections(runs_of_two(), Curves) == []


def test_worst_pairs_are_the_largest_entries_off_the_diagonal():
    pairs = next(table for table in sections(runs_of_two(), Table) if table.title == "Worst pairs")
    assert [row[:3] for row in pairs.rows] == [
        ["ERM", "site A", "site B"], ["ERM", "site B", "site A"],
        ["TRM", "site B", "site A"], ["TRM", "site A", "site B"],
    ]  # fmt: skip
    assert [row[3] for row in pairs.rows] == pytest.approx([0.8, 0.7, 0.4, 0.2])
    assert {row[4] for row in pairs.rows} == {0.1}


def test_one_map_for_each_algorithm_on_one_scale():
    (group,) = sections(runs_of_two(), Group)
    assert [section.title for section in group.sections] == ["ERM", "TRM"]
    assert [section.scale for section in group.sections] == [(0.0, 0.8)] * 2
    np.testing.assert_allclose(group.sections[0].values, [[0.1, 0.8], [0.7, 0.1]])


def test_records_without_matrices_have_a_page():
    runs = [run(algorithm, seed, 0.5, []) for algorithm in ("erm", "trm") for seed in (0, 1)]
    assert sections(runs, Group) == []
    assert verdict(summarise(runs)).endswith("no difference over 2 seeds.")
    assert summarise(runs)[0].transfer_risk.cell(1, 3).text == "\N{EN DASH}"
    parser = Links()
    parser.feed(render_page(comparison_page("Title", runs, {}, {}, "trm demo")))
    assert "nan" not in parser.text
