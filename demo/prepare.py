"""Join flights with weather and planes, set whole days aside for validation, and write both parts as Parquet.

This is the job that produces the data: a separate process that shares only the schema with training.
"""

from __future__ import annotations

import shutil

import pandas as pd

from demo.fetch import TRAIN, VALIDATION, fetch
from parquet_loader import write_dataset
from schemas.flights import FLIGHTS, WEEKDAYS

VALIDATION_EVERY_DAYS = 5


def join(flights: pd.DataFrame, weather: pd.DataFrame, planes: pd.DataFrame) -> pd.DataFrame:
    """Return one row for each flight that arrived: the columns of `FLIGHTS` and more, with nulls from the joins."""
    weather = weather.drop(columns=["year", "month", "day", "hour"])
    planes = planes[["tailnum", "year", "type", "seats", "engine"]]
    planes = planes.rename(columns={"year": "plane_year", "type": "plane_type", "seats": "plane_seats"})

    arrived = flights.dropna(subset=["arr_delay"])
    rows = arrived.merge(weather, on=["origin", "time_hour"], how="left").merge(planes, on="tailnum", how="left")
    dates = pd.to_datetime(rows[["year", "month", "day"]])
    departure, arrival = (clock // 100 * 60 + clock % 100 for clock in (rows.sched_dep_time, rows.sched_arr_time))
    return rows.assign(
        day_of_year=dates.dt.day_of_year,
        weekday=dates.dt.day_of_week.map(dict(enumerate(WEEKDAYS))),
        sched_dep_minute=departure,
        sched_minutes=(arrival - departure) % (24 * 60),
    )


def main() -> None:
    """Fetch, join, split and write.

    Whole days are set aside, not single flights: flights of one day share its weather and its delays, so a model that
    has seen the other flights of a day would look better than it is.
    """
    folder = fetch()
    flights, weather, planes = (pd.read_csv(folder / name) for name in ("flights.csv.zip", "weather.csv", "planes.csv"))
    rows = join(flights, weather, planes)
    lost = len(flights) - len(rows)
    print(f"{len(flights):,} flights; {lost:,} without arr_delay (cancelled or diverted) are dropped")

    held_out = rows.day_of_year % VALIDATION_EVERY_DAYS == 0
    for path, part in ((TRAIN, rows[~held_out]), (VALIDATION, rows[held_out])):
        shutil.rmtree(path, ignore_errors=True)
        write_dataset(part[FLIGHTS.arrow_schema().names], path, FLIGHTS)
        print(f"{path}: {len(part):,} flights of {part.day_of_year.nunique()} days")


if __name__ == "__main__":
    main()
