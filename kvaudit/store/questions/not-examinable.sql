-- What can't show a leak, and why?
SELECT reason.reason, reason.count
FROM (SELECT unnest(not_examinable) AS reason FROM run)
ORDER BY reason.count DESC, reason.reason;
