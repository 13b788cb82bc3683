def trace() -> int:
    """X."""
    return 0
