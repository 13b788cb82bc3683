"""The package's SQL, one statement a file."""

from functools import cache
from importlib import resources


@cache
def sql(name: str) -> str:
    """Return one of the SQL files of this room."""
    return (resources.files("kvaudit.forensics") / "sql" / f"{name}.sql").read_text("utf-8")


def kept_answer(table: str, question: str) -> str:
    """Return the statement that keeps the answer of one of our SQL files as a table."""
    return sql("keep_answer").replace("$table", table).replace("$question", sql(question))
