"""Black-box questions: what to send, and the loop that sends it."""
