#!/usr/bin/env python3
"""Writes the SQL files as C arrays: embed.py SQL_FOLDER OUTPUT.c"""
import hashlib
import pathlib
import sys

folder, output = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def literal(text):
    lines = []
    for line in text.splitlines(keepends=True):
        for at in range(0, len(line), 1000):
            part = line[at:at + 1000]
            part = part.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n").replace("\t", "\\t")
            lines.append('    "' + part.replace("??", '?\\?') + '"')
    return "\n".join(lines) or '    ""'


migrations = sorted(folder.glob("[0-9][0-9][0-9]_*.sql"))
functions = sorted((folder / "functions").glob("*.sql"))
out = ['/* Made by sql/embed.py. */', '#include "pg/schema_files.h"', '', '#include <stddef.h>', '']
out.append("const struct schema_file schema_migrations[] = {")
for path in [*migrations, *functions]:
    # A database in another encoding has no place for other characters, not even in a comment.
    path.read_text().encode("ascii")
for path in migrations:
    text = path.read_text()
    out.append('    {%d, "%s", "%s",\n%s},' % (int(path.name[:3]), path.stem[4:],
               hashlib.sha256(text.encode()).hexdigest(), literal(text)))
out += ["    {0, NULL, NULL, NULL},", "};", ""]
whole = "".join(path.read_text() for path in functions)
out.append("const struct schema_file schema_functions = {0, \"functions\", \"%s\",\n%s};" %
           (hashlib.sha256(whole.encode()).hexdigest(), literal(whole)))
for path in sorted((folder / "demo").glob("*.sql")):
    text = path.read_text()
    out.append('const struct schema_file schema_demo_%s = {0, "%s", "%s",\n%s};' %
               (path.stem, path.stem, hashlib.sha256(text.encode()).hexdigest(), literal(text)))
output.write_text("\n".join(out) + "\n")
