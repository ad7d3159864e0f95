"""Unit tests of ingle.server."""
