"""Models for tables compared: 18 tables of regression, 12 of classification, the same splits for every method.

    python -m benchmarks.tables --data FOLDER                         run what is not in the results yet
    python -m benchmarks.tables --data FOLDER --methods CatBoost,HGB --splits 0,1 --only airfoil
    python -m benchmarks.tables --data FOLDER --intervals             90 % intervals in place of predictions
    python -m benchmarks.tables --report [--intervals]                print the tables of what has been run

    FOLDER/uci/NAME/data.csv.gz         numbers, the last column is y          github treforevans/uci_datasets
    FOLDER/uci/NAME/test_mask.csv.gz    one column per split, 1 = test row (90/10); splits 0-4 are used
    FOLDER/arff/regression/NAME.csv.gz, FOLDER/arff/classification/NAME.csv.gz
                                        header, words, empty cells, target last    github renatopp/arff-datasets

The peers come from the registry, with the same pins as everything else; torch first, or pip may bring a larger one:

    pip install torch==2.13.0
    pip install -c constraints.txt -e ".[all,bench]"

Splits     uci: the file's; arff: 80/20, drawn with the split's number as seed, in proportion to the classes.
Target     standardised by the training rows' mean and deviation: an RMSE of 1 is the mean's. Classes are numbered.
Columns    as in the file: a word is a category, an empty cell is missing. `splice` keeps the column that names its
           rows, `anneal` its category "?".
Methods    defaults, random_state 0. Each gets what its users give it: see the function of each. Where a method asks for
           a metric to stop by (all of pytabkit), it is log loss for classification, which ranks the methods here.
Log loss   of probabilities of at least 1e-7.
Seconds    of fit and predict, after imports: CPU of the process and its children, and wall.

Each cell of a table, (table, split, method), is a process of its own, ended after --limit seconds, and one line in
benchmarks/results/tables/results.jsonl. What is there is not run again, failures included, except with --again. A
method that is not installed is left out.
"""

import argparse
import importlib.metadata
import importlib.util
import json
import math
import os
import resource
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple, Self

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from rich import box
from rich.console import Console
from rich.table import Table
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.compose import make_column_selector, make_column_transformer
from sklearn.dummy import DummyClassifier, DummyRegressor
from sklearn.ensemble import HistGradientBoostingClassifier, HistGradientBoostingRegressor
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegressionCV, RidgeCV
from sklearn.metrics import accuracy_score, log_loss, root_mean_squared_error
from sklearn.model_selection import KFold, StratifiedKFold, train_test_split
from sklearn.neighbors import KNeighborsClassifier, KNeighborsRegressor, NearestNeighbors
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, QuantileTransformer, StandardScaler
from threadpoolctl import threadpool_limits

Kind = Literal["regression", "classification"]
UCI = ("yacht", "concrete", "airfoil", "wine", "pol", "elevators", "kin40k")
REGRESSION = (
    *("autoprice", "cholesterol", "pbc", "meta", "stock", "abalone"),
    *("kin8nm", "cpu.act", "puma32H", "cal.housing", "house8L"),
)
CLASSIFICATION = (
    *("heart.c", "colic", "vehicle", "anneal", "vowel", "credit.g"),
    *("cmc", "segment", "splice", "sick", "spambase", "letter"),
)
FILES = (
    {name: f"uci/{name}" for name in UCI}
    | {name: f"arff/regression/{name}.csv.gz" for name in REGRESSION}
    | {name: f"arff/classification/{name}.csv.gz" for name in CLASSIFICATION}
)
"""The file or folder of each table: small tables first."""
SPLITS = (0, 1, 2, 3, 4)
SEED = 0
THREADS = 2
TEST_SHARE = 0.2
FLOOR = 1e-7
LEVEL = 0.9
"""Of the intervals."""
CALIBRATION_SHARE = 0.2
LIMIT = 900.0
NEIGHBOURS = (1, 2, 3, 4, 5, 7, 10, 15, 20, 30, 50)
MISSING = "missing"
PACKAGES = ("catboost", "faiss-cpu", "lightgbm", "numpy", "pandas", "pytabkit", "scikit-learn", "torch", "xrfm")
THREAD_VARIABLES = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS", "LOKY_MAX_CPU_COUNT")
ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "benchmarks" / "results" / "tables" / "results.jsonl"
MODULE = "benchmarks/tables.py"
NOT_INSTALLED = 3
"""Exit code of a cell whose method cannot be imported."""

Array = NDArray[Any]
Floats = NDArray[np.float64]
Key = tuple[str, int, str]
"""Table, split, method."""
Record = dict[str, Any]


# Tables


class Rows(NamedTuple):
    """Training and test rows. y is standardised, or the numbers of the classes."""

    kind: Kind
    frame: pd.DataFrame
    y: Array
    test_frame: pd.DataFrame
    test_y: Array


def kind_of(table: str) -> Kind:
    return "classification" if table in CLASSIFICATION else "regression"


def needed_files(table: str) -> list[str]:
    file = FILES[table]
    return [file] if file.endswith(".gz") else [f"{file}/data.csv.gz", f"{file}/test_mask.csv.gz"]


def read_rows(data: Path, table: str, split: int) -> Rows:
    """The rows of one split."""
    kind, (first, *mask) = kind_of(table), needed_files(table)
    frame = pd.read_csv(data / first, header=None if mask else 0, keep_default_na=False, na_values=[""])
    frame.columns = [f"x{column}" if mask else str(column) for column in frame.columns]
    y = frame.pop(frame.columns[-1]).to_numpy()
    if kind == "classification":
        y = np.unique(y.astype(str), return_inverse=True)[1]
    if mask:
        test = pd.read_csv(data / mask[0], header=None).to_numpy()[:, split] > 0
        train, test = np.flatnonzero(~test), np.flatnonzero(test)
    else:
        classes = y if kind == "classification" else None
        train, test = train_test_split(np.arange(len(y)), test_size=TEST_SHARE, random_state=split, stratify=classes)
    if kind == "regression":
        y = (y - y[train].mean()) / y[train].std()
    parts = [frame.iloc[rows].reset_index(drop=True) for rows in (train, test)]
    return Rows(kind, parts[0], y[train], parts[1], y[test])


def categories(frame: pd.DataFrame) -> list[str]:
    """The columns that hold words."""
    return [name for name in frame.columns if not pd.api.types.is_numeric_dtype(frame[name])]


# What methods need before them


class Fill(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Missing cells: the column's median, or a category of their own."""

    def __init__(self, numbers: bool = True, indicators: bool = False) -> None:
        self.numbers = numbers
        self.indicators = indicators

    def fit(self, frame: pd.DataFrame, y: Any = None) -> Self:
        self.words_ = categories(frame)
        numbers = frame.drop(columns=self.words_)
        self.medians_ = numbers.median().fillna(0.0)
        self.incomplete_ = [name for name in numbers if numbers[name].isna().any()]
        return self

    def transform(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = frame.copy()
        for name in self.words_:
            made[name] = made[name].astype(object).where(made[name].notna(), MISSING).astype(str)
        if self.numbers:
            made[self.medians_.index] = made[self.medians_.index].fillna(self.medians_).astype(float)
        if self.indicators:
            made = made.assign(**{f"{name} {MISSING}": frame[name].isna().astype(float) for name in self.incomplete_})
        return made


class AsCategory(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Words as pandas' categories, those of the training rows; in columns of too many, their numbers.

    A column without a single value is left out: HistGradientBoosting fails on it.
    """

    def __init__(self, at_most: float = math.inf) -> None:
        self.at_most = at_most

    def fit(self, frame: pd.DataFrame, y: Any = None) -> Self:
        self.columns_ = [name for name in frame if frame[name].notna().any()]
        frame = frame[self.columns_]
        self.values_ = {name: np.unique(frame[name].dropna().astype(str)) for name in categories(frame)}
        return self

    def transform(self, frame: pd.DataFrame) -> pd.DataFrame:
        made = frame[self.columns_].copy()
        for name, values in self.values_.items():
            column = pd.Categorical(frame[name].astype(object), categories=list(values))
            made[name] = column if len(values) <= self.at_most else column.codes.astype(float)
        return made


def as_numbers(*, scaled: bool) -> Any:
    """Medians and indicators for missing cells, words one-hot; numbers standardised if wanted."""
    fill = SimpleImputer(strategy="median", add_indicator=True, keep_empty_features=True)
    numbers = make_pipeline(fill, StandardScaler()) if scaled else fill
    words = make_pipeline(Fill(), OneHotEncoder(handle_unknown="ignore", sparse_output=False))
    return make_column_transformer(
        (numbers, make_column_selector(dtype_include="number")),
        (words, make_column_selector(dtype_exclude="number")),
    )


class NeighboursByCV(BaseEstimator):  # type: ignore[misc]
    """k nearest neighbours: k, weights and scale of the columns by five-fold cross-validation."""

    def __init__(self, kind: Kind, threads: int) -> None:
        self.kind = kind
        self.threads = threads

    def fit(self, points: Floats, y: Array) -> Self:
        self.value_ = y[:, None] if self.kind == "regression" else np.eye(y.max() + 1)[y]
        folds = (KFold if self.kind == "regression" else StratifiedKFold)(5, shuffle=True, random_state=SEED)
        parts = list(folds.split(points, y))
        self.errors_: dict[tuple[str, int, bool], float] = {}
        for name, make in self.scales().items():
            for train, test in parts:
                scale = make.fit(points[train])
                found = self.found(scale.transform(points[train]), scale.transform(points[test]))
                for (k, near), mean in self.means(self.value_[train], *found):
                    self.errors_[name, k, near] = self.errors_.get((name, k, near), 0.0) + self.error(mean, y[test])
        self.best_ = min(self.errors_, key=self.errors_.__getitem__)
        self.scale_ = self.scales()[self.best_[0]].fit(points)
        self.points_ = self.scale_.transform(points)
        return self

    def scales(self) -> dict[str, Any]:
        normal = QuantileTransformer(output_distribution="normal", random_state=SEED)
        plain = QuantileTransformer(random_state=SEED)
        return {"standard": StandardScaler(), "rank": plain, "normal": normal}

    def found(self, points: Floats, queries: Floats) -> tuple[Floats, Array]:
        count = min(max(NEIGHBOURS), len(points))
        distance, index = NearestNeighbors(n_neighbors=count, n_jobs=self.threads).fit(points).kneighbors(queries)
        return distance, index

    def means(self, value: Floats, distance: Floats, index: Array) -> Iterator[tuple[tuple[int, bool], Floats]]:
        """The prediction for each k and for uniform weights and those by 1/distance."""
        with np.errstate(divide="ignore"):
            inverse = 1 / distance
        exact = np.isinf(inverse)
        inverse = np.where(exact.any(axis=1, keepdims=True), exact, inverse)
        for near, weight in ((False, np.ones_like(inverse)), (True, inverse)):
            sums = np.cumsum(weight[..., None] * value[index], axis=1)
            totals = np.cumsum(weight, axis=1)[..., None]
            for k in NEIGHBOURS:
                if k <= index.shape[1]:
                    yield (k, near), sums[:, k - 1] / totals[:, k - 1]

    def error(self, mean: Floats, y: Array) -> float:
        return float(np.square(mean[:, 0] - y).sum()) if self.kind == "regression" else len(y) * safe_log_loss(y, mean)

    def predict_proba(self, points: Floats) -> Floats:
        found = self.found(self.points_, self.scale_.transform(points))
        return dict(self.means(self.value_, *found))[self.best_[1:]]

    def predict(self, points: Floats) -> Floats:
        return self.predict_proba(points)[:, 0]


# Methods: a function of kind and threads makes an estimator of frames; it imports what it needs


def mean_model(kind: Kind, threads: int) -> Any:
    return DummyRegressor() if kind == "regression" else DummyClassifier(strategy="prior")


def linear_by_cv(kind: Kind, threads: int) -> Any:
    if kind == "regression":
        model: Any = RidgeCV(np.logspace(-3, 5, 17))
    else:
        model = LogisticRegressionCV(
            l1_ratios=(0.0,),
            cv=StratifiedKFold(5, shuffle=True, random_state=SEED),
            scoring="neg_log_loss",
            max_iter=1000,
            use_legacy_attributes=False,
            n_jobs=threads,
        )
    return make_pipeline(as_numbers(scaled=True), model)


def neighbours_by_cv(kind: Kind, threads: int) -> Any:
    return make_pipeline(as_numbers(scaled=False), NeighboursByCV(kind, threads))


def neighbours(kind: Kind, threads: int) -> Any:
    """scikit-learn's defaults: five neighbours, columns as they are."""
    model = KNeighborsRegressor if kind == "regression" else KNeighborsClassifier
    return make_pipeline(as_numbers(scaled=False), model(n_jobs=threads))


def histogram_boosting(kind: Kind, threads: int) -> Any:
    """At most 255 categories a column, its limit; it takes missing cells."""
    model = HistGradientBoostingRegressor if kind == "regression" else HistGradientBoostingClassifier
    return make_pipeline(AsCategory(255), model(random_state=SEED))


def lightgbm(kind: Kind, threads: int) -> Any:
    """It takes categories and missing cells, but no name of a column with brackets."""
    from lightgbm import LGBMClassifier, LGBMRegressor

    model = LGBMRegressor if kind == "regression" else LGBMClassifier
    plain = FunctionTransformer(lambda frame: frame.set_axis([f"x{index}" for index in range(frame.shape[1])], axis=1))
    return make_pipeline(AsCategory(), plain, model(random_state=SEED, n_jobs=threads, verbose=-1))


class CatBoost(BaseEstimator):  # type: ignore[misc]
    """It takes words, which are named to it, and missing numbers."""

    def __init__(self, kind: Kind, threads: int, **settings: Any) -> None:
        from catboost import CatBoostClassifier, CatBoostRegressor

        model = CatBoostRegressor if kind == "regression" else CatBoostClassifier
        self.model = model(random_seed=SEED, thread_count=threads, verbose=False, allow_writing_files=False, **settings)

    def fit(self, frame: pd.DataFrame, y: Array) -> Self:
        self.fill_ = Fill(numbers=False).fit(frame)
        self.model.fit(self.fill_.transform(frame), y, cat_features=categories(frame))
        return self

    def predict(self, frame: pd.DataFrame) -> Floats:
        return np.asarray(self.model.predict(self.fill_.transform(frame)))

    def predict_proba(self, frame: pd.DataFrame) -> Floats:
        return np.asarray(self.model.predict_proba(self.fill_.transform(frame)))


def nadaraya_watson(kind: Kind, threads: int) -> Any:
    from regard import NadarayaWatson, NadarayaWatsonClassifier

    return make_pipeline(Fill(), NadarayaWatson() if kind == "regression" else NadarayaWatsonClassifier())


def pytabkit(name: str) -> Callable[[Kind, int], Any]:
    """A method of pytabkit, which refuses missing numbers: medians and indicators. It stops by a fifth of the rows."""

    def make(kind: Kind, threads: int) -> Any:
        import pytabkit

        settings: dict[str, Any] = {"random_state": SEED, "n_threads": threads, "device": "cpu"}
        if kind == "classification":
            settings["val_metric_name"] = "cross_entropy"
            if name == "RealMLP_TD":
                settings["use_ls"] = False  # the authors' advice for log loss
        model = getattr(pytabkit, f"{name}_{'Regressor' if kind == 'regression' else 'Classifier'}")
        return make_pipeline(Fill(indicators=True), model(**settings))

    return make


def attention(effort: str) -> Callable[[Kind, int], Any]:
    """Ours; it takes words and missing cells."""

    def make(kind: Kind, threads: int) -> Any:
        import regard

        model = getattr(regard, "AttentionRegressor" if kind == "regression" else "AttentionClassifier")
        return model(effort=effort, random_state=SEED, n_jobs=threads)

    return make


EFFORTS = ("low", "medium", "high")
BOOSTERS = ("CatBoost", "LightGBM", "HGB", "CatBoost_TD", "LGBM_TD")
METHODS: dict[str, Callable[[Kind, int], Any]] = {
    **{f"Attention-{effort}": attention(effort) for effort in EFFORTS},
    "NadarayaWatson": nadaraya_watson,
    "CatBoost": CatBoost,
    "LightGBM": lightgbm,
    "HGB": histogram_boosting,
    **{name: pytabkit(name) for name in ("CatBoost_TD", "LGBM_TD", "RealMLP_TD", "TabM_D", "TabR_S_D", "XRFM_D")},
    "kNN-CV": neighbours_by_cv,
    "kNN": neighbours,
    "linear-CV": linear_by_cv,
    "mean": mean_model,
}


# Intervals: `predict` gives two columns, lower and upper


class AttentionInterval(BaseEstimator):  # type: ignore[misc]
    """Ours, calibrated by itself."""

    def __init__(self, effort: str, threads: int) -> None:
        self.model = attention(effort)("regression", threads)

    def fit(self, frame: pd.DataFrame, y: Array) -> Self:
        self.model.fit(frame, y)
        return self

    def predict(self, frame: pd.DataFrame) -> Floats:
        return np.column_stack(self.model.predict(frame, interval=LEVEL)[1:])


class CatBoostQuantiles(CatBoost):
    """Both quantiles by one model, as they come; put in order where they cross."""

    def __init__(self, kind: Kind, threads: int) -> None:
        tail = (1 - LEVEL) / 2
        super().__init__(kind, threads, loss_function=f"MultiQuantile:alpha={tail:.6g},{1 - tail:.6g}")

    def predict(self, frame: pd.DataFrame) -> Floats:
        return np.sort(super().predict(frame), axis=1)


class Conformal(BaseEstimator):  # type: ignore[misc]
    """Split conformal: the model from four fifths of the rows, the width from the residuals of the others."""

    def __init__(self, model: Any) -> None:
        self.model = model

    def fit(self, frame: pd.DataFrame, y: Array) -> Self:
        train, rest = train_test_split(np.arange(len(y)), test_size=CALIBRATION_SHARE, random_state=SEED)
        self.model.fit(frame.iloc[train], y[train])
        residuals = np.sort(np.abs(y[rest] - self.model.predict(frame.iloc[rest])))
        rank = math.ceil(LEVEL * (len(rest) + 1))
        self.width_ = float(residuals[min(rank, len(rest)) - 1])
        return self

    def predict(self, frame: pd.DataFrame) -> Floats:
        centre = self.model.predict(frame)
        return np.column_stack([centre - self.width_, centre + self.width_])


def attention_interval(effort: str) -> Callable[[Kind, int], Any]:
    return lambda kind, threads: AttentionInterval(effort, threads)


INTERVALS: dict[str, Callable[[Kind, int], Any]] = {
    **{f"Attention-{effort}-interval": attention_interval(effort) for effort in EFFORTS},
    "CatBoost-quantiles": CatBoostQuantiles,
    "HGB-conformal": lambda kind, threads: Conformal(histogram_boosting(kind, threads)),
}


# One cell


def safe_log_loss(y: Array, probability: Floats) -> float:
    probability = np.clip(np.asarray(probability, dtype=np.float64), FLOOR, None)
    probability /= probability.sum(axis=1, keepdims=True)
    return float(log_loss(y, probability, labels=np.arange(probability.shape[1])))


def metrics(rows: Rows, predicted: Floats) -> dict[str, float]:
    """RMSE; log loss and accuracy; of intervals coverage and length."""
    if not np.isfinite(predicted).all():
        raise ValueError(f"{np.sum(~np.isfinite(predicted))} predictions are not finite")
    if rows.kind == "classification":
        accuracy = accuracy_score(rows.test_y, predicted.argmax(axis=1))
        return {"log_loss": safe_log_loss(rows.test_y, predicted), "accuracy": float(accuracy)}
    if predicted.ndim == 1:
        return {"rmse": float(root_mean_squared_error(rows.test_y, predicted))}
    lower, upper = predicted.T
    inside = (lower <= rows.test_y) & (rows.test_y <= upper)
    return {"coverage": float(inside.mean()), "length": float((upper - lower).mean())}


def cpu_seconds() -> float:
    """Of this process and of its children that have ended."""
    usages = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def measure(data: Path, key: Key, threads: int) -> Record:
    """Fit and predict one cell in this process."""
    table, split, method = key
    rows = read_rows(data, table, split)
    try:
        model = (METHODS | INTERVALS)[method](rows.kind, threads)
    except (ImportError, AttributeError) as error:
        print(error)
        sys.exit(NOT_INSTALLED)
    clocks = [(cpu_seconds(), time.perf_counter())]
    with warnings.catch_warnings(), threadpool_limits(threads):
        warnings.simplefilter("ignore")  # unseen categories, columns without a name: each method has its own
        model.fit(rows.frame, rows.y)
        clocks.append((cpu_seconds(), time.perf_counter()))
        predict = model.predict_proba if rows.kind == "classification" else model.predict
        predicted = np.asarray(predict(rows.test_frame), dtype=np.float64)
        clocks.append((cpu_seconds(), time.perf_counter()))
    if rows.kind == "regression" and method in METHODS:
        predicted = predicted.reshape(len(rows.test_y))
    spent = np.diff(clocks, axis=0).round(4).tolist()
    return {
        "metrics": metrics(rows, predicted),
        "cpu_seconds": {"fit": spent[0][0], "predict": spent[1][0]},
        "wall_seconds": {"fit": spent[0][1], "predict": spent[1][1]},
        "peak_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024,
        "rows": [len(rows.y), len(rows.test_y)],
        "columns": rows.frame.shape[1],
        "versions": versions(),
    }


def versions() -> dict[str, str]:
    """Of the packages that are installed, and the commit of regard."""
    found = {}
    for name in (*PACKAGES, "regard"):
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    spec = importlib.util.find_spec("regard")
    if spec and spec.origin:
        command = ["git", "-C", str(Path(spec.origin).parent), "rev-parse", "--short", "HEAD"]
        commit = subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
        found["regard"] = f"{found.get('regard', '')} {commit}".strip()
    return found


def run_cell(key: Key, options: argparse.Namespace, cpu: str) -> Record:
    """Measure one cell in a process of its own. What fails, or takes too long, is recorded as failed."""
    begin, before = time.perf_counter(), cpu_seconds()
    head = dict(zip(("table", "split", "method"), key, strict=True)) | {"threads": options.threads, "cpu": cpu}
    environment = os.environ | dict.fromkeys(THREAD_VARIABLES, str(options.threads))
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "cell.json"
        command = [sys.executable, "-m", "benchmarks.tables", "--data", str(options.data.resolve())]
        command += ["--threads", str(options.threads), "--cell", *map(str, key), str(out)]
        with open(Path(folder) / "log", "w+", errors="replace") as log:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT, start_new_session=True
            )
            try:
                process.wait(options.limit)
                log.seek(0)
                said = log.read().strip().splitlines()
                reason = f"exit {process.returncode}: {said[-1] if said else 'no message'}"[:300]
            except subprocess.TimeoutExpired:
                reason = f"limit of {options.limit:g} s"
            finally:
                end_group(process)
        if process.returncode == 0 and out.exists():
            found: Record = json.loads(out.read_text())
            return head | {"status": "ok"} | found
    status = "not installed" if process.returncode == NOT_INSTALLED else "failed"
    wall, cpu_spent = time.perf_counter() - begin, cpu_seconds() - before
    seconds = {"cpu_seconds": {"all": round(cpu_spent, 2)}, "wall_seconds": {"all": round(wall, 2)}}
    return head | {"status": status, "reason": reason} | seconds


def end_group(process: "subprocess.Popen[bytes]") -> None:
    """End a process and what it started, if it is still there."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def read_results(file: Path) -> dict[Key, Record]:
    """The last line of each cell."""
    lines = file.read_text().splitlines() if file.exists() else []
    records = [json.loads(line) for line in lines if line.strip()]
    return {(record["table"], record["split"], record["method"]): record for record in records}


def run(options: argparse.Namespace) -> None:
    """Run the cells that are asked for and not there yet."""
    from benchmarks.harness import machine, note  # imports torch, which most cells do without

    keys = [
        (table, split, method) for split in options.splits for method in options.methods for table in options.tables
    ]
    done = read_results(options.results)
    again = {"none": (), "failed": ("failed",), "all": ("failed", "ok")}[options.again]
    keys = [key for key in keys if key not in done or done[key]["status"] in again]
    cpu = machine()["cpu"]
    options.results.parent.mkdir(parents=True, exist_ok=True)
    left_out: set[str] = set()
    for number, key in enumerate(keys, 1):
        if key[2] in left_out:
            continue
        record = run_cell(key, options, cpu)
        if record["status"] == "not installed":
            left_out.add(key[2])
        else:
            with options.results.open("a") as file:
                file.write(json.dumps(record) + "\n")
        found = record.get("metrics", {record["status"]: record.get("reason")})
        text = ", ".join(f"{name} {x:.4f}" if isinstance(x, float) else f"{name}: {x}" for name, x in found.items())
        seconds = sum(record["cpu_seconds"].values())
        note(f"{number}/{len(keys)}  {key[0]} {key[1]} {key[2]}: {text}, {seconds:.1f} s CPU")


# The report


class Summary(NamedTuple):
    """What a table's methods reached, mean of the splits that all of them have; infinite if one failed."""

    table: str
    splits: list[int]
    value: dict[str, dict[str, float]]  # by metric, by method
    cpu: dict[str, float]  # seconds of a split


def summarise(
    records: Mapping[Key, Record], table: str, methods: Sequence[str], splits: Sequence[int]
) -> Summary | None:
    """None if no split has been run."""
    have = {method: {split for split in splits if (table, split, method) in records} for method in methods}
    have = {method: ran for method, ran in have.items() if ran}
    common = sorted(set.intersection(*have.values())) if have else []
    if not common:
        return None
    cells = {method: [records[table, split, method] for split in common] for method in have}
    names = sorted({name for ran in cells.values() for cell in ran for name in cell.get("metrics", ())})
    value = {
        name: {method: float(np.mean([metric(cell, name) for cell in ran])) for method, ran in cells.items()}
        for name in names
    }
    cpu = {method: float(np.mean([sum(cell["cpu_seconds"].values()) for cell in ran])) for method, ran in cells.items()}
    return Summary(table, common, value, cpu)


def metric(cell: Record, name: str) -> float:
    return float(cell["metrics"][name]) if cell["status"] == "ok" else math.inf


def values_table(title: str, name: str, found: Sequence[Summary], methods: Sequence[str]) -> Table:
    """A row per table, a column per method; the best in bold."""
    made = Table(box=box.MARKDOWN, title=title, title_justify="left")
    for heading in ("table", "splits"):
        made.add_column(heading, no_wrap=True)
    for method in methods:
        made.add_column(method, justify="right", no_wrap=True)
    for one in found:
        values = one.value.get(name, {})
        best = (max if name == "accuracy" else min)(values.values(), default=math.nan)
        cells = []
        for method in methods:
            value = values.get(method)
            text = "–" if value is None else "failed" if math.isinf(value) else f"{value:.3f}"
            cells.append(f"**{text}**" if value == best and name in ("rmse", "log_loss", "accuracy") else text)
        made.add_row(one.table, ",".join(map(str, one.splits)), *cells)
    return made


def ranks_table(title: str, name: str, found: Sequence[Summary], methods: Sequence[str]) -> Table:
    """Mean rank, ratios to the best and to the best booster, and seconds. Ratios leave failures out."""
    from scipy.stats import rankdata

    ranks: dict[str, list[float]] = {method: [] for method in methods}
    ratios: dict[str, list[float]] = {method: [] for method in methods}
    boosted: dict[str, list[tuple[float, str]]] = {method: [] for method in methods}
    for one in found:
        values = one.value.get(name, {})
        best = min(values.values(), default=math.inf)
        booster = min((values[method] for method in BOOSTERS if method in values), default=math.nan)
        for method, rank in zip(values, rankdata(list(values.values())), strict=True):
            ranks[method].append(float(rank))
            if math.isfinite(values[method]):
                ratios[method].append(values[method] / best)
                boosted[method].append((values[method] / booster, one.table))
    made = Table(box=box.MARKDOWN, title=title, title_justify="left")
    made.add_column("method", no_wrap=True)
    for heading in ("tables", "failed", "mean rank", "ratio to best", "worst to best booster", "on", "CPU s a split"):
        made.add_column(heading, justify="right", no_wrap=True)
    for method in sorted((m for m in methods if ranks[m]), key=lambda m: float(np.mean(ranks[m]))):
        ratio = math.exp(np.log(ratios[method]).mean()) if ratios[method] else math.inf
        worst, on = max(boosted[method], default=(math.inf, ""))
        cpu = sum(one.cpu[method] for one in found if method in one.cpu)
        failed = len(ranks[method]) - len(ratios[method])
        numbers = (f"{np.mean(ranks[method]):.2f}", f"{ratio:.3f}", f"{worst:.3f}", on, f"{cpu:,.0f}")
        made.add_row(method, str(len(ranks[method])), str(failed), *numbers)
    return made


def intervals_table(found: Sequence[Summary], methods: Sequence[str]) -> Table:
    """Coverage and length over all tables."""
    made = Table(box=box.MARKDOWN, title=f"{LEVEL:.0%} intervals, all tables", title_justify="left")
    for heading in ("method", "tables", "coverage", "least", "on", "length", "CPU s a split"):
        made.add_column(heading, no_wrap=True)
    for method in methods:
        ran = [one for one in found if math.isfinite(one.value["coverage"].get(method, math.inf))]
        covered = [(one.value["coverage"][method], one.table) for one in ran]
        if covered:
            length = np.mean([one.value["length"][method] for one in ran])
            least, on = min(covered)
            mean = np.mean([coverage for coverage, _ in covered])
            cpu = sum(one.cpu[method] for one in found if method in one.cpu)
            made.add_row(method, str(len(covered)), f"{mean:.3f}", f"{least:.3f}", on, f"{length:.3f}", f"{cpu:,.0f}")
    return made


def report(options: argparse.Namespace) -> None:
    """Print what has been run."""
    records = read_results(options.results)
    out = Console(width=400, highlight=False)
    for kind in ("regression",) if options.intervals else ("regression", "classification"):
        tables = [table for table in options.tables if kind_of(table) == kind]
        found = [one for table in tables if (one := summarise(records, table, options.methods, options.splits))]
        methods = [method for method in options.methods if any(method in one.cpu for one in found)]
        if not found:
            continue
        threads = sorted({record["threads"] for record in records.values()})
        counts = sorted({len(one.splits) for one in found})
        splits = f"mean of {'-'.join(map(str, sorted({counts[0], counts[-1]})))} splits"
        out.print(f"\n{kind}: {len(found)} tables, {splits}, threads {', '.join(map(str, threads))}\n")
        if options.intervals:
            for name, title in (("coverage", "coverage"), ("length", "mean length in deviations")):
                out.print(values_table(f"{LEVEL:.0%} intervals, {title}", name, found, methods))
            out.print(intervals_table(found, methods))
            continue
        main_metric = "rmse" if kind == "regression" else "log_loss"
        for name, title in {"rmse": "RMSE in deviations", "log_loss": "log loss", "accuracy": "accuracy"}.items():
            if any(name in one.value for one in found):
                out.print(values_table(f"{title}, {splits}", name, found, methods))
        out.print(ranks_table(f"{kind}, by {main_metric}, {splits}", main_metric, found, methods))


def chosen(text: str, names: Iterable[str], what: str) -> list[str]:
    """Names from a list with commas; all for an empty one."""
    known = list(names)
    asked = [part.strip() for part in text.split(",")] if text else known
    if wrong := [part for part in asked if part not in known]:
        raise argparse.ArgumentTypeError(f"{what} {', '.join(wrong)} is not one of {', '.join(known)}")
    return asked


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.tables")
    parser.add_argument("--data", metavar="FOLDER", type=Path, help=f"with uci and arff, see the docstring of {MODULE}")
    parser.add_argument("--only", metavar="TABLES", default="", help="run only these tables, with commas")
    parser.add_argument("--methods", metavar="NAMES", default="", help="only these methods, with commas")
    parser.add_argument("--splits", metavar="NUMBERS", default="", help="only these splits of 0 to 4, with commas")
    parser.add_argument("--intervals", action="store_true", help="90 %% intervals in place of predictions")
    parser.add_argument("--threads", type=int, default=THREADS, help="of each method")
    parser.add_argument("--limit", type=float, default=LIMIT, help="seconds of a cell")
    parser.add_argument("--again", choices=("none", "failed", "all"), default="none", help="cells to run once more")
    parser.add_argument("--results", metavar="FILE", type=Path, default=RESULTS, help="where the cells are")
    parser.add_argument("--report", action="store_true", help="print the tables of what has been run; runs nothing")
    parser.add_argument("--cell", nargs=4, metavar=("TABLE", "SPLIT", "METHOD", "FILE"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    tables = [table for table in FILES if not options.intervals or kind_of(table) == "regression"]
    try:
        options.tables = chosen(options.only, tables, "table")
        options.methods = chosen(options.methods, INTERVALS if options.intervals else METHODS, "method")
        options.splits = [int(split) for split in chosen(options.splits, map(str, SPLITS), "split")]
    except argparse.ArgumentTypeError as error:
        parser.error(str(error))
    if not options.report and not options.cell:
        from benchmarks.harness import missing_data

        files = [file for table in options.tables for file in needed_files(table)]
        if missing := missing_data(options.data, files, MODULE):
            parser.error(missing)
    return options


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse(arguments)
    if options.cell:
        table, split, method, file = options.cell
        Path(file).write_text(json.dumps(measure(options.data, (table, int(split), method), options.threads)))
    elif options.report:
        report(options)
    else:
        run(options)


if __name__ == "__main__":
    main()
