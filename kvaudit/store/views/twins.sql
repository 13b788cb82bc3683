-- One row a never-sent twin; text is shortened unless revealed.
CREATE TEMPORARY VIEW twins AS SELECT * REPLACE (shown(prompt_text) AS prompt_text) FROM stored.main.twins;
