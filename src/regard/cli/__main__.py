"""`python -m regard.cli` is `regard`."""

from regard.cli.app import main

if __name__ == "__main__":
    main()
