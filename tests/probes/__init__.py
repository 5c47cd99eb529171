"""One-feature probes of the HLO text format, and XLA's verdict on each of them."""
