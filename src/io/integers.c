#include "base/assert.h"
#include "io/integers.h"

#include "base/memory.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>

void ravel__integers_init(ravel__integers *table, const ravel__ask *ask) {
    RAVEL_ASSERT(ask && ask->what && ask->names && (ask->pairs == 0 || ask->pairs == 1));
    memset(table, 0, sizeof *table);
    table->ask = ask;
}

void ravel__integers_free(ravel__integers *table) {
    RAVEL_ASSERT((table->columns[0] == NULL) == (table->rooms[0] == 0));
    for (int i = 0; i < 2; i++)
        ravel__release(table->ask->allocator, table->columns[i], (size_t)table->rooms[i] * sizeof(int64_t));
    ravel__release(table->ask->allocator, table->lines, (size_t)table->line_room * sizeof(int64_t));
    table->lines = NULL;
    table->line_room = 0;
    memset(table->columns, 0, sizeof table->columns);
    memset(table->rooms, 0, sizeof table->rooms);
}

void ravel__integers_choose(ravel__integers *table, const char *first, const char *second) {
    RAVEL_ASSERT(first && (!second || table->ask->pairs));
    table->width = second ? 2 : 1;
    (void)snprintf(table->label, sizeof table->label, "%.40s%s%.40s", first, second ? " + " : "", second ? second : "");
}

/* Room for one more number. */
static ravel_status grow(const ravel__integers *t, int64_t **column, int64_t *room, ravel_error *err) {
    RAVEL_ASSERT(t->count >= 0 && *room >= 0 && (*room == 0) == (*column == NULL));
    if (*room > t->count) return RAVEL_OK;
    int64_t larger = *room ? *room * 2 : 1024;
    size_t before = (size_t)*room * sizeof(int64_t), bytes = (size_t)larger * sizeof(int64_t);
    int64_t *grown = ravel__resize(t->ask->allocator, *column, before, bytes);
    if (!grown) return ravel__no_memory(err, bytes, "a column of numbers");
    *column = grown;
    *room = larger;
    return RAVEL_OK;
}

static ravel_status out_of_range(const ravel__ask *ask, int64_t value, ravel_error *err) {
    return ravel_error_set(err, RAVEL_E_DATA, "%s %lld; it must be from %lld to %lld", ask->what, (long long)value,
                           (long long)ask->min, (long long)ask->max);
}

static ravel_status check_pair(const ravel__ask *ask, int64_t first, int64_t second, ravel_error *err) {
    if (first < 0 || second < 0)
        return ravel_error_set(err, RAVEL_E_DATA, "prompt %lld and response %lld; neither may be negative",
                               (long long)first, (long long)second);
    int64_t sum;
    if (__builtin_add_overflow(first, second, &sum) || sum > ask->max || sum < ask->min)
        return ravel_error_set(err, RAVEL_E_DATA, "prompt %lld and response %lld; their sum must be from %lld to %lld",
                               (long long)first, (long long)second, (long long)ask->min, (long long)ask->max);
    return RAVEL_OK;
}

ravel_status ravel__integers_push(ravel__integers *t, int64_t first, int64_t second, ravel_error *err) {
    RAVEL_ASSERT(t->width == 1 || t->width == 2);
    ravel_status status = RAVEL_OK;
    if (t->width == 2)
        status = check_pair(t->ask, first, second, err);
    else if (first < t->ask->min || first > t->ask->max)
        status = out_of_range(t->ask, first, err);
    for (int i = 0; i < t->width && !status; i++) status = grow(t, &t->columns[i], &t->rooms[i], err);
    if (!status && t->line) status = grow(t, &t->lines, &t->line_room, err);
    if (status) return status;
    RAVEL_ASSERT(!t->line || t->count < t->line_room);
    RAVEL_ASSERT(t->count < t->rooms[0] && (t->width == 1 || t->count < t->rooms[1]));
    t->columns[0][t->count] = first;
    if (t->width == 2) t->columns[1][t->count] = second;
    if (t->line) t->lines[t->count] = t->line;
    t->count++;
    return RAVEL_OK;
}

/* The next letter or digit, in lower case; 0 at the end. */
static int next_letter(const char *text, size_t bytes, size_t *at) {
    RAVEL_ASSERT(*at <= bytes);
    while (*at < bytes) {
        unsigned char c = (unsigned char)text[(*at)++];
        if (isalnum(c) || c >= 0x80) return tolower(c);
    }
    return 0;
}

int ravel__same_name(const char *a, size_t a_bytes, const char *b, size_t b_bytes) {
    size_t i = 0, j = 0;
    for (;;) {
        int x = next_letter(a, a_bytes, &i), y = next_letter(b, b_bytes, &j);
        if (x != y) return 0;
        if (!x) return 1;
    }
}

int ravel__field_parts(const char *field, const char *parts[2], size_t bytes[2]) {
    RAVEL_ASSERT(field);
    const char *comma = strchr(field, ',');
    parts[0] = field;
    bytes[0] = comma ? (size_t)(comma - field) : strlen(field);
    if (!bytes[0]) return 0;
    if (!comma) return 1;
    parts[1] = comma + 1;
    bytes[1] = strlen(parts[1]);
    return bytes[1] && !strchr(parts[1], ',') ? 2 : 0;
}

int ravel__parse_integer(const char *text, size_t bytes, int64_t *value) {
    const char *at = text, *end = text + bytes;
    int negative = at < end && *at == '-';
    if (at < end && (*at == '-' || *at == '+')) at++;
    const char *digits = at;
    int64_t sum = 0;
    for (; at < end && *at >= '0' && *at <= '9'; at++)
        if (__builtin_mul_overflow(sum, (int64_t)10, &sum) || __builtin_sub_overflow(sum, (int64_t)(*at - '0'), &sum))
            return 0;
    if (at == digits) return 0;
    if (at < end && *at == '.') /* 12.0: some tools write every number as a real one */
        for (at++; at < end && *at == '0';) at++;
    if (at != end || (!negative && sum == INT64_MIN)) return 0;
    *value = negative ? sum : -sum;
    return 1;
}
