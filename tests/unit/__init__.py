"""Unit tests: mirrors python/ingle, no model and no HTTP server."""
