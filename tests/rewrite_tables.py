"""Writes the tables of `ncclscope export` again with pyarrow, in memory, and prints how many bytes both take, as JSON.

    python3 rewrite_tables.py FOLDER [RANKS]

The same row groups, encodings, compression and metadata, of as many ranks. The answer is an object: the name of each table,
with "rows", "ours" and "theirs".
"""

import json
import pathlib
import sys

import pyarrow
import pyarrow.parquet as parquet


def rewritten(path):
    """The rows of a file, its bytes, and those of pyarrow's."""
    file = parquet.ParquetFile(path)
    names = file.schema_arrow.names
    chunks = [file.metadata.row_group(0).column(place) for place in range(len(names))] if file.num_row_groups else []
    delta = {name for name, chunk in zip(names, chunks) if "DELTA_BINARY_PACKED" in chunk.encodings}
    said = {key: value for key, value in (file.metadata.metadata or {}).items() if key.startswith(b"ncclscope.")}
    schema = file.schema_arrow.with_metadata(said)
    out = pyarrow.BufferOutputStream()
    writer = parquet.ParquetWriter(
        out,
        schema,
        compression="zstd",
        compression_level=3,
        use_dictionary=[name for name in names if name not in delta],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in delta} or None,
        sorting_columns=file.metadata.row_group(0).sorting_columns if chunks else None,
    )
    for group in range(file.num_row_groups):
        rows = file.read_row_group(group)
        writer.write_table(rows.replace_schema_metadata(said), row_group_size=len(rows))
    writer.close()
    written = out.getvalue()
    # It is the same.
    again = parquet.ParquetFile(pyarrow.BufferReader(written))
    assert again.read().equals(file.read()), path
    for name, place in zip(names, range(len(names)) if chunks else ()):
        ours, theirs = ("DELTA_BINARY_PACKED" in it.metadata.row_group(0).column(place).encodings for it in (file, again))
        assert ours == theirs, (path, name)
    return file.metadata.num_rows, path.stat().st_size, len(written)


def main(folder, ranks="1000000000"):
    answer = {}
    for table in sorted(pathlib.Path(folder).glob("[a-z]*")):
        files = sorted(table.glob("job=*/rank=*/*.parquet"))[: int(ranks)]
        sums = [sum(numbers) for numbers in zip(*map(rewritten, files))]
        answer[table.name] = dict(zip(("rows", "ours", "theirs"), sums))
    print(json.dumps(answer))


if __name__ == "__main__":
    main(*sys.argv[1:])
