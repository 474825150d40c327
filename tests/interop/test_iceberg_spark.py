"""Iceberg tables that Spark writes: of every snapshot, branch and tag the rows are those that Spark reads.

Needs Iceberg's jar for Spark: ``ICEBERG_SPARK_JARS`` holds the paths, separated by commas.
"""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from parquet_loader import IcebergSource, ParquetDataset
from tests.source.tables.iceberg_rows import counted, delivered

pytestmark = [
    pytest.mark.spark,
    pytest.mark.timeout(900),
    pytest.mark.skipif("ICEBERG_SPARK_JARS" not in os.environ, reason="ICEBERG_SPARK_JARS is not set"),
]

_COLUMNS = ["id", "a", "b", "f", "p", "q", "d", "day", "s.x", "s.xx", "s.y", "s.z"]

_SPARK = """
    import json, os, sys
    from pyspark.sql import SparkSession

    version, warehouse, jars = sys.argv[1:]
    catalog = "spark.sql.catalog.local"
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "hadoop")
        .config(f"{catalog}.warehouse", warehouse)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "2")
        .getOrCreate()
    )
    name = "local.db.t"
    for statement in '''
        CREATE TABLE {name} (id bigint, a int, f float, p string, s struct<x:int, y:string>, d decimal(9,2), day date)
            USING iceberg PARTITIONED BY (p) TBLPROPERTIES ('format-version'='{version}',
            'write.delete.mode'='merge-on-read', 'write.update.mode'='merge-on-read',
            'write.merge.mode'='merge-on-read');
        INSERT INTO {name} SELECT id, cast(id * 2 as int), cast(id as float) / 2,
            CASE WHEN id % 5 = 0 THEN NULL WHEN id % 5 = 1 THEN 'a b/c=d%?é' ELSE cast(id % 5 as string) END,
            named_struct('x', cast(id as int), 'y', cast(id as string)), cast(id as decimal(9,2)),
            date_add(date'2020-01-01', cast(id as int)) FROM range(0, 60);
        DELETE FROM {name} WHERE id % 7 = 3;
        UPDATE {name} SET a = -1 WHERE id % 11 = 0;
        ALTER TABLE {name} RENAME COLUMN a TO b;
        ALTER TABLE {name} ADD COLUMN a string;
        ALTER TABLE {name} ALTER COLUMN b TYPE bigint;
        ALTER TABLE {name} ALTER COLUMN f TYPE double;
        ALTER TABLE {name} ALTER COLUMN d TYPE decimal(18,2);
        ALTER TABLE {name} RENAME COLUMN s.x TO xx;
        ALTER TABLE {name} ADD COLUMN s.z int;
        ALTER TABLE {name} ADD PARTITION FIELD bucket(4, id);
        INSERT INTO {name} SELECT id, id, 1.5D, 'new', named_struct('xx', 1, 'y', 'q', 'z', 5), 1.25,
            date'2021-01-01', 'x' FROM range(60, 90);
        MERGE INTO {name} t USING (SELECT id FROM range(80, 100)) u ON t.id = u.id
            WHEN MATCHED AND t.id % 2 = 0 THEN DELETE WHEN MATCHED THEN UPDATE SET a = 'merged'
            WHEN NOT MATCHED THEN INSERT (id, b, f, p, s, d, day, a)
            VALUES (u.id, null, null, 'only', null, null, null, null);
        ALTER TABLE {name} CREATE TAG tagged;
        ALTER TABLE {name} CREATE BRANCH side;
        DELETE FROM {name}.branch_side WHERE id < 20;
        ALTER TABLE {name} DROP COLUMN a;
        ALTER TABLE {name} RENAME COLUMN p TO q;
        CALL local.system.rewrite_data_files(table => 'db.t',
            options => map('min-input-files', '2', 'delete-file-threshold', '1000'));
        DELETE FROM {name} WHERE id = 2;
        DELETE FROM {name} WHERE id = 7;
        INSERT OVERWRITE {name} SELECT * FROM {name} WHERE q = '2';
        DELETE FROM {name} WHERE id = 17 OR id = 22
        '''.split(";"):
        spark.sql(statement.format(name=name, version=version))

    def rows_of(frame):
        return [row.asDict(recursive=True) for row in frame.collect()]

    found = {"main": rows_of(spark.table(name))}
    for ref in ("side", "tagged"):
        found[ref] = rows_of(spark.sql(f"SELECT * FROM {name} VERSION AS OF '{ref}'"))
    for (number,) in spark.sql(f"SELECT snapshot_id FROM {name}.snapshots").collect():
        found[str(number)] = rows_of(spark.read.option("snapshot-id", number).format("iceberg").load(name))
    with open(os.path.join(warehouse, "rows.json"), "w") as file:
        json.dump(found, file, default=str)
"""


@pytest.mark.parametrize("version", [2, 3])
def test_the_rows_of_a_table_are_those_that_spark_reads(tmp_path: Path, version: int) -> None:
    arguments = [str(version), str(tmp_path), os.environ["ICEBERG_SPARK_JARS"]]
    subprocess.run([sys.executable, "-c", textwrap.dedent(_SPARK), *arguments], check=True, timeout=800)
    root = tmp_path / "db" / "t"
    expected: dict[str, list[dict[str, Any]]] = json.loads((tmp_path / "rows.json").read_text())
    assert len(expected) > 12
    for name, rows in expected.items():
        source = IcebergSource(root)
        if name.isdigit():
            source = IcebergSource(root, snapshot_id=int(name))
        elif name != "main":
            source = IcebergSource(root, ref=name)
        assert ParquetDataset(source).num_rows == len(rows)
        flat = [_flat(row) for row in rows]
        columns = [column for column in _COLUMNS if column in flat[0]]
        values = delivered(source, columns)
        assert counted(values) == counted([row[column] for column in columns] for row in flat), name


_MAINTENANCE = """
    import json, os, sys
    from pyspark.sql import SparkSession

    warehouse, jars = sys.argv[1:]
    catalog = "spark.sql.catalog.local"
    spark = (
        SparkSession.builder.master("local[1]")
        .config("spark.jars", jars)
        .config("spark.sql.extensions", "org.apache.iceberg.spark.extensions.IcebergSparkSessionExtensions")
        .config(catalog, "org.apache.iceberg.spark.SparkCatalog")
        .config(f"{catalog}.type", "hadoop")
        .config(f"{catalog}.warehouse", warehouse)
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "1")
        .getOrCreate()
    )
    found = {}
    merge_on_read = ", ".join(f"'write.{what}.mode'='merge-on-read'" for what in ("delete", "update", "merge"))

    def ids(frame):
        return sorted(row[0] for row in frame.select("id").collect())

    def run(table, statements):
        name, known = f"local.db.{table}", found.setdefault(table, {})
        for statement in statements.split(";"):
            spark.sql(statement.format(name=name, table=f"db.{table}", modes=merge_on_read))
        for (number,) in spark.sql(f"SELECT snapshot_id FROM {name}.snapshots").collect():
            known[str(number)] = ids(spark.read.option("snapshot-id", number).format("iceberg").load(name))
        known["main"] = ids(spark.table(name))

    run("upgraded", '''
        CREATE TABLE {name} (id bigint, p string) USING iceberg PARTITIONED BY (p)
            TBLPROPERTIES ('format-version'='1');
        INSERT INTO {name} SELECT id, cast(id % 3 as string) FROM range(30);
        INSERT INTO {name} SELECT id, 'x' FROM range(30, 40);
        ALTER TABLE {name} SET TBLPROPERTIES ('format-version'='2', {modes});
        DELETE FROM {name} WHERE id % 7 = 1;
        INSERT INTO {name} SELECT id, 'y' FROM range(40, 50);
        CALL local.system.rewrite_manifests('{table}');
        DELETE FROM {name} WHERE id % 7 = 2;
        ALTER TABLE {name} SET TBLPROPERTIES ('format-version'='3');
        DELETE FROM {name} WHERE id % 7 = 3;
        CALL local.system.rewrite_manifests('{table}');
        INSERT INTO {name} SELECT id, '1' FROM range(60, 65);
        DELETE FROM {name} WHERE id = 61''')
    run("picked", '''
        CREATE TABLE {name} (id bigint, p string) USING iceberg PARTITIONED BY (p)
            TBLPROPERTIES ('format-version'='2', 'write.wap.enabled'='true', {modes});
        INSERT INTO {name} SELECT id, cast(id % 3 as string) FROM range(30);
        SET spark.wap.id=staged;
        INSERT INTO {name} SELECT id, '0' FROM range(100, 105);
        RESET spark.wap.id;
        DELETE FROM {name} WHERE id % 5 = 0;
        INSERT INTO {name} SELECT id, '2' FROM range(30, 33)''')
    snapshots = spark.sql("SELECT snapshot_id, summary FROM local.db.picked.snapshots ORDER BY committed_at").collect()
    staged = next(number for number, summary in snapshots if summary.get("wap.id"))
    run("picked", f'''
        CALL local.system.cherrypick_snapshot('{{table}}', {staged});
        DELETE FROM {{name}} WHERE id = 101;
        CALL local.system.rewrite_position_delete_files(table => '{{table}}', options => map('rewrite-all', 'true'));
        INSERT INTO {{name}} VALUES (500, '9');
        CALL local.system.rewrite_data_files(table => '{{table}}', options => map('rewrite-all', 'true'));
        DELETE FROM {{name}} WHERE id = 500 or id = 102''')
    run("picked", f'''
        CALL local.system.rollback_to_snapshot('{{table}}', {snapshots[0][0]});
        INSERT INTO {{name}} VALUES (700, '7');
        DELETE FROM {{name}} WHERE id = 3''')
    run("expired", '''
        CREATE TABLE {name} (id bigint, p string) USING iceberg PARTITIONED BY (p)
            TBLPROPERTIES ('format-version'='2', 'commit.manifest.min-count-to-merge'='2', {modes});
        INSERT INTO {name} SELECT id, cast(id % 3 as string) FROM range(30);
        DELETE FROM {name} WHERE id % 5 = 0;
        INSERT INTO {name} SELECT id, '0' FROM range(30, 40);
        DELETE FROM {name} WHERE id % 5 = 1;
        INSERT INTO {name} SELECT id, '1' FROM range(40, 50);
        DELETE FROM {name} WHERE id % 11 = 4;
        CALL local.system.expire_snapshots(table => '{table}', older_than => TIMESTAMP '2100-01-01 00:00:00',
            retain_last => 1);
        INSERT INTO {name} VALUES (90, '0')''')
    with open(os.path.join(warehouse, "rows.json"), "w") as file:
        json.dump(found, file)
"""


def test_a_table_is_read_after_upgrades_cherry_picks_rollbacks_and_rewrites(tmp_path: Path) -> None:
    """Manifests that Spark writes again keep the sequence numbers and partitions that are compared."""
    arguments = [str(tmp_path), os.environ["ICEBERG_SPARK_JARS"]]
    subprocess.run([sys.executable, "-c", textwrap.dedent(_MAINTENANCE), *arguments], check=True, timeout=800)
    expected: dict[str, dict[str, list[int]]] = json.loads((tmp_path / "rows.json").read_text())
    for table, versions in expected.items():
        for name, ids in versions.items():
            number = None if name == "main" else int(name)
            source = IcebergSource(tmp_path / "db" / table, snapshot_id=number)
            assert sorted(row[0] for row in delivered(source, ["id"])) == ids, (table, name)
            assert ParquetDataset(source).num_rows == len(ids)


def _flat(row: dict[str, Any]) -> dict[str, Any]:
    members = row["s"] or dict.fromkeys(("xx", "y", "z"))
    days = {"day": None if row["day"] is None else _days(row["day"])}
    price = {"d": None if row["d"] is None else float(row["d"])}
    return {**row, **days, **price, **{f"s.{name}": value for name, value in members.items()}}


def _days(text: str) -> int:
    return (dt.date.fromisoformat(text) - dt.date(1970, 1, 1)).days
