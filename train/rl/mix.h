/* train/rl/mix.h: a reward made of parts: the weighted sum of what was measured of an answer.
 *
 *     exact:1,length:-0.2,tests:0.5        NAME[:WEIGHT], ...; without a weight 1
 *
 * `exact`, `ended` and `length` are measured here; `command` is the "reward" of the reward command, and any other name
 * is a part that the command answers: {"id": 17, "rewards": {"tests": 0.25}}. */
#ifndef TRAIN_MIX_H
#define TRAIN_MIX_H

#include <ravel/base.h>

enum { TRAIN_MIX_PARTS = 16, TRAIN_MIX_NAME = 32 };

/* X(ID, name, sentence) */
#define TRAIN_MIX_LIST(X)                                             \
    X(EXACT, "exact", "1 for the right answer, else up to --partial") \
    X(ENDED, "ended", "1 for an answer that ended by itself")         \
    X(LENGTH, "length", "tokens of the answer / --max-tokens")        \
    X(COMMAND, "command", "\"reward\" of the reward command")

typedef enum train_mix_kind {
#define X(ID, name, sentence) TRAIN_MIX_##ID,
    TRAIN_MIX_LIST(X)
#undef X
        TRAIN_MIX_NAMED
} train_mix_kind;

typedef struct train_mix_part {
    char name[TRAIN_MIX_NAME];
    int32_t kind; /* train_mix_kind */
    double weight;
} train_mix_part;

typedef struct train_mix {
    train_mix_part parts[TRAIN_MIX_PARTS];
    int32_t count;
} train_mix;

/* list NULL: the command alone if there is one, else `exact`. E_ARGUMENT says which part is wrong, also if a part needs
 * a command that is not there, or no part is the command's. */
ravel_status train_mix_parse(const char *list, int has_command, train_mix *mix, ravel_error *err);
/* Whether a part is of this kind. */
int train_mix_has(const train_mix *mix, train_mix_kind kind);
/* Whether the command measures part i. */
int train_mix_commanded(const train_mix *mix, int32_t i);
/* The weighted sum. values[count] */
double train_mix_sum(const train_mix *mix, const double *values);

/* Sums of the parts, before weights, over `count` answers. All zero is none. */
typedef struct train_mix_sums {
    double values[TRAIN_MIX_PARTS];
    int64_t count;
} train_mix_sums;

#endif
