"""CPU budget and latency of the host side, against comparison programs in the same run."""
