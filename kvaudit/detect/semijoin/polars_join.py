"""The join by Polars, streaming: the same questions as `sql/`, with the same answers."""

from pathlib import Path

import polars as pl

from kvaudit.detect.semijoin.names import ANSWERS, CONTEXTS, HELD, RANKS, SEEDS, WALLS
from kvaudit.detect.semijoin.texts import SemiJoinSettings

_PLACE_BITS = 1 << 32
_ANY, _UNKNOWN = -2, -1  # reach: any replica; a text whose replica is not known


def join_by_polars(out: Path, scanned: Path, unknown_from: int, settings: SemiJoinSettings) -> None:
    """Join the files of a scan; see `join.join`."""
    texts = pl.scan_parquet(out / RANKS)
    contexts = pl.scan_parquet(scanned / f"{CONTEXTS}-*.parquet").select("h", "place")
    answers = pl.scan_parquet(scanned / f"{ANSWERS}-*.parquet")
    holders = _kept(
        _holders(contexts, answers.select("h", "place"), texts), out / "holders.parquet"
    )
    owners = _kept(_owners(holders), out / "owners.parquet")
    sinks = _sinks(answers, texts, _firsts(holders, settings), settings)
    judged = _kept(_judged(sinks, owners, texts, unknown_from, settings), out / "judged.parquet")
    seeds = _kept(_seeds(judged, unknown_from), out / SEEDS)
    walls = judged.filter("is_wall").join(
        seeds.select(_rank_of("place").alias("rank")).unique(), on="rank", how="semi"
    )
    _kept(walls.select("place"), out / WALLS)
    held = holders.join(seeds.select("h").unique(), on="h", how="semi")
    _kept(held.select("h", "organisation", "place"), out / HELD)


def _kept(frame: pl.LazyFrame, path: Path) -> pl.LazyFrame:
    """Write a frame without holding it, and read it again."""
    frame.sink_parquet(path, compression="zstd", compression_level=1, engine="streaming")
    return pl.scan_parquet(path)


def _rank_of(place: str) -> pl.Expr:
    return (pl.col(place) // _PLACE_BITS).cast(pl.Int64)


def _holders(contexts: pl.LazyFrame, answers: pl.LazyFrame, texts: pl.LazyFrame) -> pl.LazyFrame:
    """`holders.sql`."""
    return (
        pl.concat([contexts, answers])
        .with_columns(_rank_of("place").alias("rank"))
        .join(texts.select("rank", "organisation", "is_answer", "replica"), on="rank")
        .group_by("h", "organisation", "is_answer", "replica")
        .agg(pl.col("place").min())
    )


def _owners(holders: pl.LazyFrame) -> pl.LazyFrame:
    """`owners.sql`."""
    return holders.group_by("h", "organisation").agg(
        pl.col("place").filter(~pl.col("is_answer")).min().alias("context_place"),
        pl.col("place").filter("is_answer").min().alias("answer_place"),
    )


def _publicity(owners: pl.LazyFrame) -> pl.LazyFrame:
    """`publicity.sql`."""
    is_first = pl.col("context_place").is_not_null() & (
        pl.col("answer_place").is_null() | (pl.col("context_place") < pl.col("answer_place"))
    )
    return owners.group_by("h").agg(
        is_first.sum().cast(pl.Int64).alias("prompts"),
        pl.col("answer_place").count().cast(pl.Int64).alias("answers"),
    )


def _firsts(holders: pl.LazyFrame, settings: SemiJoinSettings) -> pl.LazyFrame:
    """`firsts.sql`."""
    columns = ("h", "organisation", "place", "reach")
    reached = holders.with_columns(pl.lit(_ANY, pl.Int32).alias("reach")).select(columns)
    if settings.use_replicas:
        replicas = holders.with_columns(pl.col("replica").alias("reach")).select(columns)
        reached = pl.concat([reached, replicas])
    of_owners = reached.group_by("h", "reach", "organisation").agg(pl.col("place").min())
    return of_owners.group_by("h", "reach").agg(
        pl.col("place").min().alias("first_place"),
        pl.col("organisation").min_by("place").alias("first_organisation"),
        pl.col("place").bottom_k(2).max().alias("second_place"),
        pl.len().alias("organisations"),
    )


def _sinks(
    answers: pl.LazyFrame, texts: pl.LazyFrame, firsts: pl.LazyFrame, settings: SemiJoinSettings
) -> pl.LazyFrame:
    """`sinks.sql`."""
    told = answers.with_columns(_rank_of("place").alias("rank")).join(
        texts.select("rank", "organisation", "stop_rank", "replica"), on="rank"
    )
    is_anywhere = (pl.col("replica") < 0) | (not settings.use_replicas)
    asked = [told.filter(is_anywhere).with_columns(pl.lit(_ANY, pl.Int32).alias("reach"))]
    if settings.use_replicas:
        known = told.filter(~is_anywhere)
        asked.append(known.with_columns(pl.col("replica").alias("reach")))
        asked.append(known.with_columns(pl.lit(_UNKNOWN, pl.Int32).alias("reach")))
    is_own = pl.col("first_organisation") == pl.col("organisation")
    second = pl.when(pl.col("organisations") > 1).then("second_place")
    return (
        pl.concat(asked)
        .join(firsts, on=["h", "reach"], how="left")
        .with_columns(pl.when(is_own).then(second).otherwise("first_place").alias("source_place"))
        .group_by("h", "place", "is_wall", "rank", "organisation", "stop_rank")
        .agg(pl.col("source_place").min())
        .with_columns(_rank_of("source_place").alias("source_rank"))
    )


def _judged(
    sinks: pl.LazyFrame, owners: pl.LazyFrame, texts: pl.LazyFrame, unknown_from: int,
    settings: SemiJoinSettings,
) -> pl.LazyFrame:  # fmt: skip
    """`judged.sql`."""
    context, answer = _rank_of("context_place"), _rank_of("answer_place")
    is_own_origin = (answer < pl.col("rank")) & (
        pl.col("source_rank").is_null() | (answer < pl.col("source_rank"))
    )
    is_wall = (
        pl.col("is_wall")
        | (pl.col("prompts") >= settings.background_organisations)
        | (context < pl.col("stop_rank")).fill_null(value=False)
        | (context >= unknown_from).fill_null(value=False)
        | is_own_origin.fill_null(value=False)
    )
    origins = texts.select(
        pl.col("rank").alias("source_rank"), pl.col("is_answer").alias("source_is_answer")
    )
    return (
        sinks.join(_publicity(owners), on="h")
        .join(owners, on=["h", "organisation"], how="left")
        .join(origins, on="source_rank", how="left")
        .with_columns(is_wall.alias("is_wall"))
    )


def _seeds(judged: pl.LazyFrame, unknown_from: int) -> pl.LazyFrame:
    """`seeds.sql` and `all_seeds.sql`."""
    is_decoy = (
        ~pl.col("source_is_answer")
        & (pl.col("source_rank") >= pl.col("stop_rank"))
        & (pl.col("source_rank") < unknown_from)
    )
    return judged.filter(
        ~pl.col("is_wall"),
        pl.col("source_place").is_not_null(),
        ~pl.col("source_is_answer") | (pl.col("source_rank") < pl.col("rank")),
    ).select("h", "place", "source_place", "prompts", "answers", is_decoy.alias("is_decoy"))
