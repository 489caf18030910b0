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

#include <ravel/json.h>

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

/* Sets fields from the members of a JSON object, e.g. {"budget": 16384, "sync": "update"}; a value may be a JSON
 * number, a boolean or the string that ravel_option_set takes. STRING fields point into `doc`, which must outlive
 * them. An unknown member is an error with a suggestion. */
RAVEL_API ravel_status ravel_options_from_json(ravel_option_table table, void *options, const ravel_json *doc,
                                               const ravel_json_node *object, ravel_error *err);

/* Checks every number against its row's min and max, every enum against its choices. */
RAVEL_API ravel_status ravel_options_check(ravel_option_table table, const void *options, ravel_error *err);

/* The row called `name`, or NULL. */
RAVEL_API const ravel_option *ravel_option_find(ravel_option_table table, const char *name);

/* Writes the field's value as text that ravel_option_set would take ("16384", "micro-step"). Returns the length
 * that it needs, like snprintf. */
RAVEL_API size_t ravel_option_format(const ravel_option *row, const void *options, char *text, size_t bytes);

/* The i-th word of "a|b|c" into `word`; returns 0 when there is none. */
RAVEL_API int ravel_choice_word(const char *choices, int32_t index, char *word, size_t bytes);

/* The index of `word` in "a|b|c", or -1. */
RAVEL_API int32_t ravel_choice_index(const char *choices, const char *word);

/* "16k" to 16384. The whole text must be a number; E_ARGUMENT quotes it, E_OVERFLOW where it does not fit. */
RAVEL_API ravel_status ravel_parse_size(const char *text, int64_t *value, ravel_error *err);

/* The nearest of `count` names to a mistyped one, or NULL when none is near. */
RAVEL_API const char *ravel_suggest(const char *typed, const char *const *names, size_t count);

#ifdef __cplusplus
}
#endif
#endif
