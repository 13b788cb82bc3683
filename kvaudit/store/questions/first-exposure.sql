-- What was the first exposure of each rule?
SELECT * FROM exposures QUALIFY row_number() OVER (PARTITION BY rule_id ORDER BY sink_sent_at, sink_request_id) = 1;
