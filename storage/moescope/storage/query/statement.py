"""Which SQL text is run at all: exactly one statement, and one that only reads.

The text is judged by DuckDB's own parser, never by patterns over it. This check gives early, clear
answers; what holds when it should miss something are the read-only transaction, the locked
configuration and the limits of the worker process.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import duckdb

from moescope.storage.query.errors import QueryFailedError, QueryRefusedError

if TYPE_CHECKING:
    from collections.abc import Iterator

READING_TABLE_FUNCTIONS: Final = frozenset(
    {
        "duckdb_columns",
        "duckdb_functions",
        "duckdb_keywords",
        "duckdb_memory",
        "duckdb_schemas",
        "duckdb_tables",
        "duckdb_types",
        "duckdb_views",
        "generate_series",
        "json_each",
        "json_tree",
        "pragma_show",
        "pragma_table_info",
        "pragma_version",
        "range",
        "repeat",
        "repeat_row",
        "show",
        "show_databases",
        "show_tables",
        "show_tables_expanded",
        "unnest",
    }
)
"""Table functions that open no file, change no state and run no further SQL text."""

_READING_NODES: Final = frozenset(
    {"SELECT_NODE", "SET_OPERATION_NODE", "RECURSIVE_CTE_NODE", "CTE_NODE"}
)
_NAMING_NODES: Final = frozenset({"BASE_TABLE", "SHOW_REF"})
_PATH_CHARACTERS: Final = frozenset("/\\:*?[")
_EXPLAIN_OPTIONS: Final = frozenset({"analyze", "format", "verbose"})
_NEXT_STEP: Final = "Send one SELECT, WITH, DESCRIBE, SUMMARIZE, SHOW or EXPLAIN."


def check_statement(connection: duckdb.DuckDBPyConnection, query: str) -> None:
    """Accept exactly one statement that only reads.

    Args:
        connection: Any connection; nothing is run on it but the parser.
        query: What the user wrote.

    Raises:
        QueryRefusedError: No statement, several, or one that does more than read.
        QueryFailedError: DuckDB cannot parse it.
    """
    statement = _single_statement(connection, query)
    if statement.type == duckdb.StatementType.EXPLAIN:
        check_statement(connection, _explained(query))
        return
    if statement.type != duckdb.StatementType.SELECT:
        _refuse(f"A {statement.type.name} statement is not allowed.")
    try:
        for node in _nodes(_syntax_tree(connection, statement.query)):
            _check_node(node)
    except RecursionError as error:
        raise QueryRefusedError(
            "The query is nested too deeply.", next_step="Send a simpler one."
        ) from error


def _single_statement(connection: duckdb.DuckDBPyConnection, query: str) -> duckdb.Statement:
    try:
        statements = connection.extract_statements(query)
    except duckdb.Error as error:
        raise QueryFailedError("The query cannot be parsed.", why=str(error)) from error
    if len(statements) != 1:
        _refuse(f"Expected one statement, found {len(statements)}.")
    return statements[0]


def _explained(query: str) -> str:
    """The statement that an EXPLAIN explains."""
    text = query.encode()
    tokens = [
        (offset, kind)
        for offset, kind in duckdb.tokenize(query)
        if kind != duckdb.token_type.comment
    ]
    ends = [offset for offset, _ in tokens[1:]] + [len(text)]
    words = [
        text[offset:end].strip().lower() for (offset, _), end in zip(tokens, ends, strict=True)
    ]
    position = 1
    if position < len(words) and words[position].split()[:1] == [b"analyze"]:
        position += 1
    if (
        position + 1 < len(words)
        and words[position] == b"("
        and words[position + 1].split()[:1]
        and words[position + 1].split()[0].decode() in _EXPLAIN_OPTIONS
    ):
        while position < len(words) and words[position] != b")":
            position += 1
        position += 1
    if position >= len(tokens):
        _refuse("EXPLAIN has nothing to explain.")
    return text[tokens[position][0] :].decode()


def _syntax_tree(connection: duckdb.DuckDBPyConnection, query: str) -> Any:  # noqa: ANN401 (JSON)
    try:
        row = connection.execute("select json_serialize_sql($1::varchar)", [query]).fetchone()
    except duckdb.Error as error:
        raise QueryRefusedError(
            "The query cannot be checked.", why=str(error), next_step=_NEXT_STEP
        ) from error
    tree = json.loads(row[0]) if row else {"error": True}
    if tree["error"]:
        _refuse("The statement does more than read.", why=str(tree.get("error_message", "")))
    return tree


def _nodes(tree: object) -> Iterator[dict[str, Any]]:
    pending = [tree]
    while pending:
        item = pending.pop()
        if isinstance(item, dict):
            yield item
            pending.extend(item.values())
        elif isinstance(item, list):
            pending.extend(item)


def _check_node(node: dict[str, Any]) -> None:
    kind = node.get("type")
    if not isinstance(kind, str):
        return
    if kind.endswith("_NODE") and kind not in _READING_NODES:
        _refuse("The statement does more than read.", why=f"It holds a {kind}.")
    if kind == "TABLE_FUNCTION":
        name = str(node["function"]["function_name"]).lower()
        if name not in READING_TABLE_FUNCTIONS:
            _refuse(f"The table function {name}() is not allowed.")
    if kind in _NAMING_NODES and _PATH_CHARACTERS.intersection(str(node["table_name"])):
        _refuse(f"Files cannot be queried by name: {node['table_name']!r}.")


def _refuse(what: str, *, why: str = "") -> None:
    raise QueryRefusedError(what, why=why, next_step=_NEXT_STEP)
