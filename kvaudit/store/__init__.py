"""A run on disk: its folder, its journal, its database, and the way back to records."""
