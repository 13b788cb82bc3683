"""The join: from what the scan met to seeds, their walls and who else holds them.

DuckDB is the reference: the questions are in `sql/`, each one group-by or one equi-join on the
hash, so that memory stays bounded. `polars_join.py` asks the same of Polars.
"""

from functools import cache
from importlib import resources
from pathlib import Path

from kvaudit.detect.semijoin.names import ANSWERS, CONTEXTS, HELD, RANKS, SEEDS, WALLS
from kvaudit.detect.semijoin.polars_join import join_by_polars
from kvaudit.detect.semijoin.ranks import Ranks
from kvaudit.detect.semijoin.texts import Engine, SemiJoinSettings
from kvaudit.store.out_of_core import OutOfCore

_LAST = {SEEDS: "all_seeds", WALLS: "walls", HELD: "held"}


def join(scanned: Path, out: Path, ranks: Ranks, settings: SemiJoinSettings) -> None:
    """Join the files of a scan.

    Args:
        scanned: Folder of the scan's files.
        out: An empty folder; takes `SEEDS` (h, place, source_place, prompts, answers, is_decoy),
            `WALLS` (place) and `HELD` (h, organisation, place), in no order.
        ranks: The order of the table's texts.
        settings: Engine, limits and what counts as background.
    """
    ranks.frame().write_parquet(out / RANKS)
    if settings.engine is Engine.POLARS:
        join_by_polars(out, scanned, ranks.unknown_from, settings)
        return
    scratch = out / "spilled"
    with OutOfCore(
        scratch, memory_bytes=settings.memory_bytes, threads=settings.threads
    ) as database:
        database.view("contexts", str(scanned / f"{CONTEXTS}-*.parquet"))
        database.view("answers", str(scanned / f"{ANSWERS}-*.parquet"))
        database.view("ranks", str(out / RANKS))
        replicas = {"use_replicas": settings.use_replicas}
        known = {"unknown_from": ranks.unknown_from}
        background = {"background_organisations": settings.background_organisations}
        database.run(_sql("holders"))
        database.run(_sql("owners"))
        database.run(_sql("publicity"))
        database.run(_sql("firsts"), replicas)
        database.run(_sql("sinks"), replicas)
        database.run(_sql("judged"), known | background)
        database.run(_sql("seeds"), known)
        for name, question in _LAST.items():
            database.write(_sql(question), out / name)


@cache
def _sql(name: str) -> str:
    folder = resources.files("kvaudit.detect.semijoin").joinpath("sql")
    return folder.joinpath(f"{name}.sql").read_text(encoding="utf-8")
