"""Request logs in, SQL over time and placement out."""
