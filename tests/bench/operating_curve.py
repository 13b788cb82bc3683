"""Prints the operating curve of the sequential test: what it does at each leak rate, exactly.

python tests/bench/operating_curve.py
"""

from kvaudit.stats_blocks import errors_at, planned_blocks, sequential_test

LOOKED_FOR = (0.5, 0.1, 0.01, 1e-3)
FALSE_RATE = 1e-6
TRUE_SHARES = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)


def main() -> None:
    """Print both tables as Markdown."""
    print("| looked for | blocks | convicts at | false conviction | miss at that rate | mean blocks"
          " healthy | mean blocks leaking |")  # fmt: skip
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for rate in LOOKED_FOR:
        test = sequential_test(rate, false_rate=FALSE_RATE)
        healthy, leaking = errors_at(test, FALSE_RATE), errors_at(test, rate)
        cells = (
            f"{rate:g}", f"{test.blocks:,}", str(test.convict_at), f"{healthy.convicted:.1e}",
            f"{leaking.cleared:.4f}", f"{healthy.blocks_mean:,.0f}", f"{leaking.blocks_mean:,.1f}",
        )  # fmt: skip
        print(f"| {' | '.join(cells)} |")
    print("\n| looked for | " + " | ".join(f"{share:g} x" for share in TRUE_SHARES) + " |")
    print("| --- |" + " --- |" * len(TRUE_SHARES))
    for rate in LOOKED_FOR:
        test = sequential_test(rate, false_rate=FALSE_RATE)
        chances = [errors_at(test, min(1.0, rate * share)).convicted for share in TRUE_SHARES]
        print(f"| {rate:g} | " + " | ".join(f"{chance:.3f}" for chance in chances) + " |")
    print("\n| target rate | 95 %, 1 stratum | 95 %, 6 strata | 99 %, 6 strata |")
    print("| --- | --- | --- | --- |")
    for rate in LOOKED_FOR:
        counts = [planned_blocks(rate, confidence=confidence, strata=strata)
                  for confidence, strata in ((0.95, 1), (0.95, 6), (0.99, 6))]  # fmt: skip
        print(f"| {rate:g} | " + " | ".join(f"{count:,}" for count in counts) + " |")


if __name__ == "__main__":
    main()
