"""`python -m ingle` is the `ingle` command."""

import sys

from ingle.cli import main

if __name__ == "__main__":
    sys.exit(main())
