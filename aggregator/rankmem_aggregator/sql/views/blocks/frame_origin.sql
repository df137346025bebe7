-- Question: Whose code is a frame of a stack, by its text alone: the project's, a library's, or none of Python's?
-- Parameters:
--   file_path, function: as in stack_frame
-- Columns:
--   one value: project; library (Python that belongs to no project: torch, an installed package, the standard
--     library, generated code); native (no frame of Python: C++, built-ins, a module's range in a profiler's trace)
-- Scatter: none
CREATE OR REPLACE MACRO frame_origin(file_path, function) AS CASE
    -- The one rule. Its limits are in docs/sql.md, question 8.
    -- Profilers name built-ins and modules as Python prints them, without a file; unwinders write ?? for it.
    WHEN starts_with(file_path, '??') OR function IN ('', '??')
        OR regexp_matches(function, '^(<(built-in|method|slot wrapper|method-wrapper) |nn\.Module: |0x[0-9a-fA-F]+$)')
        -- No name of a Python function has these.
        OR ((contains(function, '::') OR contains(function, '(')) AND NOT ends_with(file_path, '.py'))
        OR regexp_matches(
            file_path,
            '(?i)\.(c|cc|cpp|cxx|c\+\+|h|hh|hpp|hxx|inl|inc|cu|cuh|hip|s|asm|o|a|so|so\.[0-9.]+|dylib|dll|pyd|rs)$'
        )
        THEN 'native'
    -- What a user types into a notebook or a prompt is the project's; <string>, <frozen …> and the like are nobody's.
    WHEN starts_with(file_path, '<')
        THEN CASE WHEN regexp_matches(file_path, '^<(ipython-input|stdin|command|timed |cell)') THEN 'project' ELSE 'library' END
    WHEN regexp_matches(
        replace(file_path, '\', '/'),
        '(?i)(^|/)((site|dist)-packages|lib(64)?/(python|pypy)[0-9][0-9.]*t?|python[0-9]+\.zip|torchinductor_[^/]*)/'
        || '|^/usr/(local/)?lib(64)?/'
        || '|/bin/[^/.]+$'  -- an environment's scripts: torchrun, accelerate
        || '|/(rankmem_agent|python/(msmemscope|msleaks))/'  -- what records
        -- A profiler cuts off the folder that a package was found in.
        || '|^(torch|torch_npu|torch_xla|torchgen|functorch|triton)/'
        -- torch from a checkout, or installed where no package usually is, by files that it alone has.
        || '|/pytorch/torch/|/torch/(_[a-z]|nn/(modules|parallel|functional\.py|init\.py)|optim/|autograd/|functional\.py'
        || '|serialization\.py|utils/(_|data/|checkpoint\.py)|distributed/(_|fsdp/|tensor/|algorithms/|distributed_c10d\.py))'
        -- The standard library: on Windows below a folder lib, from profilers without any folder. Not code, profile,
        -- test and trace, as scripts and folders of projects are often named.
        || '|^([a-z]:/.*/lib/)?('
        || '(__future__|_collections_abc|_compat_pickle|_compression|_markupbase|_py_abc|_py_warnings|_pydatetime|_pydecimal'
        || '|_pyio|_sitebuiltins|_strptime|_threading_local|_weakrefset|abc|annotationlib|argparse|ast|base64|bdb|bisect|bz2'
        || '|cProfile|calendar|cmd|codecs|codeop|colorsys|configparser|contextlib|contextvars|copy|copyreg|csv|dataclasses'
        || '|datetime|decimal|difflib|dis|doctest|enum|filecmp|fileinput|fnmatch|fractions|ftplib|functools|genericpath'
        || '|getopt|getpass|gettext|glob|graphlib|gzip|hashlib|heapq|hmac|imp|inspect|io|ipaddress|keyword|linecache|locale'
        || '|lzma|mailbox|mimetypes|modulefinder|ntpath|numbers|opcode|operator|optparse|os|pathlib|pdb|pickle|pickletools'
        || '|pkgutil|platform|plistlib|posixpath|pprint|pstats|pty|py_compile|pydoc|queue|random|reprlib|runpy|sched|secrets'
        || '|selectors|shelve|shlex|shutil|signal|site|smtplib|socket|socketserver|sre_compile|sre_constants|sre_parse|ssl'
        || '|stat|statistics|string|struct|subprocess|symtable|sysconfig|tarfile|tempfile|textwrap|threading|timeit|token'
        || '|tokenize|traceback|tracemalloc|types|typing|uuid|warnings|wave|weakref|webbrowser|zipapp|zipfile|zipimport)\.py$'
        || '|(asyncio|collections|concurrent|ctypes|curses|dbm|distutils|email|encodings|html|http|importlib|json|logging'
        || '|multiprocessing|re|sqlite3|tomllib|unittest|urllib|wsgiref|xml|xmlrpc|zoneinfo)/([a-z_0-9]+/)?[A-Za-z_0-9]+\.py$)'
    )
        THEN 'library'
    ELSE 'project'
END;

COMMENT ON MACRO frame_origin IS 'Whose code a frame is: project, library or native.';
