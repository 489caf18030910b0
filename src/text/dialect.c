/* From Oniguruma's Ruby dialect, in which tokenizer.json files are written, to PCRE2's.
 *
 * What differs in the patterns of real tokenizers:
 *     \s \S      Oniguruma: the 25 code points with White_Space; PCRE2 also counts U+180E. Written as ranges.
 *     \d \D      decimal digits of all scripts: \p{Nd}.
 *     \uHHHH     \x{HHHH}.
 *     ^ $        line starts and ends, always: the back end compiles with MULTILINE, newline is \n alone.
 * What means something else in the two and is in none of the supported families (\w, \b, \h, nested sets, "&&",
 * x{1,2}+, (?m), named groups, ...) is refused by name. */
#include "text/regex.h"

#include "base/assert.h"

#include <stdio.h>
#include <string.h>

#define SPACES "\\x09-\\x0d\\x20\\x{85}\\x{a0}\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"

typedef struct translation {
    const char *start, *at;
    char *out, *end; /* end: the last byte, kept for the NUL */
    int in_set;
    ravel_error *err;
} translation;

size_t ravel__regex_translate_bound(size_t pattern_bytes) {
    return pattern_bytes * sizeof SPACES + 64;
}

static void put(translation *t, const char *text, size_t bytes) {
    if ((size_t)(t->end - t->out) < bytes) bytes = (size_t)(t->end - t->out);
    RAVEL_ASSERT(t->out <= t->end && (size_t)(t->end - t->out) >= bytes); /* the bound is enough */
    memcpy(t->out, text, bytes);
    t->out += bytes;
}

static void put_text(translation *t, const char *text) {
    put(t, text, strlen(text));
}

static ravel_status refuse(const translation *t, const char *what) {
    return ravel_error_set(t->err, RAVEL_E_UNSUPPORTED, "the pattern \"%.200s\" has %s at byte %zu", t->start, what,
                           (size_t)(t->at - t->start));
}

/* An escape that stands for a set: as ranges inside [...], as a set of its own outside. */
static ravel_status put_set(translation *t, int negated, const char *ranges) {
    RAVEL_ASSERT(t->at[0] == '\\');
    if (t->in_set && negated) return refuse(t, "a negated escape inside [...], which is not supported,");
    if (t->in_set)
        put_text(t, ranges);
    else
        put_text(t, negated ? "[^" : "["), put_text(t, ranges), put_text(t, "]");
    t->at += 2;
    return RAVEL_OK;
}

/* \p{Lu}, \P{N}, \p{^L}, \p{Han}: PCRE2 knows the same names. */
static ravel_status property(translation *t) {
    RAVEL_ASSERT(t->at[0] == '\\' && (t->at[1] == 'p' || t->at[1] == 'P'));
    const char *close = t->at[2] == '{' ? strchr(t->at, '}') : NULL;
    if (!close || close - t->at > 40) return refuse(t, "\\p without {name}");
    put(t, t->at, (size_t)(close - t->at) + 1);
    t->at = close + 1;
    return RAVEL_OK;
}

static int is_hex(char c) {
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}

static ravel_status code_point(translation *t) {
    RAVEL_ASSERT(t->at[0] == '\\' && t->at[1] == 'u');
    char text[16];
    for (int i = 2; i < 6; i++)
        if (!is_hex(t->at[i])) return refuse(t, "\\u without four hexadecimal digits");
    int bytes = snprintf(text, sizeof text, "\\x{%.4s}", t->at + 2);
    put(t, text, (size_t)bytes);
    t->at += 6;
    return RAVEL_OK;
}

static ravel_status escape(translation *t) {
    RAVEL_ASSERT(t->at[0] == '\\');
    char c = t->at[1];
    switch (c) {
    case '\0': return refuse(t, "a backslash at the end");
    case 's': return put_set(t, 0, SPACES);
    case 'S': return put_set(t, 1, SPACES);
    case 'd': return put_set(t, 0, "\\p{Nd}");
    case 'D': return put_set(t, 1, "\\p{Nd}");
    case 'p':
    case 'P': return property(t);
    case 'u': return code_point(t);
    default: break;
    }
    int letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9');
    if (letter && !strchr(t->in_set ? "rntfx" : "rntfxAzX", c)) {
        char what[64];
        (void)snprintf(what, sizeof what, "the escape \\%c, which is not supported,", c);
        return refuse(t, what);
    }
    put(t, t->at, (unsigned char)c < 0x80 ? 2 : 1);
    t->at += (unsigned char)c < 0x80 ? 2 : 1;
    return RAVEL_OK;
}

static ravel_status group(translation *t) {
    RAVEL_ASSERT(t->at[0] == '(' && !t->in_set);
    static const char *const known[] = {"(?:", "(?i:", "(?=", "(?!", "(?<=", "(?<!", "(?>", "(?i)"};
    if (t->at[1] == '*') return refuse(t, "a group that begins with (*");
    if (t->at[1] != '?') return RAVEL_OK;
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strncmp(t->at, known[i], strlen(known[i])) == 0) return RAVEL_OK;
    return refuse(t, "a group of a kind that is not supported");
}

/* x{1,2}+ repeats a repeat in Oniguruma and is possessive in PCRE2; {,2} is {0,2} there and literal here. */
static ravel_status interval(const translation *t) {
    RAVEL_ASSERT(t->at[0] == '{' && !t->in_set);
    const char *close = strchr(t->at, '}');
    if (t->at[1] == ',') return refuse(t, "{,n}, which is not supported,");
    if (close && close[1] == '+') return refuse(t, "{n,m}+, which is not supported,");
    return RAVEL_OK;
}

static ravel_status step(translation *t) {
    char c = *t->at;
    ravel_status status = RAVEL_OK;
    if (c == '\\') return escape(t);
    if (t->in_set) {
        if (c == '[') status = refuse(t, "a set inside a set");
        if (c == '&' && t->at[1] == '&') status = refuse(t, "&& inside a set");
        if (c == ']') t->in_set = 0;
    } else if (c == '[') {
        t->in_set = 1;
        if (t->at[1] == '^') put(t, t->at++, 1); /* "[^": both bytes */
        if (t->at[1] == ']') status = refuse(t, "an empty set");
    } else if (c == '(') {
        status = group(t);
    } else if (c == '{') {
        status = interval(t);
    }
    put(t, t->at, 1);
    t->at++;
    return status;
}

ravel_status ravel__regex_translate(const char *pattern, char *out, size_t room, ravel_error *err) {
    RAVEL_ASSERT(room > 0);
    translation t = {pattern, pattern, out, out + room - 1, 0, err};
    ravel_status status = RAVEL_OK;
    put_text(&t, "(*LF)");
    while (*t.at && !status) status = step(&t);
    if (!status && t.in_set) status = refuse(&t, "a set that is not closed");
    RAVEL_ASSERT(t.out <= t.end);
    *t.out = '\0';
    return status;
}
