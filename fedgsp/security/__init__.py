"""Who may do what, and how that is proven: TLS, certificates, tickets, signatures and chained records."""
