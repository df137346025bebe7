"""The web page: a reader over ``Queries`` that answers over HTTP, and the page that asks it.

Stage: query, in a process of its own (``rankmem page``), never in the aggregator's. ``app`` has the routes,
``answers`` what each of them returns, ``static`` the page itself. Only this room imports Starlette and
uvicorn.
"""
