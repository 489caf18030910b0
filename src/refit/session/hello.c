#include "refit/session/hello.h"

#include "base/options.h"
#include "base/xxh3.h"

#include <stddef.h>
#include <stdio.h>
#include <string.h>

#define NUM_DEFAULT 2
#define GRAIN       4096 /* B is a multiple of it if no rank set another size */

uint64_t ravel__sum_of(const void *message, size_t bytes) {
    return ravel__xxh3_of((const char *)message + sizeof(uint64_t), bytes - sizeof(uint64_t));
}

void ravel__hello_seal(ravel__hello *h) {
    memcpy(h->magic, "RVLH", 4);
    h->format = RAVEL__HELLO_FORMAT;
    h->sum = ravel__sum_of(h, sizeof *h);
}

/* ---- the table ------------------------------------------------------------------------------------------ */

enum { FREE, SAME, SAME_IF_SET }; /* on all ranks; 0 is no value */

typedef struct row {
    const char *name;
    size_t offset, bytes;
    int64_t least, most; /* 0 is always allowed where it is no value */
    int32_t agreed;
    const char *choices;
} row;

/* clang-format off */
#define ROW(name, field, least, most, agreed, choices) \
    { name, offsetof(ravel__hello, field), sizeof((ravel__hello *)0)->field, least, most, agreed, choices }
static const row rows[] = {
    ROW("num-buffers (RAVEL_REFIT_NUM_BUFFERS)", settings.num_buffers, 0, RAVEL__NUM_BUFFERS_MOST, SAME_IF_SET, NULL),
    ROW("buffer-bytes (RAVEL_REFIT_BUFFER_BYTES)", settings.buffer_bytes, RAVEL__BUFFER_BYTES_LEAST,
        RAVEL__BUFFER_BYTES_MOST, SAME_IF_SET, NULL),
    ROW("cast", cast, RAVEL_REFIT_EXACT, RAVEL_REFIT_NARROW, SAME, RAVEL_REFIT_CAST_CHOICES),
    ROW("delta", delta, 0, 1, SAME, "no|yes"),
    ROW("ignore-extra", ignore_extra, 0, 1, SAME, "no|yes"),
    ROW("roles", roles, 0, RAVEL__SOURCE | RAVEL__SINK, FREE, NULL),
    ROW("sequential", sequential, 0, 1, FREE, NULL),
    ROW("reads-live", reads_live, 0, 1, FREE, NULL),
    ROW("by-ratio", settings.by_ratio, 0, 1, FREE, NULL),
    ROW("memory", settings.memory_bytes, 0, INT64_MAX, FREE, NULL),
    ROW("what it affords", settings.afford, 0, INT64_MAX, FREE, NULL),
    ROW("a manifest of the source of", manifest_bytes[0], 0, RAVEL__MANIFEST_BYTES_MOST, FREE, NULL),
    ROW("a manifest of the sink of", manifest_bytes[1], 0, RAVEL__MANIFEST_BYTES_MOST, FREE, NULL),
    ROW("held version", held.version, 0, INT64_MAX, FREE, NULL),
    ROW("prepared version", prepared.version, 0, INT64_MAX, FREE, NULL),
};
/* clang-format on */

enum { ROWS = sizeof rows / sizeof *rows };

static int64_t value_of(const row *r, const ravel__hello *hello) {
    int32_t word;
    int64_t value;
    memcpy(&word, (const char *)hello + r->offset, sizeof word);
    if (r->bytes == sizeof word) return word;
    memcpy(&value, (const char *)hello + r->offset, sizeof value);
    return value;
}

ravel_status ravel__hello_check(const ravel__hello *h, ravel_error *err) {
    if (memcmp(h->magic, "RVLH", 4) != 0 || h->format != RAVEL__HELLO_FORMAT)
        return ravel_error_set(err, RAVEL_E_MISMATCH, "it does not speak format %d of the refit protocol",
                               RAVEL__HELLO_FORMAT);
    if (h->sum != ravel__sum_of(h, sizeof *h))
        return ravel_error_set(err, RAVEL_E_CHECKSUM, "its hello arrived changed");
    for (int i = 0; i < ROWS; i++) {
        int64_t value = value_of(&rows[i], h);
        if ((value >= rows[i].least && value <= rows[i].most) || (rows[i].agreed == SAME_IF_SET && value == 0))
            continue;
        return ravel_error_set(err, RAVEL_E_DATA, "its hello says %s %lld; allowed is %lld to %lld", rows[i].name,
                               (long long)value, (long long)rows[i].least, (long long)rows[i].most);
    }
    for (int side = 0; side < 2; side++)
        if (((h->roles >> side & 1) != 0) != (h->manifest_bytes[side] > 0))
            return ravel_error_set(err, RAVEL_E_DATA, "its hello says roles %d and a manifest of %lld bytes", h->roles,
                                   (long long)h->manifest_bytes[side]);
    return RAVEL_OK;
}

/* ---- over all ranks ------------------------------------------------------------------------------------- */

const char *ravel__role_name(int32_t roles) {
    static const char *const names[] = {"neither sender nor receiver", "sender", "receiver", "sender and receiver"};
    return names[roles & 3];
}

static void name_value(const row *r, int64_t value, char *text, size_t bytes) {
    if (!r->choices || !ravel__choice_word(r->choices, (int32_t)value, text, bytes))
        (void)snprintf(text, bytes, "%lld", (long long)value);
}

/* Reports the first rank whose value differs from that of the first rank that has one. */
static void compare(const row *r, const ravel__hello *hellos, int32_t ranks, ravel__differences *list) {
    int32_t first = 0;
    char a[32], b[32];
    while (r->agreed == SAME_IF_SET && first < ranks && value_of(r, &hellos[first]) == 0) first++;
    for (int32_t rank = first + 1; rank < ranks; rank++) {
        int64_t x = value_of(r, &hellos[first]), y = value_of(r, &hellos[rank]);
        if (x == y || (r->agreed == SAME_IF_SET && y == 0)) continue;
        name_value(r, x, a, sizeof a);
        name_value(r, y, b, sizeof b);
        ravel__differences_add(list, "%s: %s on rank %d (%s), %s on rank %d (%s)", r->name, a, first,
                               ravel__role_name(hellos[first].roles), b, rank, ravel__role_name(hellos[rank].roles));
        return;
    }
}

void ravel__hello_compare(const ravel__hello *hellos, int32_t ranks, ravel__differences *list) {
    for (int i = 0; i < ROWS; i++)
        if (rows[i].agreed != FREE) compare(&rows[i], hellos, ranks, list);
}

/* Sizes of a buffer that nobody chose: `frames` of a stream, from `least` to `most` bytes. */
static const struct transport_row {
    const char *kind; /* ravel_comm_kind; NULL: any other */
    int64_t frames, least, most;
} transports[] = {
    {"tcp", 64, 1 << 20, 1 << 20},
    {"nccl", 8, 1 << 20, 64 << 20},
    {NULL, 64, 1 << 20, 4 << 20},
};

static int64_t auto_bytes(const char *kind, int64_t stream_bytes) {
    const struct transport_row *t = transports;
    while (t->kind && strcmp(t->kind, kind) != 0) t++;
    int64_t bytes = stream_bytes / t->frames;
    return bytes < t->least ? t->least : bytes > t->most ? t->most : bytes;
}

/* B by a rank's memory. */
static int64_t bytes_by_memory(const ravel__settings *s, int32_t num, const char *kind, int64_t stream_bytes) {
    int64_t bytes = s->memory_bytes / num, best = auto_bytes(kind, stream_bytes);
    if (!s->by_ratio && bytes > best) bytes = best;
    bytes -= bytes % GRAIN;
    return bytes < RAVEL__BUFFER_BYTES_LEAST ? RAVEL__BUFFER_BYTES_LEAST : bytes;
}

ravel__terms ravel__hello_terms(const ravel__hello *hellos, int32_t ranks, const char *kind, int64_t stream_bytes) {
    ravel__terms terms = {NUM_DEFAULT, 0};
    for (int32_t r = ranks; r-- > 0;) {
        if (hellos[r].settings.num_buffers > 0) terms.num_buffers = hellos[r].settings.num_buffers;
        if (hellos[r].settings.buffer_bytes > 0) terms.buffer_bytes = hellos[r].settings.buffer_bytes;
    }
    for (int32_t r = 0, chosen = terms.buffer_bytes > 0; r < ranks && !chosen; r++) {
        int64_t bytes = bytes_by_memory(&hellos[r].settings, terms.num_buffers, kind, stream_bytes);
        if (terms.buffer_bytes == 0 || bytes < terms.buffer_bytes) terms.buffer_bytes = bytes;
    }
    return terms;
}

void ravel__hello_afford(const ravel__hello *hellos, int32_t ranks, const ravel__terms *terms,
                         ravel__differences *list) {
    for (int32_t r = 0; r < ranks; r++) {
        int64_t sets = hellos[r].roles == (RAVEL__SOURCE | RAVEL__SINK) ? 2 : hellos[r].roles != 0;
        if (sets == 0 || terms->buffer_bytes <= hellos[r].settings.afford / terms->num_buffers / sets) continue;
        ravel__differences_add(list, "%d buffers of %lld bytes: rank %d (%s) can afford %lld bytes in all",
                               (int)(sets * terms->num_buffers), (long long)terms->buffer_bytes, r,
                               ravel__role_name(hellos[r].roles), (long long)hellos[r].settings.afford);
    }
}
