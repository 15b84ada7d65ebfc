"""Connections between processes: addresses, channels, proxies, and what is said when there is none."""
