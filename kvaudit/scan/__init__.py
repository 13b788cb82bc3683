"""The log scan: the one place that joins forensics and detect."""
