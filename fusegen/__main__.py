"""``python -m fusegen`` is the command ``fusegen``."""

from fusegen.wrap.cli import main

if __name__ == "__main__":
    main()
