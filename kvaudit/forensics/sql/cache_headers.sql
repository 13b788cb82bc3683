-- Answers that carry the headers of a shared cache.
SELECT request_id, tenant, record_id, start_us, response_headers
FROM served
WHERE response_headers IS NOT NULL
    AND regexp_matches(response_headers, '(?i)"(age|x-cache|x-cache-status|x-cache-hits|cf-cache-status|cdn-cache|x-varnish|x-proxy-cache|x-litellm-cache-key|x-semantic-cache|cf-aig-cache-status|helicone-cache|x-served-by)"')
ORDER BY start_us, request_id
