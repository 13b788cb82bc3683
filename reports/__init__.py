"""AuditRun in, bytes out."""
