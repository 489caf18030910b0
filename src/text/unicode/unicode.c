/* UTF-8, white space, NFC. NFC is Unicode's own algorithm:
 *
 *     text --> characters, taken apart completely --> marks sorted by class --> composed again --> text
 *
 * on the versions of the tables that the `tokenizers` package has. */
#include "text/unicode/unicode.h"

#include "base/assert.h"

#include <string.h>

#include "text/unicode/unicode_tables.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- UTF-8 ---------------------------------------------------------------------------------------------- */

size_t ravel__utf8_length(const char *text, size_t bytes) {
    const unsigned char *u = (const unsigned char *)text;
    if (bytes == 0) return 0;
    size_t n = u[0] < 0x80 ? 1 : u[0] < 0xc2 ? 0 : u[0] < 0xe0 ? 2 : u[0] < 0xf0 ? 3 : u[0] < 0xf5 ? 4 : 0;
    if (n == 0 || n > bytes) return 0;
    for (size_t i = 1; i < n; i++)
        if ((u[i] & 0xc0) != 0x80) return 0;
    if (n == 3 && ((u[0] == 0xe0 && u[1] < 0xa0) || (u[0] == 0xed && u[1] >= 0xa0))) return 0;
    if (n == 4 && ((u[0] == 0xf0 && u[1] < 0x90) || (u[0] == 0xf4 && u[1] >= 0x90))) return 0;
    return n;
}

size_t ravel__utf8_get(const char *text, uint32_t *point) {
    const unsigned char *u = (const unsigned char *)text;
    if (u[0] < 0x80) return *point = u[0], 1;
    if (u[0] < 0xe0) return *point = (u[0] & 31u) << 6 | (u[1] & 63u), 2;
    if (u[0] < 0xf0) return *point = (u[0] & 15u) << 12 | (u[1] & 63u) << 6 | (u[2] & 63u), 3;
    *point = (u[0] & 7u) << 18 | (u[1] & 63u) << 12 | (u[2] & 63u) << 6 | (u[3] & 63u);
    return 4;
}

size_t ravel__utf8_width(const char *text, size_t bytes) {
    unsigned char first = (unsigned char)text[0];
    size_t n = first < 0x80 ? 1 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;
    return n < bytes ? n : bytes;
}

size_t ravel__utf8_put(char *out, uint32_t point) {
    RAVEL_ASSERT(point < 0x110000);
    size_t n = point < 0x80 ? 1 : point < 0x800 ? 2 : point < 0x10000 ? 3 : 4;
    static const unsigned char lead[] = {0, 0, 0xc0, 0xe0, 0xf0};
    for (size_t i = n - 1; i > 0; i--, point >>= 6) out[i] = (char)(0x80 | (point & 63));
    out[0] = (char)(lead[n] | point);
    return n;
}

/* The range that holds the point, or NULL. */
static const unicode_range *find(const unicode_range *ranges, size_t count, uint32_t point) {
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (point > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    RAVEL_ASSERT(low <= count && (low == 0 || ranges[low - 1].last < point));
    return low < count && point >= ranges[low].first ? &ranges[low] : NULL;
}
#define FIND(ranges, point) find(ranges, COUNT(ranges), point)

static int look_at(uint32_t point) {
    int seen = 0;
    if (point < 0x300) return 0;
    if (FIND(suspect_ranges, point)) seen |= RAVEL__TEXT_SUSPECT;
    if (FIND(recent_ranges, point)) seen |= RAVEL__TEXT_RECENT;
    return seen;
}

size_t ravel__utf8_scan(const char *text, size_t bytes, int *seen) {
    size_t at = 0;
    *seen = 0;
    while (at < bytes) {
        uint64_t eight;
        uint32_t point;
        if (bytes - at >= 8 && (memcpy(&eight, text + at, 8), !(eight & 0x8080808080808080u))) {
            at += 8;
            continue;
        }
        size_t n = ravel__utf8_length(text + at, bytes - at);
        if (n == 0) return at;
        if (n > 1) {
            (void)ravel__utf8_get(text + at, &point);
            *seen |= look_at(point);
        }
        at += n;
    }
    return at;
}

void ravel__utf8_age(char *text, size_t bytes) {
    for (size_t at = 0; at < bytes;) {
        uint32_t point;
        size_t n = ravel__utf8_get(text + at, &point);
        const unicode_range *range = n > 2 ? FIND(recent_ranges, point) : NULL;
        if (range) {
            size_t put = ravel__utf8_put(text + at, range->value);
            RAVEL_ASSERT(put == n);
            (void)put;
        }
        at += n;
    }
}

/* ---- white space ---------------------------------------------------------------------------------------- */

int ravel__is_space(uint32_t c) {
    return (c >= 9 && c <= 13) || c == 32 || c == 0x85 || c == 0xa0 || c == 0x1680 || (c >= 0x2000 && c <= 0x200a) ||
           c == 0x2028 || c == 0x2029 || c == 0x202f || c == 0x205f || c == 0x3000;
}

size_t ravel__spaces_after(const char *text, size_t bytes) {
    size_t at = 0;
    for (uint32_t point; at < bytes;) {
        size_t n = ravel__utf8_get(text + at, &point);
        if (!ravel__is_space(point)) break;
        at += n;
    }
    return at;
}

size_t ravel__spaces_before(const char *text, size_t bytes) {
    size_t end = bytes;
    while (end > 0) {
        size_t at = end - 1;
        uint32_t point;
        while (at > 0 && ((unsigned char)text[at] & 0xc0) == 0x80) at--;
        (void)ravel__utf8_get(text + at, &point);
        if (!ravel__is_space(point)) break;
        end = at;
    }
    return bytes - end;
}

/* ---- NFC ------------------------------------------------------------------------------------------------ */

enum { S_BASE = 0xac00, L_BASE = 0x1100, V_BASE = 0x1161, T_BASE = 0x11a7, L_COUNT = 19, V_COUNT = 21, T_COUNT = 28 };
enum { S_COUNT = L_COUNT * V_COUNT * T_COUNT, LONGEST_DECOMPOSITION = 4 };

static uint32_t class_of(uint32_t point) {
    const unicode_range *range = point < 0x300 ? NULL : FIND(class_ranges, point);
    return range ? range->value : 0;
}

static const unicode_parts *parts_of(uint32_t point) {
    size_t low = 0, high = COUNT(decompositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (decompositions[middle].whole < point)
            low = middle + 1;
        else
            high = middle;
    }
    return low < COUNT(decompositions) && decompositions[low].whole == point ? &decompositions[low] : NULL;
}

/* The parts of a character into out[4], in order; how many there are. */
static size_t decompose(uint32_t point, uint32_t *out) {
    RAVEL_ASSERT(point < 0x110000);
    if (point >= S_BASE && point < S_BASE + S_COUNT) {
        uint32_t s = point - S_BASE, t = s % T_COUNT;
        out[0] = L_BASE + s / (V_COUNT * T_COUNT);
        out[1] = V_BASE + s % (V_COUNT * T_COUNT) / T_COUNT;
        out[2] = T_BASE + t;
        return t ? 3 : 2;
    }
    const unicode_parts *parts = point < 0xc0 ? NULL : parts_of(point);
    if (!parts) return out[0] = point, 1;
    size_t n = decompose(parts->first, out); /* only first parts come apart again, at most twice */
    if (parts->second) out[n++] = parts->second;
    RAVEL_ASSERT(n <= LONGEST_DECOMPOSITION);
    return n;
}

static uint32_t compose(uint32_t first, uint32_t second) {
    if (first >= L_BASE && first < L_BASE + L_COUNT && second >= V_BASE && second < V_BASE + V_COUNT)
        return S_BASE + ((first - L_BASE) * V_COUNT + (second - V_BASE)) * T_COUNT;
    if (first >= S_BASE && first < S_BASE + S_COUNT && (first - S_BASE) % T_COUNT == 0 && second > T_BASE &&
        second < T_BASE + T_COUNT)
        return first + (second - T_BASE);
    size_t low = 0, high = COUNT(compositions);
    while (low < high) {
        size_t middle = (low + high) / 2;
        const unicode_parts *p = &decompositions[compositions[middle]];
        if (p->first < first || (p->first == first && p->second < second))
            low = middle + 1;
        else
            high = middle;
    }
    const unicode_parts *p = low < COUNT(compositions) ? &decompositions[compositions[low]] : NULL;
    return p && p->first == first && p->second == second ? p->whole : 0;
}

enum { SHORT_RUN = 32, CLASSES = 256 };

static void insert_sort(uint32_t *points, uint32_t *origins, size_t count) {
    for (size_t i = 1; i < count; i++) {
        uint32_t point = points[i], origin = origins[i], class = class_of(point);
        size_t at = i;
        for (; at > 0 && class_of(points[at - 1]) > class; at--) {
            points[at] = points[at - 1];
            origins[at] = origins[at - 1];
        }
        points[at] = point;
        origins[at] = origin;
    }
}

/* By counting, so that a million marks in a row take no longer than a million words. */
static void count_sort(uint32_t *points, uint32_t *origins, size_t count, uint32_t *spare) {
    RAVEL_ASSERT(count > SHORT_RUN);
    size_t places[CLASSES + 1] = {0};
    for (size_t i = 0; i < count; i++) places[class_of(points[i]) + 1]++;
    for (int c = 0; c < CLASSES; c++) places[c + 1] += places[c];
    for (size_t i = 0; i < count; i++) {
        size_t place = places[class_of(points[i])]++;
        spare[place] = points[i];
        spare[count + place] = origins[i];
    }
    RAVEL_ASSERT(places[CLASSES - 1] <= count);
    memcpy(points, spare, count * sizeof *points);
    memcpy(origins, spare + count, count * sizeof *origins);
}

/* Runs of marks by class, equal classes in their order. `spare` has room for twice the points. */
static void sort_marks(uint32_t *points, uint32_t *origins, size_t count, uint32_t *spare) {
    for (size_t i = 0, end; i < count; i = end + 1) {
        for (end = i; end < count && class_of(points[end]); end++) {}
        if (end - i <= SHORT_RUN)
            insert_sort(points + i, origins + i, end - i);
        else
            count_sort(points + i, origins + i, end - i, spare);
    }
}

/* Each mark that is not blocked joins the starter before it, if there is a character for the two. */
static size_t compose_all(uint32_t *points, uint32_t *origins, size_t count) {
    size_t kept = 0, starter = SIZE_MAX;
    uint32_t last = 0; /* class of the last kept mark after the starter */
    for (size_t i = 0; i < count; i++) {
        uint32_t class = class_of(points[i]), whole = 0;
        int blocked = kept > 0 && starter != SIZE_MAX && kept - 1 != starter && last >= class;
        if (starter != SIZE_MAX && !blocked) whole = compose(points[starter], points[i]);
        if (whole) {
            points[starter] = whole;
            continue;
        }
        if (class == 0) starter = kept;
        last = class;
        RAVEL_ASSERT(kept <= i);
        points[kept] = points[i];
        origins[kept++] = origins[i];
    }
    return kept;
}

static ravel_status write_text(ravel__nfc *nfc, size_t count, const ravel_allocator *allocator, ravel_error *err) {
    const uint32_t *points = nfc->points.at, *origins = nfc->origins.at;
    ravel_status status = ravel__buffer_reserve(&nfc->text, allocator, 4 * count + 1, 1, "a text", err);
    if (!status)
        status = ravel__buffer_reserve(&nfc->text_origins, allocator, 4 * count + 1, sizeof(uint32_t), "a text", err);
    if (status) return status;
    uint32_t origin = 0;
    nfc->bytes = 0;
    for (size_t i = 0; i < count; i++) {
        size_t n = ravel__utf8_put((char *)nfc->text.at + nfc->bytes, points[i]);
        RAVEL_ASSERT(nfc->bytes + n <= 4 * count);
        if (origins[i] > origin) origin = origins[i]; /* marks may have changed places, origins never go down */
        while (n-- > 0) ((uint32_t *)nfc->text_origins.at)[nfc->bytes++] = origin;
    }
    return RAVEL_OK;
}

ravel_status ravel__nfc_apply(ravel__nfc *nfc, const char *text, size_t bytes, const ravel_allocator *allocator,
                              ravel_error *err) {
    size_t room = bytes + LONGEST_DECOMPOSITION, count = 0; /* there are never more than 1.5 parts per byte */
    ravel_status status = ravel__buffer_reserve(&nfc->points, allocator, 6 * room, sizeof(uint32_t), "a text", err);
    if (!status) status = ravel__buffer_reserve(&nfc->origins, allocator, 2 * room, sizeof(uint32_t), "a text", err);
    if (status) return status;
    uint32_t *points = nfc->points.at, *origins = nfc->origins.at;
    for (size_t at = 0; at < bytes;) {
        uint32_t point;
        size_t n = ravel__utf8_get(text + at, &point), parts = decompose(point, points + count);
        for (size_t i = 0; i < parts; i++) origins[count + i] = (uint32_t)at;
        count += parts;
        at += n;
        RAVEL_ASSERT(count <= 2 * room - LONGEST_DECOMPOSITION);
    }
    sort_marks(points, origins, count, points + 2 * room);
    return write_text(nfc, compose_all(points, origins, count), allocator, err);
}

void ravel__nfc_free(ravel__nfc *nfc, const ravel_allocator *allocator) {
    ravel__buffer_free(&nfc->points, allocator);
    ravel__buffer_free(&nfc->origins, allocator);
    ravel__buffer_free(&nfc->text, allocator);
    ravel__buffer_free(&nfc->text_origins, allocator);
}
