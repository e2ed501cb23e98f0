"""`python -m derender`."""

from derender.cli import main

if __name__ == "__main__":
    main()
