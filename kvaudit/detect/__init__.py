"""Text against text: canaries, runs, signatures."""
