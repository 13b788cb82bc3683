-- How text is shown unless it is asked for: its beginning and its length.
CREATE TEMPORARY MACRO shown(value) AS
    CASE WHEN length(value) > 12 THEN left(value, 8) || '… (' || length(value) || ' characters)' ELSE value END;
