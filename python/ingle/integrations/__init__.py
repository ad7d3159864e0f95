"""Adapters to engines that run many workers. Each needs an extra; importing ingle imports none."""
