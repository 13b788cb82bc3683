"""Reference paged-KV engine: small, exact, able to fail on purpose. The only room with torch."""
