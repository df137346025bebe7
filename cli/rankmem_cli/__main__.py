"""``python -m rankmem_cli``: the same as ``rankmem``."""

from rankmem_cli.main import main

main()
