"""Other people's clients against a server; skipped where the extra `compat` is not installed."""
