-- How text is shown when it is asked for: whole.
CREATE TEMPORARY MACRO shown(value) AS value;
