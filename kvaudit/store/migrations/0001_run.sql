-- The first form of a run: what was sent and got, what it shows, what it is worth.
CREATE TABLE migrations (number INTEGER PRIMARY KEY, name VARCHAR NOT NULL);
COMMENT ON TABLE migrations IS 'Migrations that this file has gone through.';
COMMENT ON COLUMN migrations.number IS 'Counts from 1.';
COMMENT ON COLUMN migrations.name IS 'Name of its file.';

CREATE TABLE run (
    run_id VARCHAR,
    command VARCHAR,
    version VARCHAR,
    seed BIGINT,
    repeat VARCHAR,
    started_unix_ns BIGINT,
    ended_unix_ns BIGINT,
    verdict VARCHAR,
    reasons VARCHAR[],
    target JSON,
    config JSON,
    counts JSON,
    not_examinable STRUCT(reason VARCHAR, "count" BIGINT)[],
    notes STRUCT("name" VARCHAR, "text" VARCHAR, at_unix_ns BIGINT)[],
    damaged_lines BIGINT NOT NULL,
    secret VARCHAR
);
COMMENT ON TABLE run IS 'One row: the run itself.';
COMMENT ON COLUMN run.run_id IS 'Time and name.';
COMMENT ON COLUMN run.command IS 'The kvaudit command that made the run.';
COMMENT ON COLUMN run.version IS 'Version of kvaudit that made it.';
COMMENT ON COLUMN run.seed IS 'All randomness comes from it; null where there is none.';
COMMENT ON COLUMN run.repeat IS 'Command line that repeats the run.';
COMMENT ON COLUMN run.started_unix_ns IS 'Wall clock, in nanoseconds since 1970-01-01 UTC.';
COMMENT ON COLUMN run.ended_unix_ns IS 'Wall clock; null while the run is not judged.';
COMMENT ON COLUMN run.verdict IS 'clean, inconclusive, at_risk or contaminated; null while the run is not judged.';
COMMENT ON COLUMN run.reasons IS 'Why the verdict is what it is, most important first.';
COMMENT ON COLUMN run.target IS 'What the target said of itself.';
COMMENT ON COLUMN run.config IS 'Effective configuration, without secrets.';
COMMENT ON COLUMN run.counts IS 'Totals by name.';
COMMENT ON COLUMN run.not_examinable IS 'Requests that can not show a leak, counted by reason.';
COMMENT ON COLUMN run.notes IS 'What happened to the run as a whole: stops, resumes.';
COMMENT ON COLUMN run.damaged_lines IS 'Journal lines that could not be read.';
COMMENT ON COLUMN run.secret IS 'Keys the tags of redacted text; in no report.';

CREATE TABLE requests (
    position BIGINT NOT NULL,
    request_id VARCHAR NOT NULL,
    tenant VARCHAR NOT NULL,
    organisation VARCHAR,
    scenario VARCHAR NOT NULL,
    stratum VARCHAR NOT NULL,
    "role" VARCHAR NOT NULL,
    block BIGINT NOT NULL,
    wave BIGINT NOT NULL,
    endpoint VARCHAR NOT NULL,
    model VARCHAR NOT NULL,
    messages STRUCT("role" VARCHAR, content VARCHAR)[] NOT NULL,
    attachments VARCHAR[] NOT NULL,
    canaries STRUCT("label" VARCHAR, tenant VARCHAR, words VARCHAR[], code VARCHAR, word_bits DOUBLE, code_symbol_bits DOUBLE)[] NOT NULL,
    expected VARCHAR,
    prompt_tokens_sent BIGINT,
    max_tokens BIGINT,
    temperature DOUBLE,
    seed BIGINT,
    cache_salt VARCHAR,
    stream BOOLEAN,
    status BIGINT,
    outcome VARCHAR NOT NULL,
    error_type VARCHAR,
    error_message VARCHAR,
    output_text VARCHAR,
    output_token_ids BIGINT[],
    output_logprobs DOUBLE[],
    finish_reason VARCHAR,
    prompt_tokens BIGINT,
    completion_tokens BIGINT,
    cached_tokens BIGINT,
    sent_unix_ns BIGINT,
    ttft_ms DOUBLE,
    ended_unix_ns BIGINT,
    replica VARCHAR,
    response_id VARCHAR,
    headers STRUCT("name" VARCHAR, "value" VARCHAR)[] NOT NULL
);
COMMENT ON TABLE requests IS 'One row a request, in the order in which they began.';
COMMENT ON COLUMN requests.position IS 'Order in which the requests began, from 0.';
COMMENT ON COLUMN requests.request_id IS 'Unique in the run; the id of the log for imported logs.';
COMMENT ON COLUMN requests.tenant IS 'Alias of the tenant that sent it.';
COMMENT ON COLUMN requests.organisation IS 'Owner of the tenant; null = the tenant itself.';
COMMENT ON COLUMN requests.scenario IS 'Scenario that planned it.';
COMMENT ON COLUMN requests.stratum IS 'Stratum that it counts in.';
COMMENT ON COLUMN requests."role" IS 'calibration, fill, trigger, control or observed.';
COMMENT ON COLUMN requests.block IS 'Block of the plan, from 0.';
COMMENT ON COLUMN requests.wave IS 'Wave of the run, from 0.';
COMMENT ON COLUMN requests.endpoint IS 'Path that was called.';
COMMENT ON COLUMN requests.model IS 'Model name that was asked for.';
COMMENT ON COLUMN requests.messages IS 'Prompt as sent, in order.';
COMMENT ON COLUMN requests.attachments IS 'Further own context.';
COMMENT ON COLUMN requests.canaries IS 'Canaries planted in this prompt.';
COMMENT ON COLUMN requests.expected IS 'What a right answer must contain; null if nothing was asked for.';
COMMENT ON COLUMN requests.prompt_tokens_sent IS 'Prompt length by our own count, in tokens.';
COMMENT ON COLUMN requests.max_tokens IS 'As sent.';
COMMENT ON COLUMN requests.temperature IS 'As sent.';
COMMENT ON COLUMN requests.seed IS 'As sent.';
COMMENT ON COLUMN requests.cache_salt IS 'As sent.';
COMMENT ON COLUMN requests.stream IS 'As sent.';
COMMENT ON COLUMN requests.status IS 'HTTP status; null when nothing came back.';
COMMENT ON COLUMN requests.outcome IS 'answered, refused, error, rate_limited, timeout, cancelled or unknown.';
COMMENT ON COLUMN requests.error_type IS 'As the server or the client named it.';
COMMENT ON COLUMN requests.error_message IS 'As the server or the client worded it.';
COMMENT ON COLUMN requests.output_text IS 'The answer, all channels that a user sees, in order.';
COMMENT ON COLUMN requests.output_token_ids IS 'Ids of the emitted tokens.';
COMMENT ON COLUMN requests.output_logprobs IS 'Log-probability of each emitted token, in nat, before temperature.';
COMMENT ON COLUMN requests.finish_reason IS 'stop, length, abort, ... as reported.';
COMMENT ON COLUMN requests.prompt_tokens IS 'Usage as reported.';
COMMENT ON COLUMN requests.completion_tokens IS 'Usage as reported.';
COMMENT ON COLUMN requests.cached_tokens IS 'Prompt tokens served from the prefix cache, as reported.';
COMMENT ON COLUMN requests.sent_unix_ns IS 'Wall clock when the first byte left, in nanoseconds since 1970-01-01 UTC.';
COMMENT ON COLUMN requests.ttft_ms IS 'Time to first token, in milliseconds.';
COMMENT ON COLUMN requests.ended_unix_ns IS 'Wall clock after the last byte, in nanoseconds since 1970-01-01 UTC.';
COMMENT ON COLUMN requests.replica IS 'Which replica answered, if the server says so.';
COMMENT ON COLUMN requests.response_id IS 'Id that the server gave the answer.';
COMMENT ON COLUMN requests.headers IS 'Headers of the answer that were kept.';

CREATE TABLE twins (
    request_id VARCHAR NOT NULL,
    tenant VARCHAR NOT NULL,
    scenario VARCHAR NOT NULL,
    stratum VARCHAR NOT NULL,
    "role" VARCHAR NOT NULL,
    block BIGINT NOT NULL,
    prompt_text VARCHAR NOT NULL,
    canary_labels VARCHAR[] NOT NULL
);
COMMENT ON TABLE twins IS 'One row a never-sent twin: minted by the same generator, sent to no one.';
COMMENT ON COLUMN twins.request_id IS 'Unique in the run.';
COMMENT ON COLUMN twins.tenant IS 'Tenant that it was minted for.';
COMMENT ON COLUMN twins.scenario IS 'Scenario that planned it.';
COMMENT ON COLUMN twins.stratum IS 'Stratum of its model.';
COMMENT ON COLUMN twins."role" IS 'Role of its model.';
COMMENT ON COLUMN twins.block IS 'Block of the plan, from 0.';
COMMENT ON COLUMN twins.prompt_text IS 'Its prompt.';
COMMENT ON COLUMN twins.canary_labels IS 'Its canaries.';

CREATE TABLE canaries (
    "label" VARCHAR NOT NULL,
    tenant VARCHAR NOT NULL,
    phrase VARCHAR NOT NULL,
    code VARCHAR NOT NULL,
    entropy_bits DOUBLE NOT NULL,
    is_sent BOOLEAN NOT NULL,
    request_ids VARCHAR[] NOT NULL
);
COMMENT ON TABLE canaries IS 'One row a minted canary.';
COMMENT ON COLUMN canaries."label" IS 'Unique in the run.';
COMMENT ON COLUMN canaries.tenant IS 'Its owner.';
COMMENT ON COLUMN canaries.phrase IS 'Its words.';
COMMENT ON COLUMN canaries.code IS 'Its code, without hyphens.';
COMMENT ON COLUMN canaries.entropy_bits IS 'Entropy of the whole canary, in bits.';
COMMENT ON COLUMN canaries.is_sent IS 'False for canaries of never-sent twins.';
COMMENT ON COLUMN canaries.request_ids IS 'Requests or twins whose prompts hold it.';

CREATE TABLE findings (
    position BIGINT NOT NULL,
    rule_id VARCHAR NOT NULL,
    kind VARCHAR NOT NULL,
    severity VARCHAR NOT NULL,
    sink_request_id VARCHAR NOT NULL,
    sink_tenant VARCHAR NOT NULL,
    source STRUCT(request_id VARCHAR, tenant VARCHAR, side VARCHAR, span STRUCT("start" BIGINT, "end" BIGINT)),
    sink_span STRUCT("start" BIGINT, "end" BIGINT),
    excerpt VARCHAR NOT NULL,
    score DOUBLE NOT NULL,
    chance DOUBLE,
    q_value DOUBLE,
    details JSON NOT NULL
);
COMMENT ON TABLE findings IS 'One row a finding: evidence that passed its rule''s threshold.';
COMMENT ON COLUMN findings.position IS 'Order in the report, from 0.';
COMMENT ON COLUMN findings.rule_id IS 'Rule, such as KVA101.';
COMMENT ON COLUMN findings.kind IS 'exposure, misdelivery, corruption, accounting, sharing or hazard.';
COMMENT ON COLUMN findings.severity IS 'critical, error, warning or info.';
COMMENT ON COLUMN findings.sink_request_id IS 'Request whose answer or numbers show it.';
COMMENT ON COLUMN findings.sink_tenant IS 'Tenant that got it.';
COMMENT ON COLUMN findings.source IS 'First origin of the text; null when no source text is visible.';
COMMENT ON COLUMN findings.sink_span IS 'Where in the sink''s answer, in characters, half open.';
COMMENT ON COLUMN findings.excerpt IS 'The matching text of the sink.';
COMMENT ON COLUMN findings.score IS 'Strength, in bits where the rule says so.';
COMMENT ON COLUMN findings.chance IS 'Probability of an accident this strong in the whole run; null if not computed.';
COMMENT ON COLUMN findings.q_value IS 'Share of false findings at this score; null where a chance is given instead.';
COMMENT ON COLUMN findings.details IS 'Numbers and words that explain it.';

CREATE TABLE candidates (
    position BIGINT NOT NULL,
    rule_id VARCHAR NOT NULL,
    sink_request_id VARCHAR NOT NULL,
    sink_tenant VARCHAR NOT NULL,
    source STRUCT(request_id VARCHAR, tenant VARCHAR, side VARCHAR, span STRUCT("start" BIGINT, "end" BIGINT)),
    sink_span STRUCT("start" BIGINT, "end" BIGINT),
    excerpt VARCHAR NOT NULL,
    score DOUBLE NOT NULL,
    chance DOUBLE,
    details JSON NOT NULL
);
COMMENT ON TABLE candidates IS 'One row a candidate: ranked evidence below its rule''s threshold.';
COMMENT ON COLUMN candidates.position IS 'Rank, from 0.';
COMMENT ON COLUMN candidates.rule_id IS 'Rule, such as KVA101.';
COMMENT ON COLUMN candidates.sink_request_id IS 'Request whose answer or numbers show it.';
COMMENT ON COLUMN candidates.sink_tenant IS 'Tenant that got it.';
COMMENT ON COLUMN candidates.source IS 'First origin of the text; null when no source text is visible.';
COMMENT ON COLUMN candidates.sink_span IS 'Where in the sink''s answer, in characters, half open.';
COMMENT ON COLUMN candidates.excerpt IS 'The matching text of the sink.';
COMMENT ON COLUMN candidates.score IS 'Strength, in bits where the rule says so.';
COMMENT ON COLUMN candidates.chance IS 'Probability of an accident this strong in the whole run; null if not computed.';
COMMENT ON COLUMN candidates.details IS 'Numbers and words that explain it.';

CREATE TABLE bounds (
    stratum VARCHAR NOT NULL,
    requests BIGINT NOT NULL,
    detections BIGINT NOT NULL,
    sensitivity DOUBLE,
    confidence DOUBLE NOT NULL,
    "upper" DOUBLE,
    sent BIGINT NOT NULL,
    censored BIGINT NOT NULL
);
COMMENT ON TABLE bounds IS 'One row a stratum: an exact upper bound on its leak rate.';
COMMENT ON COLUMN bounds.stratum IS 'The stratum.';
COMMENT ON COLUMN bounds.requests IS 'Examined requests.';
COMMENT ON COLUMN bounds.detections IS 'How many of them are in a finding.';
COMMENT ON COLUMN bounds.sensitivity IS 'Lower limit of the sensitivity that is folded into the bound.';
COMMENT ON COLUMN bounds.confidence IS 'Confidence of the bound.';
COMMENT ON COLUMN bounds."upper" IS 'Upper bound on the share of contaminated requests; null without a sensitivity.';
COMMENT ON COLUMN bounds.sent IS 'Requests sent.';
COMMENT ON COLUMN bounds.censored IS 'Requests that ended without an examinable outcome.';

CREATE TABLE oracles (
    rule_id VARCHAR NOT NULL,
    available BOOLEAN NOT NULL,
    reason VARCHAR NOT NULL,
    sensitivity DOUBLE,
    sensitivity_lower DOUBLE,
    false_alarms BIGINT,
    trials BIGINT NOT NULL,
    fired BIGINT NOT NULL,
    examined BIGINT NOT NULL
);
COMMENT ON TABLE oracles IS 'One row a rule: how it did in this run.';
COMMENT ON COLUMN oracles.rule_id IS 'The rule.';
COMMENT ON COLUMN oracles.available IS 'Whether it could be applied.';
COMMENT ON COLUMN oracles.reason IS 'Why not, or what to know.';
COMMENT ON COLUMN oracles.sensitivity IS 'Observed share of planted swaps that it flags.';
COMMENT ON COLUMN oracles.sensitivity_lower IS 'Exact lower confidence limit of it.';
COMMENT ON COLUMN oracles.false_alarms IS 'Alarms on the null.';
COMMENT ON COLUMN oracles.trials IS 'Size of the null.';
COMMENT ON COLUMN oracles.fired IS 'Requests on which it fired.';
COMMENT ON COLUMN oracles.examined IS 'Requests to which it was applied.';
