"""What a program sees of itself: prints argv, path, names, and whether a class of its own survives pickle."""

import os
import pickle
import sys
import threading


class Own:
    """Pickled by its name in __main__."""


def report() -> None:
    main = sys.modules["__main__"]
    same = pickle.loads(pickle.dumps(Own)) is Own
    print(sys.argv, os.path.basename(sys.path[0]), __name__, main.__spec__ is None)
    print(same, main.Own is Own, sorted(name for name in vars(main) if not name.startswith("__")))


print(os.path.isabs(__file__), os.path.basename(__file__))
report()
threading.Timer(0.05, report).start()  # runs after the last line
