"""`python -m klamm`: the same as the `klamm` command."""

from klamm.cli.main import main

main()
