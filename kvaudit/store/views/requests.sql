-- One row a request, in the order in which they began; text is shortened unless revealed.
CREATE TEMPORARY VIEW requests AS
SELECT
    request_id, tenant, coalesce(organisation, tenant) AS organisation,
    scenario, stratum, "role", block, wave, outcome, status,
    make_timestamp(sent_unix_ns // 1000) AS sent_at,
    round((ended_unix_ns - sent_unix_ns) / 1e6, 3) AS duration_ms,
    ttft_ms, prompt_tokens_sent, prompt_tokens, completion_tokens, cached_tokens, finish_reason,
    model, endpoint, replica, response_id, error_type, shown(error_message) AS error_message,
    shown(array_to_string(list_transform(messages, lambda message: message.content), chr(10))) AS prompt_text,
    shown(output_text) AS output_text
FROM stored.main.requests
ORDER BY position;
