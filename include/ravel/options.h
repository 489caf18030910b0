/* ravel/options.h: option structs described by tables.
 *
 * Every option struct of Ravel has a table with a row per field: name, type, default, allowed values, one sentence.
 * `--help`, JSON configs, the JSON report and the Python keywords come from the table, so an option is added in one
 * place.
 *
 *     ravel_plan_options options;
 *     ravel_plan_options_default(&options);
 *     ravel_option_set(ravel_plan_option_table(), &options, "budget", "16k", &err);
 *
 * Sizes take suffixes: k, M, G, T are 1024-based (16k is 16384); "ki", "kb", "KiB" and so on mean the same. A
 * name may be written with '-' or '_'. An unknown name is an error that suggests the nearest one.
 */
#ifndef RAVEL_OPTIONS_H
#define RAVEL_OPTIONS_H

#include <ravel/base.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef enum ravel_option_type {
    RAVEL_OPTION_I32,   /* int32_t */
    RAVEL_OPTION_I64,   /* int64_t, with size suffixes */
    RAVEL_OPTION_U64,   /* uint64_t, with size suffixes, decimal or 0x */
    RAVEL_OPTION_F64,   /* double */
    RAVEL_OPTION_BOOL,  /* int32_t: true, false, yes, no, on, off, 1, 0 */
    RAVEL_OPTION_ENUM,  /* int32_t: index into `choices` */
    RAVEL_OPTION_STRING /* const char *: points at the text that was given, which must outlive the struct */
} ravel_option_type;

typedef struct ravel_option {
    const char *name;    /* with '-', as on the command line: "max-samples" */
    int32_t type;        /* ravel_option_type */
    int32_t offset;      /* of the field in the struct */
    const char *preset;  /* the default, as text */
    double min, max;     /* inclusive, for numbers; both 0: anything of the type */
    const char *choices; /* for ENUM: "micro-step|update|pipeline", in numeric order */
    const char *doc;     /* one sentence */
} ravel_option;

/* Rows until one with name == NULL. */
typedef const ravel_option *ravel_option_table;

/* Sets every field of the table to its default. */
RAVEL_API void ravel_options_default(ravel_option_table table, void *options);

/* Parses `value` into the field called `name`. E_ARGUMENT quotes the value and says what is allowed. */
RAVEL_API ravel_status ravel_option_set(ravel_option_table table, void *options, const char *name, const char *value,
                                        ravel_error *err);

/* The row called `name`, or NULL. */
RAVEL_API const ravel_option *ravel_option_find(ravel_option_table table, const char *name);

/* Writes the field's value as text that ravel_option_set would take ("16384", "micro-step"). Returns the length
 * that it needs, like snprintf. */
RAVEL_API size_t ravel_option_format(const ravel_option *row, const void *options, char *text, size_t bytes);

#ifdef __cplusplus
}
#endif
#endif
