/* Option tables (ravel/options.h) for our own programs: from JSON, and the words of their values. */
#ifndef RAVEL_BASE_OPTIONS_H
#define RAVEL_BASE_OPTIONS_H

#include "base/json.h"

#include <ravel/options.h>

/* Sets fields from the members of a JSON object, e.g. {"budget": 16384, "sync": "update"}; a value may be a JSON
 * number, a boolean or the string that ravel_option_set takes. STRING fields point into `doc`, which must outlive
 * them. An unknown member is an error with a suggestion. */
ravel_status ravel__options_from_json(ravel_option_table table, void *options, const ravel__json *doc,
                                      const ravel__json_node *object, ravel_error *err);

/* A record of `bytes`, which begins with its size: the defaults, and zeros where the table has no row. */
void ravel__options_preset(ravel_option_table table, void *options, size_t bytes);

/* The caller's record of options over `own`, which has the defaults: what an older caller's record lacks keeps its
 * default. Every row is checked. Both begin with their size; E_ARGUMENT if it was never set names the `object`
 * ("plan"). */
ravel_status ravel__take_options(ravel_option_table table, const char *object, const void *given, void *own,
                                 size_t bytes, ravel_error *err);

/* Checks every number against its row's min and max, every enum against its choices. */
ravel_status ravel__check_options(ravel_option_table table, const void *options, ravel_error *err);

/* The i-th word of "a|b|c" into `word`; returns 0 when there is none. */
int ravel__choice_word(const char *choices, int32_t index, char *word, size_t bytes);

/* The index of `word` in "a|b|c", or -1. */
int32_t ravel__choice_index(const char *choices, const char *word);

/* "16k" to 16384. The whole text must be a number; E_ARGUMENT quotes it, E_OVERFLOW if it does not fit. */
ravel_status ravel__parse_size(const char *text, int64_t *value, ravel_error *err);

/* The nearest of `count` names to a mistyped one, or NULL when none is near. */
const char *ravel__suggest(const char *typed, const char *const *names, size_t count);

/* A row of a table whose options are a struct `type`: name, I32 and so on, field, default, least, most, choices, help. */
/* clang-format off */
#define RAVEL__ROW(type, name, kind, field, preset, least, most, choices, doc) \
    { name, RAVEL_OPTION_##kind, offsetof(type, field), preset, least, most, choices, doc }
/* clang-format on */

#endif
