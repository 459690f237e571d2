"""Asks an engine the questions of sql/tables/questions.sql, and prints the answers as JSON.

    python3 ask_tables.py duckdb|compacted|spark FOLDER SQL [STATEMENTS]

With "compacted", DuckDB makes the compact tables first and reads them.

FOLDER has the tables, SQL is the folder sql/tables. The answer is an object: the number of the question, as in "1" or, if
it has several statements, "10.2", with a list of rows, each an object. Further statements count from "more.1" on.
"""

import decimal
import json
import os
import pathlib
import re
import sys


def statements(text):
    """The statements of a file, without comments."""
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("--")]
    return [statement.strip() for statement in "\n".join(lines).split(";") if statement.strip()]


def questions(text):
    """The statements by the number of their question."""
    parts = re.split(r"^-- (\d+)\. ", text, flags=re.MULTILINE)
    for number, part in zip(parts[1::2], parts[2::2]):
        all = statements(part.split("\n", 1)[1])
        for place, statement in enumerate(all):
            yield (number if len(all) == 1 else f"{number}.{place + 1}"), statement


def duckdb(folder, sql, files=("duckdb.sql", "views.sql")):
    import duckdb

    os.chdir(folder)
    connection = duckdb.connect()
    for file in files:
        for statement in statements((sql / file).read_text()):
            connection.execute(statement)

    def ask(statement):
        answer = connection.execute(statement)
        names = [column[0] for column in answer.description]
        return [dict(zip(names, row)) for row in answer.fetchall()]

    return ask


def compacted(folder, sql):
    duckdb(folder, sql, ("duckdb.sql", "compact.sql"))
    return duckdb(folder, sql, ("compacted.sql", "views.sql"))


def spark(folder, sql):
    from pyspark.sql import SparkSession

    # Spark makes a folder of its own where it runs.
    os.chdir(folder)
    settings = {
        "tables": str(folder),
        "spark.sql.legacy.parquet.nanosAsLong": "true",
        "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
        "spark.sql.shuffle.partitions": "1",
        "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
        "spark.ui.enabled": "false",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.log.level": "ERROR",
        # The tables are small: to compile each question would take longer than to answer it.
        "spark.sql.codegen.wholeStage": "false",
        "spark.sql.codegen.factoryMode": "NO_CODEGEN",
        "spark.sql.adaptive.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
    }
    builder = SparkSession.builder.master("local[2]").appName("tables")
    for name, value in settings.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    for file in ("spark.sql", "views.sql"):
        for statement in statements((sql / file).read_text()):
            session.sql(statement)
    return lambda statement: [row.asDict() for row in session.sql(statement).collect()]


def plain(value):
    if isinstance(value, decimal.Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    raise TypeError(f"{value!r} is of type {type(value)}")


def main(engine, folder, sql, more=""):
    folder, sql = pathlib.Path(folder).resolve(), pathlib.Path(sql).resolve()
    ask = {"duckdb": duckdb, "compacted": compacted, "spark": spark}[engine](folder, sql)
    answers = {number: ask(statement) for number, statement in questions((sql / "questions.sql").read_text())}
    answers.update((f"more.{place + 1}", ask(statement)) for place, statement in enumerate(statements(more)))
    print(json.dumps(answers, default=plain))


if __name__ == "__main__":
    main(*sys.argv[1:])
