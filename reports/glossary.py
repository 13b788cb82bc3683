"""The words of a report, for a reader who meets them for the first time."""

GLOSSARY: tuple[tuple[str, str], ...] = (
    ("Tenant", "A party whose text must reach nobody else: an organisation, or one of its keys."),
    ("Source", "The request that text came from."),
    ("Sink", "The request whose answer the text came out of."),
    (
        "Response, receiving tenant, source tenant",
        "Three different counts. One tenant can receive many responses, and one response can hold "
        "text of several tenants: 155 responses are not 155 people or organisations.",
    ),
    ("Rule", "A stable id for one kind of trace, such as KVA101 for another tenant's canary."),
    ("Oracle", "A rule as it was applied in this run, with what it can see and how often it errs."),
    ("Fired, silent", "The oracle found something; it was applied and found nothing."),
    ("Not available", "The oracle could not be applied here. That says nothing about the server."),
    ("Canary", "A secret minted for one tenant and one run, with a known chance of turning up."),
    (
        "Sensitivity",
        "The share of planted leaks that the oracle flags, measured in this run. “At least” is its "
        "exact lower confidence limit.",
    ),
    (
        "False alarms",
        "How often the oracle fired on a null that cannot leak: text that was never sent, or "
        "requests sent alone before any other tenant's.",
    ),
    (
        "Chance of accident",
        "How likely a trace this strong is to turn up somewhere in the whole run by chance.",
    ),
    ("q-value", "The share of findings at least this strong that are expected to be false."),
    (
        "Stratum",
        "Requests of one kind, such as prompts just over a limit. Each is bounded by itself, since "
        "a leak may live in one kind alone.",
    ),
    (
        "Upper bound",
        "The largest leak rate that this many examined requests do not rule out at the stated "
        "confidence (exact binomial bound, sensitivity folded in).",
    ),
    ("Censored", "Sent, but it ended without an answer to examine: an error, a limit, a timeout."),
    (
        "Not examinable",
        "A record that cannot show a leak. It is counted, and never reads as clean.",
    ),
    ("Clean", "Every planned stratum was examined well enough, and nothing was found."),
    ("Inconclusive", "Neither clean nor contaminated can be said. It is no pass."),
    ("Contaminated", "Exact evidence, or two independent kinds of trace on one request."),
    ("At risk", "The configuration is known to leak. Nothing was sent or observed."),
)
