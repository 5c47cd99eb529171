"""AXLearn's golden configs: the front that `front.py` describes to the rest of the package."""
