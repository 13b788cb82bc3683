def purge() -> int:
    """X."""
    return 0
