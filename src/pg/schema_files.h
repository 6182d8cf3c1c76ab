/*
 * schema_files.h — the SQL of sql/, embedded at build time by sql/embed.py.
 *
 * Threads: constant.
 */
#ifndef PR_SCHEMA_FILES_H
#define PR_SCHEMA_FILES_H

struct schema_file {
    int version;          /* 1, 2, …; 0 for the functions, which are replaced as a whole */
    const char *name;     /* NULL ends the list */
    const char *checksum; /* SHA-256 of the text, hexadecimal */
    const char *text;
};

extern const struct schema_file schema_migrations[];
extern const struct schema_file schema_functions;

/* Tables and functions of the story that `postrider dev` plays. */
extern const struct schema_file schema_demo_shop;
extern const struct schema_file schema_demo_rewards;

#endif
