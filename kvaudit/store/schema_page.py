"""The tables of `run.duckdb` as a page, from the comments in its own schema.

`python -m kvaudit.store.schema_page` prints the part of `docs/reference/run-folder.md` below its
marker; a test holds the two together.
"""

import sys
from itertools import groupby

import duckdb

from kvaudit.store.database import migrate, migrations, statement

MARKER = "<!-- The rest is made by `python -m kvaudit.store.schema_page`. -->"


def schema_page() -> str:
    """Return every table with its columns as Markdown."""
    connection = duckdb.connect(":memory:")
    try:
        migrate(connection, migrations())
        rows = connection.execute(statement("described")).fetchall()
    finally:
        connection.close()
    parts = [MARKER, "\n\n## Tables\n"]
    for (table, comment), columns in groupby(rows, key=lambda row: (row[0], row[1])):
        parts.append(
            f"\n### `{table}`\n\n{comment}\n\n| column | type | means |\n| --- | --- | --- |\n"
        )
        parts += [f"| `{name}` | `{kind}` | {means} |\n" for _, _, name, kind, means in columns]
    return "".join(parts)


if __name__ == "__main__":
    sys.stdout.write(schema_page())
