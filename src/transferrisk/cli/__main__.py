"""`python -m transferrisk.cli`, as `trm`."""

from . import main

if __name__ == "__main__":
    main()
