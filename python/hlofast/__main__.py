"""`python -m hlofast` and the program `hlofast`."""

import sys

from hlofast.cli import main

__all__ = ["main"]

if __name__ == "__main__":
    sys.exit(main())
