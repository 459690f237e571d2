"""Writes tables again as a newer version of the schema may: with another number, and a column more.

    python3 newer_tables.py FOLDER PARTITIONS

PARTITIONS is a pattern of folders below those of the tables, as job=4711/rank=*.
"""

import pathlib
import sys

import pyarrow
import pyarrow.parquet as parquet


def main(folder, partitions):
    paths = sorted(pathlib.Path(folder).glob(f"[a-z]*/{partitions}/*.parquet"))
    assert paths, partitions
    for path in paths:
        table = parquet.ParquetFile(path).read()
        said = {**table.schema.metadata, b"ncclscope.schema_version": b"3"}
        later = pyarrow.array(range(len(table)), pyarrow.int64())
        parquet.write_table(table.append_column("later", later).replace_schema_metadata(said), path)


if __name__ == "__main__":
    main(*sys.argv[1:])
