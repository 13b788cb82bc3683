"""What a shared run of text is worth: bits, chances, and the rules that read answers of a log."""
