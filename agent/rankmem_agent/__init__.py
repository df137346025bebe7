"""The agent of rankmem: in the trainer the tap, the hooks and the spool; beside it the shipper.

What a training script may call (nothing has to be called): :func:`annotate`, :func:`step`, :func:`parallel`,
:func:`tag`. They do nothing in a process that is not recorded. The trainer's part imports the standard
library and torch only, and this module almost nothing: it is imported in every Python process below ``rankmem
run``.
"""

from rankmem_agent.hooks.user_api import annotate, parallel, step, tag

__all__ = ["__version__", "annotate", "parallel", "step", "tag"]

__version__ = "0.1.0"
