"""Tests over real HTTP against the real server with the real core."""
