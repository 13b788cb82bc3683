"""The streaming semi-join: which answers hold text of another organisation, and whose.

The answers, a few per cent of a log, are the build side; contexts are read once and never indexed.

    texts.py      what goes in and comes out: TextRow, TextSource, Match, SemiJoinSettings
    folding.py    canonical text: what case, spacing, punctuation and markdown leave over
    kernels.py    the compiled inner loops: fold and sample; also scan_kernels, extension_kernels
    ranks.py      one order in time over all contexts and answers
    grams.py      the hashes of the answers, in RAM
    scan.py       three passes: answers in, contexts against them, answers against what was met
    join.py       first origins, own text and background: DuckDB (`sql/`) or Polars
    extension.py  seeds to matches, in characters of the raw text
    find.py       `find_matches`: all of it, resumable
"""
