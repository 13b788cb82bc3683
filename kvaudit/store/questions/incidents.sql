-- Which findings are one leaked text, and how far did each such text get?
SELECT
    incident, count(*) AS findings, count(DISTINCT sink_request_id) AS answers,
    list_sort(list(DISTINCT rule_id)) AS rules, list_sort(list(DISTINCT source_tenant)) AS sources,
    list_sort(list(DISTINCT sink_tenant)) AS receivers, min(sink_sent_at) AS first_at,
    max(sink_sent_at) AS last_at, arg_max(excerpt, score) AS excerpt
FROM exposures
WHERE incident IS NOT NULL
GROUP BY incident
ORDER BY answers DESC, incident;
