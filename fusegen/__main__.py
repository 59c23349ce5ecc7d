"""``python -m fusegen`` is the command ``fusegen``."""

from fusegen.cli.main import main

if __name__ == "__main__":
    main()
