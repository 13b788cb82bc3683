SELECT count(*) FROM stored.main.requests
