"""AuditRun in, bytes out: JSON, text, HTML and the rest; nothing here decides or writes a file."""

from reports.formats import FORMATS, ReportFormat, ReportInput

__all__ = ["FORMATS", "ReportFormat", "ReportInput"]
