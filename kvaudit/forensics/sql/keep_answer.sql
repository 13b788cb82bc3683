-- Keep the answer of one of our questions as a table.
CREATE TABLE $table AS
$question
