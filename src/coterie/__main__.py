"""`python -m coterie` is the command `coterie`."""

from coterie.cli.main import main

if __name__ == "__main__":
    main()
