INSERT INTO migrations (number, name) VALUES (?, ?);
